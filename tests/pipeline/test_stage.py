"""Any valid list on ranks: the gradients of one process, the messages of the formula, no
deadlock, and no hang."""

import functools
import hashlib
import itertools

import pytest
import torch
from pipelines import (
    CASES,
    HIDDEN,
    VOCABULARY,
    any_valid_list,
    cut,
    differences,
    gradients,
    one_process,
    split_rows,
)
from sweeps import WHOLE

from lib import launch, ledger
from lib.pipeline import (
    Action,
    gpipe,
    interleaved,
    messages,
    one_f_one_b,
    relay,
    simulate,
    target,
    v_shape,
    zb_h1,
)
from lib.pipeline.links import connect
from lib.pipeline.stage import Pipeline

# The ranks of each pipeline: not always 0 ... p-1, and not always in order.
RANKS = {1: [2], 2: [1, 3], 3: [2, 0, 3], 4: [0, 1, 2, 3]}


def schedules(p):
    """{name: (schedule, m, v)}: fewer micro-batches than stages and more."""
    few, many = max(1, p - 1), p + 3
    named = {}
    for make in (relay, gpipe, one_f_one_b, zb_h1):
        for m in (few, many):
            named[f"{make.__name__}, m = {m}"] = make(p, m), m, 1
    # The first two: groups smaller and larger than p.
    for v, m in ((2, few), (2, 2 * p + 2), *(((2, 2 * p), (3, p)) if WHOLE else ())):
        named[f"interleaved, m = {m}, v = {v}"] = interleaved(p, m, v), m, v
    for seed in range(4) if WHOLE else (0, 3):
        v, halves = 1 + seed % 2, seed > 1
        named[f"any list {seed}, v = {v}, halves {halves}"] = (
            any_valid_list(seed, p, many, v, halves),
            many,
            v,
        )
    return named


RUNS = {
    f"{case}, p = {p}, {name}": (case, p, *schedule)
    for p in RANKS
    for name, schedule in ((case_name, s) for case_name, s in schedules(p).items())
    for case in CASES
    if case != "frozen start" or p == 3
}


def run_each():
    """{run: (loss, differences, names of this rank's parameters, bits of all gradients,
    result of record)}."""
    links_of = {p: connect([ranks]) for p, ranks in RANKS.items()}
    seen = {}
    for run, (name, p, schedule, m, v) in RUNS.items():
        if links_of[p] is None:
            continue
        case = CASES[name]
        module, stages = cut(case, p * v)
        xs, targets = split_rows(case.batch(2 * m - 1), m)
        first, last = links_of[p].rank == 0, links_of[p].rank == p - 1
        pipeline = Pipeline(stages, links_of[p], xs if first else [None] * m)
        bars = []
        ledger.mark(run)
        loss = pipeline.run(
            schedule, xs if first else None, targets if last else None, case.loss, bars.append
        )
        ledger.mark("")
        mine = {id(q) for stage in pipeline.stages.values() for q in stage.module.parameters()}
        got = {n: q.grad for n, q in module.named_parameters() if id(q) in mine}
        want_loss, want = one_process(name, p * v, m)
        bits = hashlib.sha1(
            b"".join(g.numpy().tobytes() for g in got.values() if g is not None)
        ).hexdigest()
        off = None if loss is None else abs(loss - want_loss).item() / abs(want_loss).item()
        left = [
            len(held) for stage in pipeline.stages.values() for held in (stage.live, stage.waiting)
        ]
        seen[run] = off, differences(got, want), set(got), bits, bars, sum(left)
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=240)


def of(results, run):
    """What the ranks of a run saw, by place in the pipeline."""
    return [results[rank][run] for rank in RANKS[RUNS[run][1]]]


@pytest.mark.parametrize("p", RANKS)
def test_every_gradient_and_the_loss_are_those_of_one_process(results, p):
    for run in (run for run in RUNS if RUNS[run][1] == p):
        name, _, _, m, v = RUNS[run]
        seen, everything = of(results, run), one_process(name, p * v, m)[1]
        for place, (off, wrong, _, _, _, left) in enumerate(seen):
            assert not wrong, f"{run}, place {place}: {'; '.join(wrong[:3])}"
            assert (off is not None) == (place == p - 1), "the loss is the last rank's"
            assert off is None or off < 1e-14, run
            assert left == 0, f"{run}: something of a micro-batch is kept after its last action"
        assert set().union(*(names for _, _, names, _, _, _ in seen)) == set(everything), (
            f"{run}: all parameters"
        )


def test_the_comparison_would_see_a_lost_micro_batch_a_wrong_weight_and_a_missing_gradient():
    (_, right), (_, other) = one_process("gpt", 2, 3), one_process("gpt", 2, 4)
    assert differences(right, right) == []
    nearly = {n: g * (1 + 1e-11) for n, g in right.items()}
    assert len(differences(nearly, right)) == len([n for n in right if not n.endswith("k.bias")])
    assert differences(other, right) and differences(right | {"norm.bias": None}, right)


@pytest.mark.parametrize("p", RANKS)
def test_schedules_whose_backwards_run_in_one_order_give_the_same_bits(results, p):
    for m in (max(1, p - 1), p + 3):
        for name in ("gpt", "layers"):
            runs = [
                f"{name}, p = {p}, {make}, m = {m}" for make in ("relay", "gpipe", "one_f_one_b")
            ]
            for place in range(p):
                assert len({of(results, run)[place][3] for run in runs}) == 1


@functools.cache
def sizes(name, n_stages, m):
    """{(stage, micro-batch): bytes of what that stage sends on}, from running the stages
    one after the other."""
    _, stages = cut(CASES[name], n_stages)
    xs, _ = split_rows(CASES[name].batch(2 * m - 1), m)
    given = {}
    for j, x in enumerate(xs):
        for s, stage in enumerate(stages[:-1]):
            x = stage(x)
            given[s, j] = x.nbytes
    return given


@pytest.mark.parametrize("p", RANKS)
def test_one_activation_there_and_one_gradient_back_per_micro_batch_and_edge(results, p):
    for run in (run for run in RUNS if RUNS[run][1] == p):
        name, _, schedule, m, v = RUNS[run]
        if name == "gpt" and "one_f_one_b" not in run:
            continue  # its messages are all of one size, the other case's are not
        size, log, ranks = sizes(name, p * v, m), results.ledger.section(run), RANKS[p]
        sent = torch.zeros(2, 4, 4, dtype=torch.int64)
        for action, to in messages(schedule):
            edge = min(action.stage, to.stage)
            sent[:, ranks[action.stage % p], ranks[to.stage % p]] += torch.tensor(
                [1, size[edge, action.microbatch]]
            )
        assert sent[0].sum() == (2 * (v * p - 1) * m if p > 1 else 0)
        # an all-reduce of the embedding's gradient, between the ends, by doubling
        if name == "gpt" and p > 1:
            for a, b in ((ranks[0], ranks[-1]), (ranks[-1], ranks[0])):
                sent[:, a, b] += torch.tensor([1, 8 * VOCABULARY * HIDDEN])
        assert torch.equal(torch.from_numpy(log.matrix("messages")), sent[0]), run
        assert torch.equal(torch.from_numpy(log.matrix("bytes")), sent[1]), run


def test_different_micro_batches_and_widths_are_messages_of_different_sizes():
    size = sizes("layers", 4, 7)
    assert size[0, 0] == 2 * size[0, 6] and len({size[s, 0] for s in range(3)}) == 3


@pytest.mark.parametrize("p", RANKS)
def test_the_record_is_the_list_as_it_ran(results, p):
    for run in (run for run in RUNS if RUNS[run][1] == p):
        _, _, schedule, _, _ = RUNS[run]
        bars = {
            bar.action: bar for _, _, _, _, rank_bars, _ in of(results, run) for bar in rank_bars
        }
        for place, (_, _, _, _, mine, _) in enumerate(of(results, run)):
            assert [bar.action for bar in mine] == schedule[place]
            assert all(bar.rank == place and bar.start <= bar.end for bar in mine)
            assert all(one.end <= next_.start for one, next_ in itertools.pairwise(mine))
        for action, bar in bars.items():
            to = target(action, 1 + max(a.stage for a in bars))
            assert to is None or bar.end <= bars[to].start, (
                "an action starts when what it needs has arrived"
            )
        assert [bar.rank for bar in simulate(schedule).bars] == sorted(
            bar.rank for bar in bars.values()
        )


# Training: two runs per step, whose gradients add up; 3 ranks.

STEPS, M = 3, 4


def train(links, make):
    """[(loss, {name: gradient}, {name: parameter}) of each step] by SGD; without
    links in one process."""
    case = CASES["gpt"]
    module, stages = cut(case, 3)
    tokens, targets = case.batch(2 * M - 1)
    batches = [(tokens, targets), (tokens, targets.roll(1, 0))]
    optimizer, seen = torch.optim.SGD(module.parameters(), lr=0.5), []
    pipeline = Pipeline(stages, links, tokens.split(2)) if links else None
    for _ in range(STEPS):
        optimizer.zero_grad()
        for x, wanted in batches:
            if links:
                loss = pipeline.run(make(3, M), x.split(2), wanted.split(2), case.loss)
            else:
                loss = case.loss(module(x), wanted)
                loss.backward()
        mine = {name: g.clone() for name, g in gradients(module).items() if g is not None}
        optimizer.step()
        loss = None if loss is None else loss.detach()
        seen.append(
            (
                loss,
                mine,
                {name: q.detach().clone() for name, q in module.named_parameters() if name in mine},
            )
        )
    return seen


def train_each():
    links = connect()
    return {make.__name__: train(links, make) for make in (one_f_one_b, zb_h1)}


@pytest.fixture(scope="module")
def trained():
    return launch.capture(train_each, backend="gloo", nproc=3, timeout=120, ledger=False)


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_h1"])
def test_steps_of_two_runs_each_train_as_one_process_does(trained, name):
    for step, (want_loss, want_grads, want_params) in enumerate(train(None, None)):
        names = set()
        for rank in range(3):
            loss, grads, params = trained[rank][name][step]
            assert not differences(grads, want_grads) and not differences(params, want_params), (
                rank,
                step,
            )
            assert loss is None if rank < 2 else abs(loss - want_loss) < 1e-14 * want_loss
            names |= set(grads)
        assert names == set(want_grads)


def test_both_copies_of_a_tied_parameter_stay_the_same_bits(trained):
    tied = "embedding.token.weight"
    for step in range(STEPS):
        (_, first, w_first), (_, last, w_last) = (
            trained[rank]["one_f_one_b"][step] for rank in (0, 2)
        )
        assert torch.equal(first[tied], last[tied]) and torch.equal(w_first[tied], w_last[tied])
        assert tied not in trained[1]["one_f_one_b"][step][1]


def losses_without_gradients(m):
    """{placement and v: (loss, how far it is from one process, whether a `.grad` changed,
    micro-batches kept)}, and what `run` says where it cannot go back."""
    links, seen, refused = connect(), {}, []
    case = CASES["gpt"]
    for name, v, more in (("loop", 1, {}), ("loop", 2, {}), ("v", 2, {"placement": v_shape})):
        module, stages = cut(case, 2 * v)
        xs, targets = split_rows(case.batch(2 * m - 1), m)
        pipeline = Pipeline(stages, links, xs, **more)
        loss = pipeline.evaluate(xs, targets, case.loss)
        want = one_process("gpt", 2 * v, m)[0]
        off = None if loss is None else abs(loss - want).item() / abs(want).item()
        touched = [n for n, p in module.named_parameters() if p.grad is not None]
        seen[name, v] = off, touched, sum(len(stage.live) for stage in pipeline.stages.values())

    forwards = [[Action(rank, "F", j) for j in range(m)] for rank in range(2)]
    module, stages = cut(case, 2)
    pipeline = Pipeline(stages, links, xs)
    for schedule, graph in ((forwards, True), (gpipe(2, m), False)):
        with torch.set_grad_enabled(graph):
            try:
                pipeline.run(schedule, xs, targets, case.loss)
            except (ValueError, RuntimeError) as error:
                refused.append(f"{type(error).__name__}: {error}")
    pipeline.run(gpipe(2, m), xs, targets, case.loss)  # and after that a step goes through
    return seen, refused


@pytest.mark.parametrize("m", [3, 1])
def test_a_loss_without_gradients(m):
    """On few micro-batches and on more than ranks; stages in a loop and in a V."""
    for rank, (seen, refused) in enumerate(
        launch.run(losses_without_gradients, m, nproc=2, backend="gloo")
    ):
        for (placement, v), (off, touched, kept) in seen.items():
            has_loss = rank == (0 if placement == "v" else 1)
            assert (off is not None) == has_loss and not touched and not kept, (placement, v)
            assert not has_loss or off < 1e-12
        assert [line.split(":")[0] for line in refused] == ["ValueError", "RuntimeError"]
        assert all("pipeline.evaluate(microbatches, targets, loss_fn)" in line for line in refused)
