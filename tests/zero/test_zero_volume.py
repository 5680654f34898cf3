"""What a step puts on the wire: exactly the formula's elements, per rank, stage and number of
micro-batches."""

import pytest
import torch
import torch.distributed as dist
from replicas import share
from sweeps import sweep
from zero_cases import GROUPS, SHAPE, STAGES, ZeroRun, case_of

from lib import launch, ledger
from lib.cost.zero import sent_elements
from lib.training import model
from lib.zero import PrefetchingFSDP, padded_size

STAGE = {"zero1": 1, "zero2": 2, "fsdp": 3, "prefetching": 3}
NAMES = ["gpt float64", "mixed"]
RUNS = sweep(
    (name, stage, k, members)
    for name in NAMES
    for stage in STAGE
    for k in (1, 3)
    for members in GROUPS
    if (name == "gpt float64" and k == 1)
    or (members, k) == ((0, 1, 2, 3), 3)  # 3 micro-batches of a row each
)


def step(run, case, mine, k):
    """Forward and backward of k micro-batches, update; no clipping, which would
    send a number more."""
    for i in range(k):
        case.loss(run.net, share(mine, i, k)).backward()
        if run.stage != "zero1" or i == k - 1:
            run.sharded.average_gradients()
    run.optimizer.step()
    run.optimizer.zero_grad()


def no_root():
    """Layers that are all units: nothing is left for a root."""
    return torch.nn.Sequential(*(torch.nn.Linear(5, 5, dtype=torch.float64) for _ in range(4)))


def everything():
    rank = dist.get_rank()
    group_of = {m: dist.new_group(m) if len(m) < dist.get_world_size() else None for m in GROUPS}
    sizes = {}
    for at in RUNS:
        name, stage, k, members = at
        if rank in members:
            case, group = case_of(name), group_of[members]
            run = ZeroRun(name, stage, "adamw", case.build(0), group, grouped=False)
            mine = share(case.batch(0), dist.get_rank(group), dist.get_world_size(group))
            for section in ("first", "second"):
                ledger.mark(f"{section} {at}")
                step(run, case, mine, k)
            ledger.mark("")
            root = run.sharded.root.flats if STAGE[stage] == 3 else []
            sizes[at] = sum(f.padded for f in run.sharded.flats), sum(f.padded for f in root)
    for stage in ("fsdp", "prefetching"):
        net = no_root()
        fsdp = STAGES[stage](net, net)
        ledger.mark(f"no root {stage}")
        for _ in range(2):
            net(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
            fsdp.average_gradients()
        ledger.mark("")
    with_torch_s()
    return sizes


def with_torch_s():
    """The collectives are arguments: torch's, of which the ledger sees the payload."""
    net = no_root()

    def reduce_scatter(line, group):
        piece = line.new_empty(len(line) // dist.get_world_size(group))
        dist.reduce_scatter_tensor(piece, line, group=group)
        return piece

    def all_gather(shard, group, out):
        dist.all_gather_into_tensor(out, shard.detach(), group=group)

    fsdp = PrefetchingFSDP(net, net, reduce_scatter=reduce_scatter, all_gather=all_gather)
    ledger.mark("torch's")
    net(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    fsdp.average_gradients()
    ledger.mark("")


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=600)


@pytest.mark.parametrize("stage", STAGE)
def test_every_rank_sends_exactly_the_formula(results, stage):
    for at in [at for at in RUNS if at[1] == stage]:
        name, _, k, members = at
        psi, root = results[members[0]][at]
        N, size = len(members), 8 if "64" in name else 2
        for section in ("first", "second"):
            log = results.ledger.section(f"{section} {at}")
            for member in members:
                assert log.sent("elements", member) == sent_elements(
                    psi, STAGE[stage], N, k, root
                ), (at, member)
                assert log.sent("bytes", member) == size * sent_elements(
                    psi, STAGE[stage], N, k, root
                )
            for entry in log.entries:
                assert N == 1 or entry.op in ("send", "recv")


def test_the_padding_is_below_n_elements_per_flat_and_nothing_is_left_out(results):
    n = model.GPT(SHAPE).num_parameters()
    for at in RUNS:
        psi, _ = results[at[-1][0]][at]
        assert n <= psi <= n + 30 * (len(at[-1]) - 1) and psi == padded_size(psi, len(at[-1]))


def test_with_every_layer_a_unit_stage_3_sends_three_times(results):
    psi = 4 * padded_size(30, 4)
    for stage in ("fsdp", "prefetching"):
        log = results.ledger.section(f"no root {stage}")
        for rank in range(4):
            assert log.sent("elements", rank) == 2 * sent_elements(psi, 3, 4) == 2 * 3 * 3 / 4 * psi


def test_over_torch_s_collectives_it_is_two_gathers_and_a_reduce_scatter_per_unit(results):
    for rank in range(4):
        called = [(e.op, e.numel) for e in results.ledger.section("torch's").of(rank)]
        gathers = [call for call in called if "gather" in call[0]]
        assert len(gathers) == 8 and len(called) == 12, called


def test_the_root_is_gathered_once():
    assert sent_elements(400, 3, 4, microbatches=5, root=100) == 3 / 4 * 5 * (3 * 300 + 2 * 100)
