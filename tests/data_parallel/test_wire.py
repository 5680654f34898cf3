"""What a step puts on the wire: the formulas' elements and bytes, per rank and in all, an
all-reduce per bucket."""

import pytest
import torch
import torch.distributed as dist
from replicas import GROUPS, MODELS, SMALL, TRANSPORTS, WRAPPERS, groups, share
from sweeps import meeting, sweep
from torch.nn.parallel import DistributedDataParallel

from lib import launch, ledger
from lib.collectives.auto import choose
from lib.collectives.cost import COST, chunk_sizes
from lib.data_parallel import BucketedDataParallel, OverlappedDataParallel, weighted_loss
from lib.training.buckets import CAPACITY, plan_buckets

NAMES = ["gpt float64", "paths float64 and float32"]
WORLD = (0, 1, 2, 3)
RUNS = sweep(
    [
        (name, wrapper, transport, members)
        for name in NAMES
        for wrapper in WRAPPERS
        for transport in ("ring", "lib", "torch")
        for members in GROUPS
        if name != "gpt float64" or members == WORLD
    ],
    always=[(name, wrapper, "ring", WORLD) for name in NAMES for wrapper in WRAPPERS],
    holds=meeting(1, 2),
)
KIB = 1024  # a small capacity: GPT in float32 has 3.7 KB


def step(net, case, shard):
    """A step without its update: a second one must send as much as the first."""
    net.zero_grad()
    case.loss(net, shard).backward()
    net.average_gradients()


def ours(group_of):
    for run in RUNS:
        name, wrapper, transport, members = run
        if dist.get_rank() in members:
            case, group = MODELS[name], group_of[members]
            module, rank, world_size = (
                case.build(0),
                dist.get_rank(group),
                dist.get_world_size(group),
            )
            ledger.mark(f"wrapped {run}")
            net = WRAPPERS[wrapper](module, group, **TRANSPORTS[transport])
            for section in ("first", "second"):
                ledger.mark(f"{section} {run}")
                step(net, case, share(case.batch(0), rank, world_size))
            ledger.mark("")


def beside_ddp():
    case, rank = MODELS["gpt float32"], dist.get_rank()
    for capacity in (CAPACITY, KIB):
        net = DistributedDataParallel(case.build(0), bucket_cap_mb=capacity / 2**20)
        for turn in range(3):  # DDP plans its buckets anew after the first step
            ledger.mark(f"ddp {capacity}" if turn == 2 else "")
            case.loss(net, share(case.batch(0), rank, 4)).backward()
        ledger.mark("")
        for wrapper in (BucketedDataParallel, OverlappedDataParallel):
            net = wrapper(case.build(0), capacity=capacity, **TRANSPORTS["torch"])
            ledger.mark(f"{wrapper.__name__} {capacity}")
            step(net, case, share(case.batch(0), rank, 4))
            ledger.mark("")


def weighted():
    ledger.mark("weighted_loss")
    weighted_loss(torch.ones((), dtype=torch.float32), 1 + dist.get_rank(), **TRANSPORTS["torch"])
    ledger.mark("")


def everything():
    ours(groups())
    beside_ddp()
    weighted()


@pytest.fixture(scope="module")
def logs():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240).ledger


def trained(name):
    return [p for p in MODELS[name].build(0).parameters() if p.requires_grad]


def parts(name, wrapper):
    """[(elements, bytes), ...] of what is all-reduced: a parameter each, or a bucket each."""
    parameters = trained(name)
    planned = [[p] for p in parameters] if wrapper == "naive" else plan_buckets(parameters, SMALL)
    return [(sum(p.numel() for p in b), sum(p.nbytes for p in b)) for b in planned]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_over_a_ring_every_rank_sends_exactly_the_formula(logs, wrapper):
    for run in [run for run in RUNS if run[1] == wrapper and run[2] == "ring"]:
        members, sent = run[-1], parts(run[0], wrapper)
        N, n, nbytes = len(members), sum(m for m, _ in sent), sum(b for _, b in sent)
        assert len(sent) > 2
        for section in ("first", "second"):
            log = logs.section(f"{section} {run}")
            assert log.sent("elements") == 2 * (N - 1) * n
            assert log.sent("bytes") == 2 * (N - 1) * nbytes
            for rank, member in enumerate(members):
                # Every chunk but `rank` while reducing, every chunk but `rank + 1` while gathering.
                size = [chunk_sizes(m, N) for m, _ in sent]
                mine = sum(2 * sum(s) - s[rank] - s[(rank + 1) % N] for s in size)
                assert log.sent("elements", member) == mine, (run, member)
                assert log.sent("messages", member) == 2 * (N - 1) * len(sent), (run, member)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_through_the_front_door_it_is_what_the_chosen_algorithms_send(logs, wrapper):
    for run in [run for run in RUNS if run[1] == wrapper and run[2] == "lib"]:
        members, sent = run[-1], parts(run[0], wrapper)
        N, log = len(members), logs.section(f"second {run}")
        costs = [
            (COST[choose(nbytes, N)], elements, nbytes // elements) for elements, nbytes in sent
        ]
        assert log.sent("elements") == sum(cost.total(m, N) for cost, m, _ in costs), run
        assert log.sent("bytes") == sum(cost.total(m, N) * size for cost, m, size in costs), run
        # Rank 0 is the busiest in all of them: the star's centre, or one of two equals.
        assert log.sent("elements", members[0]) == sum(cost.sent(m, N) for cost, m, _ in costs), run
        assert log.sent("elements", members[0]) == log.matrix("elements").sum(axis=1).max()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_one_all_reduce_per_parameter_or_per_bucket(logs, wrapper):
    for run in [run for run in RUNS if run[1] == wrapper and run[2] == "torch"]:
        log = logs.section(f"second {run}")
        for member in run[-1]:
            called = [(e.op, e.numel, e.nbytes) for e in log.of(member)]
            expected = parts(run[0], wrapper)
            # in the order of the forward pass; buckets in the order of the plan
            if wrapper == "naive":
                assert [p.numel() for p in trained(run[0])] == [numel for _, numel, _ in called]
            assert called == [("all_reduce", *part) for part in expected], run


def test_buckets_send_fewer_messages_and_the_same_bytes(logs):
    for name in NAMES:
        naive, *buckets = (
            logs.section(f"second {(name, wrapper, 'ring', WORLD)}") for wrapper in WRAPPERS
        )
        for log in buckets:
            assert log.sent("bytes") == naive.sent("bytes")
            fewer = len(parts(name, "naive")) / len(parts(name, "bucketed"))
            assert naive.sent("messages") == fewer * log.sent("messages") and fewer >= 2


def test_to_become_equal_n_minus_1_ranks_receive_every_parameter_once_tied_ones_too(logs):
    for run in RUNS:
        module = MODELS[run[0]].build(0)
        n, tensors = sum(p.numel() for p in module.parameters()), len(list(module.parameters()))
        log = logs.section(f"wrapped {run}")
        assert log.sent("elements") == (len(run[-1]) - 1) * n, "frozen ones too"
        assert log.sent("messages") == (len(run[-1]) - 1) * tensors


@pytest.mark.parametrize("capacity", [CAPACITY, KIB])
def test_torch_ddp_gives_as_many_bytes_and_its_buckets_are_not_more(logs, capacity):
    parameters = trained("gpt float32")
    nbytes, least = (
        sum(p.nbytes for p in parameters),
        -(-sum(p.nbytes for p in parameters) // capacity),
    )
    for rank in WORLD:
        theirs = [e for e in logs.section(f"ddp {capacity}").of(rank) if e.op == "all_reduce"]
        assert sum(e.nbytes for e in theirs) == nbytes
        for wrapper in ("BucketedDataParallel", "OverlappedDataParallel"):
            mine = [
                e for e in logs.section(f"{wrapper} {capacity}").of(rank) if e.op == "all_reduce"
            ]
            assert sum(e.nbytes for e in mine) == nbytes
            # DDP closes a bucket when it holds at least the capacity, we before it would hold more.
            assert len(theirs) <= least <= len(mine) == len(plan_buckets(parameters, capacity))
            assert (len(theirs) > 1) == (capacity == KIB), "one bucket for all, and several"


def test_weighted_loss_all_reduces_one_float64(logs):
    for rank in WORLD:
        (entry,) = logs.section("weighted_loss").of(rank)
        assert (entry.op, entry.numel, entry.dtype) == ("all_reduce", 1, "float64")
