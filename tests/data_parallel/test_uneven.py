"""Shards of unequal size and ranks that run out of data: still the gradient of the mean
over all examples."""

from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from replicas import (
    GROUPS,
    MODELS,
    ROWS,
    WRAPPERS,
    differences,
    groups,
    same_bits,
    single_process,
    train,
)
from sweeps import sweep

from lib import launch, ledger
from lib.collectives import ring_all_reduce
from lib.data_parallel import OverlappedDataParallel, until_all_done, weighted_loss

NAMES = ["gpt float64", "paths float64"]
WORLD = (0, 1, 2, 3)
RUNS = sweep(
    (name, wrapper, members)
    for name in NAMES
    for wrapper in WRAPPERS
    for members in GROUPS
    if name == "paths float64" or members in [(0, 1, 2), WORLD]
)


def rows_of(step, world_size):
    """How many of the 12 rows each rank has. In every step another rank has none, where there are
    several ranks."""
    return {
        1: [12],
        2: [[12, 0], [5, 7], [0, 12], [11, 1], [6, 6]][step],
        3: [[7, 5, 0], [0, 1, 11], [3, 0, 9], [4, 4, 4], [12, 0, 0]][step],
        4: [[5, 0, 4, 3], [1, 1, 0, 10], [0, 0, 12, 0], [3, 3, 3, 3], [6, 2, 4, 0]][step],
    }[world_size]


def on_uneven_shards(name, group, backward_without_rows):
    case, rank, world_size = MODELS[name], dist.get_rank(group), dist.get_world_size(group)

    def backward(net, step):
        counts = rows_of(step, world_size)
        assert sum(counts) == ROWS
        shard = tuple(x.split(counts)[rank] for x in case.batch(step))
        # The sum of no losses is 0, and so are its gradients: such a rank may call backward, or
        # leave it out.
        calls = counts[rank] > 0 or backward_without_rows
        loss = weighted_loss(
            case.loss(net, shard, "sum") if calls else torch.zeros(()), count(name, shard), group
        )
        if calls:
            loss.backward()
        net.average_gradients()

    return backward


def count(name, shard):
    """What the mean is over: tokens of the GPT, rows of Paths."""
    return shard[-1].numel() if name.startswith("gpt") else len(shard[-1])


def train_each():
    group_of, seen = groups(), {}
    for run in RUNS:
        name, wrapper, members = run
        if dist.get_rank() in members:
            group = group_of[members]
            module = MODELS[name].build(dist.get_rank(group))
            net = WRAPPERS[wrapper](module, group)
            # The GPT's backward on no rows gives zeros everywhere; Paths has no path for no rows.
            way = on_uneven_shards(name, group, backward_without_rows=name.startswith("gpt"))
            seen[run] = train(net, module, way)
    return seen


def hand_worked_in(group):
    """Losses 1 1 1 on rank 0, 5 on rank 1: their mean is 2."""
    rank = dist.get_rank()
    loss_sum = torch.tensor([3.0, 5.0][rank], requires_grad=True)
    loss = weighted_loss(loss_sum, [3, 1][rank], group)
    loss.backward()
    half = weighted_loss(loss_sum.detach().bfloat16(), 2, group)
    return loss.item(), loss_sum.grad.item(), loss.dtype, half.dtype


def nobody_has_any():
    try:
        weighted_loss(torch.zeros(()), 0)
    except ValueError as error:
        return str(error)


def turns_of(batches_by_rank):
    """What until_all_done gives this rank, through lib's all-reduce and through another."""
    mine = batches_by_rank[dist.get_rank()]
    ledger.mark(f"turns {batches_by_rank}")
    first = list(until_all_done(iter(mine)))
    ledger.mark("")
    return first, list(until_all_done(mine, None, ring_all_reduce))


def train_until_all_done():
    """Ranks with 3, 1, 0 and 2 batches. Returns how many steps were taken, and this
    rank's parameters."""
    rank, net = (
        dist.get_rank(),
        OverlappedDataParallel(MODELS["paths float64"].build(dist.get_rank())),
    )
    case, steps = MODELS["paths float64"], 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    own = [tuple(x.chunk(4)[rank] for x in case.batch(step)) for step in range([3, 1, 0, 2][rank])]
    for batch in until_all_done(own):
        optimizer.zero_grad()
        if batch is None:
            weighted_loss(torch.zeros(()), 0)  # contributes nothing, but takes part
        else:
            weighted_loss(case.loss(net, batch, "sum"), len(batch[0])).backward()
        net.average_gradients()
        optimizer.step()
        steps += 1
    return steps, torch.cat([p.detach().flatten() for p in net.parameters()])


TURNS = [[["a", "b", "c"], ["d"], [], ["e", "f"]], [[], [], [], []], [[0], [0], [0], [0]]]


class Seen(NamedTuple):
    """What a rank saw."""

    runs: dict  # {run: [(gradients, parameters), ...]}
    by_hand: tuple | None  # loss, slope, dtype, half
    refusal: str
    turns: list  # for each of TURNS, batches by lib's all-reduce and by the ring
    until_all_done: tuple  # steps, parameters


def everything():
    pair = dist.new_group([0, 1])
    by_hand = hand_worked_in(pair) if dist.get_rank() < 2 else None
    runs, refusal = train_each(), nobody_has_any()
    turns = [turns_of(case) for case in TURNS]
    return Seen(runs, by_hand, refusal, turns, train_until_all_done())


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240)


@pytest.mark.parametrize("name", NAMES)
def test_unequal_shards_give_the_gradient_of_the_whole_batch(results, name):
    for run in [run for run in RUNS if run[0] == name]:
        first, *others = [results[member].runs[run] for member in run[-1]]
        wrong = differences(first, single_process(name), MODELS[name].tolerance)
        assert not wrong, f"{run}: " + "; ".join(wrong[:3])
        assert all(same_bits(first, other) for other in others), run


def test_the_weights_by_hand(results):
    for rank in range(2):
        loss, slope, dtype, half = results[rank].by_hand
        assert loss == [3.0, 5.0][rank] * 2 / 4 and slope == 2 / 4, (
            "N/C = 2/4: the mean of 1.5 and 2.5 is 2"
        )
        assert dtype == torch.float32 and half == torch.bfloat16, "the loss keeps its dtype"


def test_a_step_in_which_no_rank_has_an_example_is_refused(results):
    for rank in results:
        assert "no rank has an example in this step" in rank.refusal
        assert "end the loop before" in rank.refusal


def test_every_rank_gets_its_batches_in_order_then_none_until_all_have_run_out(results):
    for rank, seen in enumerate(results):
        for by_rank, (ours, ring) in zip(TURNS, seen.turns, strict=True):
            longest = max(map(len, by_rank))
            assert ours == ring == by_rank[rank] + [None] * (longest - len(by_rank[rank]))


def test_a_turn_all_reduces_one_number_and_one_turn_more_ends_the_loop(results):
    for by_rank in TURNS:
        sends = [e for e in results.ledger.section(f"turns {by_rank}").entries if e.op == "send"]
        turns = max(map(len, by_rank)) + 1
        assert {e.numel for e in sends} == {1}
        assert len(sends) == turns * 2 * (4 - 1)  # star, for one number on 4 ranks


def test_ranks_that_run_out_of_data_take_every_step_and_end_as_one_process_on_what_there_was(
    results,
):
    case = MODELS["paths float64"]
    # step -> the ranks that have a batch
    net, left = case.build(0), {0: [0, 1, 3], 1: [0, 3], 2: [0]}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, ranks in left.items():
        optimizer.zero_grad()
        rows = torch.cat([torch.arange(ROWS).chunk(4)[rank] for rank in ranks])
        case.loss(net, tuple(x[rows] for x in case.batch(step))).backward()
        optimizer.step()
    alone = torch.cat([p.detach().flatten() for p in net.parameters()])
    _, of_rank_0 = results[0].until_all_done
    for steps, parameters in (rank.until_all_done for rank in results):
        assert steps == 3
        assert torch.equal(parameters, of_rank_0)
        torch.testing.assert_close(parameters, alone, rtol=1e-12, atol=1e-14)
