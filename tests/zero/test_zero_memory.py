"""Bytes of model state on a rank, counted from live storages, are the formula's; units and
gradients come and go."""

import itertools
import time
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from sweeps import sweep
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from zero_cases import STAGES

from lib import collectives, launch
from lib.cost.zero import rank_state, rank_state_bytes
from lib.measuring.paced import PacedLayer
from lib.training.model import GPT, Shape
from lib.zero import (
    FSDP,
    MasterShards,
    OffloadedOptimizer,
    PeakBytes,
    Zero2,
    live_bytes,
    padded_size,
    start_counting,
)
from lib.zero.zero2 import MAX_IN_FLIGHT

SHAPE = Shape(vocab_size=64, seq_len=8, n_layers=3, hidden=64, n_heads=2)  # 154,688 parameters
GROUPS = [(0,), (0, 1), (0, 1, 2, 3)]
STAGE = {"data parallel": 0, "zero1": 1, "zero2": 2, "fsdp": 3, "prefetching": 3}
PRECISIONS = ["fp32", "mixed", "bf16"]
STATES = sweep(
    itertools.product(STAGE, PRECISIONS, GROUPS),
    always=[(stage, "mixed", GROUPS[-1]) for stage in STAGE],
)


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.01, foreach=False)


def build(stage, precision, group):
    """(model, sharded, optimizer), sharded None for data parallelism."""
    net = GPT(SHAPE).to(torch.float32 if precision == "fp32" else torch.bfloat16)
    outer = (lambda groups: MasterShards(groups, adamw)) if precision == "mixed" else adamw
    if stage == "data parallel":
        return net, None, outer([{"params": list(net.parameters())}])
    if stage in ("zero1", "zero2"):
        sharded = STAGES[stage](net.parameters(), outer, group, capacity=100_000)
        return net, sharded, sharded
    sharded = STAGES[stage](net, net.blocks, group)
    return net, sharded, outer(sharded.groups)


def model_state(stage, precision, group):
    """(bytes between backward and the step, bytes after it): of the second step, when all
    state is there."""
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    before = live_bytes()
    net, sharded, optimizer = build(stage, precision, group)
    for _ in range(2):
        loss = net.loss(tokens[:, 1:], tokens[:, :-1])
        loss.backward()
        del loss
        # ZeRO-1's gradients are whole until they are averaged; the others' at no time.
        whole = live_bytes() - before if stage in ("data parallel", "zero1") else 0
        if sharded is not None:
            sharded.average_gradients()
        with_gradients = whole or live_bytes() - before
        optimizer.step()
        optimizer.zero_grad()
    return with_gradients, live_bytes() - before


def every_model_state():
    rank = dist.get_rank()
    group_of = {m: dist.new_group(m) if len(m) < dist.get_world_size() else None for m in GROUPS}
    return {
        (stage, precision, members): model_state(stage, precision, group_of[members])
        for stage, precision, members in STATES
        if rank in members
    }


# --- units and gradients, step by step ------------------------------------------------------------

LAYERS, NUMBERS = 12, 1001  # padded to 1004 on 4 ranks
WHOLE = padded_size(NUMBERS, 4) * 8  # bytes of a layer in float64


class Seen(NamedTuple):
    """At one place of a step."""

    where: str
    whole: int  # units whose whole has memory
    nbytes: int  # of all live tensors, beyond what is there between steps


def paced_model(slow=0.0):
    """Twelve layers of 1001 numbers each, activations of 2; the seconds give the
    communication thread time."""
    return nn.Sequential(*(PacedLayer(NUMBERS, slow, slow) for _ in range(LAYERS))).double()


def watch(net, note):
    """note(where) before and after each layer, forward and backward."""
    for i, layer in enumerate(net):
        layer.register_forward_pre_hook(lambda *_, i=i: note(f"before forward {i}"))
        layer.register_forward_hook(lambda *_, i=i: note(f"after forward {i}"))
        layer.register_full_backward_pre_hook(lambda *_, i=i: note(f"before backward {i}"))
        layer.register_full_backward_hook(lambda *_, i=i: note(f"after backward {i}"))


def one_step(net, average, note):
    """Forward and backward, watched; x needs a gradient, so that the first layer's backward
    has an end too."""
    x = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    net(x).sum().backward()
    note("after backward")
    average()
    note("averaged")


def units_over_a_step(stage):
    """[Seen, ...] of the second step of SGD, which keeps no state."""
    net = paced_model(slow=0.002)
    fsdp = STAGES[stage](net, net)
    seen, between = [], 0

    def note(where):
        allocated = sum(flat.full.untyped_storage().nbytes() > 0 for flat in fsdp.flats)
        seen.append(Seen(where, allocated, live_bytes() - between))

    watch(net, note)
    for _ in range(2):
        for shard in fsdp.shards:
            shard.grad = None
        seen.clear()
        between = live_bytes()
        one_step(net, fsdp.average_gradients, note)
    return seen


def slow_reduce_scatter(line, group):
    """A link that is slower than backward."""
    time.sleep(0.01)
    return collectives.reduce_scatter(line, group)


def gradients_over_a_step():
    """[Seen, ...] of ZeRO-2 with a layer per flat, over a slow link."""
    net = paced_model()
    zero = Zero2(net.parameters(), adamw, capacity=NUMBERS * 8, reduce_scatter=slow_reduce_scatter)
    seen, between = [], live_bytes()
    watch(net, lambda where: seen.append(Seen(where, 0, live_bytes() - between)))
    one_step(
        net,
        zero.average_gradients,
        lambda where: seen.append(Seen(where, 0, live_bytes() - between)),
    )
    return seen


def peak(who, look=live_bytes):
    """The most that look() sees at any place of the second step, AdamW and all."""
    before, places = look(), []
    net = nn.Sequential(*(nn.Linear(100, 100) for _ in range(8)))
    if who == "fully_shard":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in net:
            fully_shard(layer, mesh=mesh)
        sharded, optimizer = None, adamw(fully_shard(net, mesh=mesh).parameters())
    else:
        sharded = STAGES[who](net, net)
        optimizer = adamw(sharded.groups)
    watch(net, lambda where: places.append(look() - before))
    for _ in range(2):
        places.clear()
        net(torch.ones(1, 100, requires_grad=True)).sum().backward()
        if sharded is not None:
            sharded.average_gradients()
        optimizer.step()
        optimizer.zero_grad()
    return max(places)


def peaks():
    """{who: bytes}, of our FSDP and torch's."""
    # what it imports when first used need not be searched each time
    peak("fully_shard", look=lambda: 0)
    start_counting()
    return {who: peak(who) for who in ("prefetching", "fully_shard")}


def offloaded():
    """Does any state share memory with the shards? And the bytes of the device that are left."""
    net, seen = GPT(SHAPE), {}
    zero = Zero2(net.parameters(), lambda groups: OffloadedOptimizer(groups, adamw))
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    net.loss(tokens[:, 1:], tokens[:, :-1]).backward()
    zero.average_gradients()
    zero.step()
    on_device = {s.untyped_storage().data_ptr() for s in zero.shards}
    state = [x for s in zero.optimizer.optimizer.state.values() for x in s.values()]
    seen["apart"] = all(
        x.untyped_storage().data_ptr() not in on_device for x in [*zero.optimizer.masters, *state]
    )
    seen["on the CPU"] = {x.device.type for x in [*zero.optimizer.masters, *state]} == {"cpu"}
    seen["gradients left"] = [s for s in zero.shards if s.grad is not None]
    return seen


class ReduceFirst(FSDP):
    """Gradients are sent before the weights are freed, as many descriptions have it."""

    def after_backward(self, index):
        self.units[index].reduce_gradients()
        self.units[index].reshard()


def true_peak(kind):
    """(units of WHOLE bytes at most in backward beyond shards, after which operation), of SGD."""
    net = paced_model()
    fsdp = kind(net, net)
    tensors = [*fsdp.shards, *(flat.full for flat in fsdp.flats)]
    before = sum(shard.nbytes for shard in fsdp.shards)
    with PeakBytes(tensors) as seen:
        net(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        fsdp.average_gradients()
    return (seen.nbytes - before) / WHOLE, seen.where


def everything():
    start_counting()
    return {
        "state": every_model_state(),
        "units": {stage: units_over_a_step(stage) for stage in ("fsdp", "prefetching")},
        "gradients": gradients_over_a_step(),
        "offloaded": offloaded(),
        "peaks": peaks(),
        "true peaks": {kind.__name__: true_peak(kind) for kind in (FSDP, ReduceFirst)},
    }


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=600, ledger=False)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_model_state_is_the_formula_s_within_1_percent(results, state):
    stage, precision, members = state
    expected = rank_state_bytes(GPT(SHAPE).num_parameters(), STAGE[stage], len(members), precision)
    for member in members:
        counted, _ = results[member]["state"][state]
        assert counted == pytest.approx(expected, rel=0.01), (member, counted / expected)


@pytest.mark.parametrize("stage", STAGE)
def test_between_steps_no_gradients_are_left(results, stage):
    psi = GPT(SHAPE).num_parameters()
    for members in [members for *at, members in STATES if at == [stage, "mixed"]]:
        _, counted = results[members[0]]["state"][stage, "mixed", members]
        state = rank_state(psi, STAGE[stage], len(members))
        assert counted == pytest.approx(state.total - state.gradient, rel=0.01), members


@pytest.mark.parametrize(("stage", "most"), [("fsdp", 1), ("prefetching", 2)])
def test_never_more_units_are_whole_than_allowed(results, stage, most):
    for rank in range(4):
        seen = results[rank]["units"][stage]
        assert len(seen) == 4 * LAYERS + 2
        assert max(s.whole for s in seen) == most, "and so many are"
        assert all(s.whole >= 1 for s in seen if s.where.startswith("before forward"))
        assert seen[-1].whole == 0


@pytest.mark.parametrize(("stage", "most"), [("fsdp", 1), ("prefetching", 2)])
def test_all_live_bytes_agree_weights_of_the_units_and_gradients_of_as_many(results, stage, most):
    """In forward nothing else is made. In backward a unit's gradients, on their way the unit's
    before, and shards'."""
    slack = 4096  # activations of 2 numbers, losses
    for rank in range(4):
        for s in results[rank]["units"][stage]:
            shards = LAYERS * WHOLE / 4 if "forward" not in s.where else 0
            # a line, and the ring's two buffers
            on_the_way = WHOLE + 2 * WHOLE / 4 if most == 2 else 0
            gradients = 2 * WHOLE + on_the_way + shards if "forward" not in s.where else 0
            assert s.nbytes <= most * WHOLE + gradients + slack, s
        assert max(s.nbytes for s in results[rank]["units"][stage]) < LAYERS * WHOLE, (
            "not even the weights, once"
        )
        assert results[rank]["units"][stage][-1].nbytes == pytest.approx(
            LAYERS * WHOLE / 4, rel=0.1
        )


def test_zero2_never_holds_the_whole_gradient_even_over_a_slow_link(results):
    for rank in range(4):
        seen = results[rank]["gradients"]
        shards = LAYERS * WHOLE / 4
        # A layer's gradient, twice while autograd hands it over; lines under way, the one being
        # sent with two buffers.
        most = max(s.nbytes for s in seen)
        assert most <= (2 + MAX_IN_FLIGHT + 2 / 4) * WHOLE + shards + 4096 < LAYERS * WHOLE
        assert most > 2 * WHOLE, "some were under way"
        assert seen[-1].nbytes == pytest.approx(shards, rel=0.1)


def test_the_peak_is_not_above_that_of_torch_s_fully_shard(results):
    """Counted between layers. Our ring's two buffers may be among it; those of theirs lie
    in gloo, uncounted."""
    buffers = 2 * padded_size(100 * 100 + 100, 4) * 4 / 4
    for rank in range(4):
        peaks = results[rank]["peaks"]
        assert peaks["prefetching"] <= peaks["fully_shard"] + buffers
        assert peaks["fully_shard"] < 8 * 10_100 * 16, "theirs is sharded too"


def test_the_peak_is_where_the_flat_buffer_of_the_gradients_is_allocated(results):
    """Weights, gradients and buffer are three times the unit, unless the weights are freed first.
    On top come the sharded gradients of the units that are done, and little activations."""
    for rank in range(4):
        seen = results[rank]["true peaks"]
        done = (LAYERS - 1) / 4
        first, where = seen["ReduceFirst"]
        assert first == pytest.approx(3 + done, abs=0.1) and "new_zeros" in where
        second, _ = seen["FSDP"]
        assert 2 + done - 0.1 <= second <= 2 + done + 0.6


def test_peak_bytes_sees_what_is_alive_for_one_operation_and_memory_that_was_resized():
    x = torch.zeros(1000)
    with PeakBytes([x]) as seen:
        y = x + 1  # 8000 bytes
        del y
        x.untyped_storage().resize_(0)
        z = torch.ones(10)
        assert seen.alive() == z.nbytes
        (z * 2).sum()
    assert seen.nbytes == 8000 and seen.where == "aten.add.Tensor"
    assert seen.alive() == z.nbytes


def test_offloaded_masters_and_state_lie_apart_on_the_cpu(results):
    for rank in range(4):
        assert results[rank]["offloaded"] == {
            "apart": True,
            "on the CPU": True,
            "gradients left": [],
        }


def test_live_bytes_counts_a_storage_once_and_gradients_too():
    before = live_bytes()
    x = torch.zeros(1000, dtype=torch.float64, requires_grad=True)
    y = x.detach()[10:20]
    assert live_bytes() - before == 8000
    x.sum().backward()
    x.grad = x.grad.clone()
    assert live_bytes() - before == 16000 and live_bytes(besides=[y]) - before == 8000
    x.grad = None
    y.untyped_storage().resize_(0)
    assert live_bytes() == before
