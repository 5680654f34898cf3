"""What Lab 4 trains and measures on ranks: a small GPT under any stage of ZeRO. The class that
implements the stage is an argument, so that a student's class can be measured as well as lib's.

    train               losses, and the elements of optimizer state on a rank
    gradient_bytes      live bytes of gradients, as backward goes from block to block
    unit_events         when each unit is unsharded and resharded
    difference_from_one the parameters after three steps, compared with those of a single process
    peak_of_a_step      the most bytes that are alive after any operation
    volume_of_a_step    a step of k micro-batches, whose messages the ledger logs
    state_parts         live bytes of weights, gradients and optimizer state
    over_a_step         live bytes inside every block, and at the end of each part of a step
    paced_forward       a forward pass whose layers wait instead of computing, over a slow link
    in_16_bits          16-bit shards, with masters on the device or on the host
    offload_seconds     an optimizer step whose state is in the host's memory, behind a slow bus
    kept_and_operations what a step with recomputation keeps, and what it computes

These functions run on each rank, except for kept_and_operations, which runs in a single process.
Unless a docstring says otherwise, make(model) returns the wrapped model, a Zero1, Zero2 or FSDP;
None stands for the plain model. A Sharded is a class such as zero.FSDP. psi is the number of
parameters, and N the number of ranks.
"""

import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib import collectives, ledger, zero
from lib.collectives.slow_link import slow_link
from lib.data_parallel import reduce_bucket
from lib.measuring.errors import error
from lib.measuring.paced import PacedLayer, Spans
from lib.training import text as texts
from lib.training.model import GPT, Shape
from lib.zero import PeakBytes, live_bytes, start_counting

SHAPE = Shape(vocab_size=104, seq_len=32, n_layers=4, hidden=64, n_heads=4)
PSI = GPT(SHAPE).num_parameters()
CAPACITY = 60_000  # bytes of a flat buffer
text = texts.load()


def batch(step=0, rank=0, world_size=1, batch_size=8):
    """Tokens and targets of a rank's share of a step's batch, (B/N, T) each."""
    return texts.batch(text.train, step, rank, world_size, batch_size, SHAPE.seq_len)


def tiny(step, rank, world_size):
    """One sequence of four characters per rank, so that activations take almost no memory."""
    return texts.batch(text.train, step, rank, world_size, world_size, 4)


def adamw(parameters):
    """AdamW with a large eps. With the usual 1e-8, an element whose gradient is almost zero takes a
    full step in the direction of its rounding error, so that two correct runs drift apart."""
    return torch.optim.AdamW(parameters, lr=3e-3, eps=1e-3, foreach=False)


def optimizer_of(model, sharded):
    """The optimizer that goes with `sharded`, the wrapped model or None. A Zero1 or Zero2 is an
    optimizer itself."""
    if sharded is None:
        return adamw(model.parameters())
    return adamw(sharded.groups) if isinstance(sharded, zero.FSDP) else sharded


def mean_over_ranks(loss):
    return collectives.all_reduce(loss.detach().reshape(1) / dist.get_world_size()).item()


def state_bytes():
    """Bytes of all live tensors on this rank, except the text."""
    return live_bytes(besides=[text.train])


def train(make, steps):
    """(losses, averaged over the ranks; elements of optimizer state on this rank). make(parameters,
    adamw) returns a Zero1. If make is None, this is plain data parallelism, which puts all
    gradients into one bucket and sums it with a ring all-reduce."""
    model, rank, N, losses = GPT(SHAPE), dist.get_rank(), dist.get_world_size(), []
    sharded = make(model.parameters(), adamw) if make else None
    optimizer = sharded.optimizer if make else adamw(model.parameters())
    for step in range(steps):
        ledger.mark(f"step {step}")
        loss = model.loss(*batch(step, rank, N))
        loss.backward()
        if sharded:
            sharded.average_gradients()
            sharded.step()
        else:
            reduce_bucket(list(model.parameters()), all_reduce=collectives.ring_all_reduce)
            optimizer.step()
        optimizer.zero_grad()
        ledger.mark("")
        losses.append(mean_over_ranks(loss))
    return losses, sum(v.numel() for s in optimizer.state.values() for v in s.values() if v.dim())


def gradient_bytes(make):
    """[live bytes of gradients after each block's backward pass], the last block first. The
    ledger's section "backward" contains the messages of the backward pass. make: a class such as
    Zero1 or Zero2."""
    start_counting()
    model, seen = GPT(SHAPE), []
    sharded = make(model.parameters(), adamw, capacity=CAPACITY)
    for block in model.blocks:
        block.register_full_backward_hook(lambda *_: seen.append(state_bytes() - before))
    loss = model.loss(*tiny(0, dist.get_rank(), dist.get_world_size()))
    before = state_bytes()
    ledger.mark("backward")
    loss.backward()
    ledger.mark("")
    sharded.average_gradients()
    return seen


def unit_events(Sharded, Unit):
    """[(sequence number, "unshard" or "reshard", index of the unit)] of one step's forward and
    backward, in order. The root's index is None. An unshard is noted when the unit allocates its
    memory, and again when it sets is_unsharded to True. Unit: the class of the units of Sharded."""
    index_of, events = {}, []

    class NotingUnit(Unit):
        def allocate(self):
            super().allocate()
            self.note("unshard")

        def __setattr__(self, name, value):  # unshard and reshard set is_unsharded
            super().__setattr__(name, value)
            if name == "is_unsharded":
                self.note("unshard" if value else "reshard")

        def note(self, what):
            if self in index_of:
                events.append((len(events), what, index_of[self]))

    class Noting(Sharded):
        unit_type = NotingUnit

    model = GPT(SHAPE)
    fsdp = Noting(model, model.blocks)
    index_of |= {fsdp.root: None, **{unit: i for i, unit in enumerate(fsdp.units)}}
    model.loss(*batch(0, dist.get_rank(), dist.get_world_size())).backward()
    fsdp.average_gradients()
    return events


def difference_from_one(Sharded):
    """The largest difference of any parameter from a single-process baseline on the full batch,
    after three steps in float64, relative to the largest parameter."""
    rank, N = dist.get_rank(), dist.get_world_size()
    model, one = GPT(SHAPE).double(), GPT(SHAPE).double()
    fsdp = Sharded(model, model.blocks)
    optimizer, alone = adamw(fsdp.groups), adamw(one.parameters())
    for step in range(3):
        model.loss(*batch(step, rank, N, 12)).backward()
        fsdp.average_gradients()
        one.loss(*batch(step, batch_size=12)).backward()
        for each in (optimizer, alone):
            each.step()
            each.zero_grad()
    with fsdp.unsharded():
        return error(*(torch.cat([p.flatten() for p in net.parameters()]) for net in (model, one)))


def peak_of_a_step(Sharded):
    """(the most bytes that are alive after any operation of the second step, before the update; the
    name of that operation). The bytes include activations, but only those of four characters."""
    model, rank, N = GPT(SHAPE), dist.get_rank(), dist.get_world_size()
    fsdp = Sharded(model, model.blocks)
    optimizer = adamw(fsdp.groups)
    for step in range(2):
        state = [v for s in optimizer.state.values() for v in s.values()]
        with PeakBytes([*fsdp.shards, *(flat.full for flat in fsdp.flats), *state]) as peak:
            model.loss(*tiny(step, rank, N)).backward()
            fsdp.average_gradients()
        optimizer.step()
        optimizer.zero_grad()
    return peak.nbytes, peak.where


def volume_of_a_step(make, k):
    """Run a step of k micro-batches, whose messages the ledger logs in its section "k = ...".
    Returns (psi with padding, the root unit's part of it or 0). Zero1 averages the gradients once
    per step, and the others after every micro-batch, because they keep no full gradients."""
    model, rank, N = GPT(SHAPE), dist.get_rank(), dist.get_world_size()
    sharded = make(model)
    optimizer = optimizer_of(model, sharded)
    once = type(sharded) is zero.Zero1  # a Zero2 may be derived from it
    ledger.mark(f"k = {k}")
    for i in range(k):
        (model.loss(*batch(i, rank, N)) / k).backward()
        if not once or i == k - 1:
            sharded.average_gradients()
    optimizer.step()
    ledger.mark("")
    root = sum(flat.padded for flat in sharded.root.flats) if isinstance(sharded, zero.FSDP) else 0
    return sum(flat.padded for flat in sharded.flats), root


def state_parts(make, gradients_stay):
    """{"weight", "gradient", "optimizer": live bytes} on this rank in fp32. gradients_stay: True
    for stages 0 and 1, where the full gradients remain after backward. They are therefore counted
    before they are averaged."""
    start_counting()
    model, rank, N = GPT(SHAPE), dist.get_rank(), dist.get_world_size()
    sharded = make(model) if make else None
    optimizer = optimizer_of(model, sharded)
    weight = state_bytes()
    for step in range(2):
        model.loss(*tiny(step, rank, N)).backward()
        full = state_bytes()
        if sharded:
            sharded.average_gradients()
        gradient = full if gradients_stay else state_bytes()
        optimizer.step()
        optimizer.zero_grad()
    after = state_bytes()
    return {"weight": weight, "gradient": gradient - after, "optimizer": after - weight}


def nothing_in_flight(sharded):
    """Wait until no communication of `sharded` is in flight, so that every run counts the same
    bytes."""
    pairs = [*getattr(sharded, "in_flight", ()), *getattr(sharded, "reduce_scatters", ())]
    gathers = [work for of in getattr(sharded, "gathers", {}).values() for work in of]
    for work in [work for _, work in pairs] + gathers:
        work.ended.wait()


def over_a_step(make):
    """[(where, live bytes)] of the second step on this rank: inside every block (after its MLP in
    forward, and after its first norm in backward), after backward, after averaging, and after the
    update."""
    start_counting()
    model, rank, N, seen = GPT(SHAPE), dist.get_rank(), dist.get_world_size(), []
    sharded = make(model) if make else None
    optimizer = optimizer_of(model, sharded)

    def look(where):
        nothing_in_flight(sharded)
        seen.append((where, state_bytes()))

    for step in range(2):
        if step:
            for i, block in enumerate(model.blocks):
                block.mlp.register_forward_hook(lambda *_, i=i: look(f"forward {i}"))
                block.norm1.register_full_backward_hook(lambda *_, i=i: look(f"backward {i}"))
        model.loss(*tiny(step, rank, N)).backward()
        look("end")
        if sharded:
            sharded.average_gradients()
        look("averaged")
        optimizer.step()
        optimizer.zero_grad()
        look("step")
    return seen[3:]


class _Layer(PacedLayer):
    """A PacedLayer that records when its forward runs."""

    def forward(self, x):
        with self.spans("compute", f"forward {self.place}"):
            return super().forward(x)


def paced_forward(Sharded, rows=1, seconds=0.03):
    """(seconds, [(lane, begin, end, label), ...]) of a forward pass of `rows` rows through eight
    layers that wait `seconds` per row. The link has 10 MB/s and a latency of 1 ms, so that on two
    ranks the all-gather of a layer takes 20 ms."""
    spans, gathers = Spans(), iter(range(100))
    net = nn.Sequential(*(_Layer(95_000, seconds, seconds) for _ in range(8)))
    for place, layer in enumerate(net):
        layer.spans, layer.place = spans, place

    def all_gather(shard, group, **out):
        with spans("wire", f"gather {next(gathers)}"):
            return collectives.all_gather(shard, group, **out)

    sharded = Sharded(net, net, all_gather=all_gather)
    with torch.no_grad(), slow_link(1, 0.001, 10e6):
        dist.barrier()
        begin = time.monotonic()
        sharded(torch.ones(rows, 1))
        return time.monotonic() - begin, [(lane, b, e, what) for _, lane, what, b, e in spans]


def paced_forwards(ways, n):
    """[{name: what paced_forward returns}, ...], one dict for each of n rounds. ways: {name: the
    arguments of `paced_forward`}."""
    return [{name: paced_forward(*way) for name, way in ways.items()} for _ in range(n)]


def in_16_bits(make):
    """(loss, bytes of shards and gradients, bytes of masters and optimizer state) of the second
    step with 16-bit FSDP. The bytes are divided by psi/N, the parameters in a rank's share. make:
    zero.MasterShards or zero.OffloadedOptimizer."""
    model, rank, N = GPT(SHAPE).bfloat16(), dist.get_rank(), dist.get_world_size()
    fsdp = zero.FSDP(model, model.blocks)
    optimizer = make(fsdp.groups, adamw)
    for step in range(2):
        optimizer.zero_grad()
        loss = model.loss(*batch(step, rank, N))
        loss.backward()
        fsdp.average_gradients()
        on_device = sum(s.nbytes + s.grad.nbytes for s in fsdp.shards)
        optimizer.step()
    masters = [m for g in optimizer.param_groups for m in g["params"]]
    state = [v for m in masters for v in optimizer.optimizer.state[m].values() if v.dim()]
    off_device = sum(t.nbytes for t in (*masters, *state))
    return loss.item(), on_device * N / PSI, off_device * N / PSI


def with_dropout(checkpointed=None):
    """The GPT with dropout. checkpointed(block, x) -> y, if given, is called instead of each block,
    so that it can recompute the block's activations in backward."""
    model = GPT(replace(SHAPE, dropout=0.1))
    if checkpointed:
        model.blocks = nn.ModuleList(_Checkpointed(block, checkpointed) for block in model.blocks)
    return model


def with_each(ways):
    """{name: the GPT with dropout, whose blocks are called in that way}, all with equal weights.
    ways: {name: checkpointed, see `with_dropout`}."""
    models = {name: with_dropout(way) for name, way in ways.items()}
    first = next(iter(models.values())).parameters()
    weights = [p.detach().clone() for p in first]
    for model in models.values():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.data.copy_(weight)
    return models


def same_gradients(models):
    """Are the gradients of all models equal, bit for bit?"""
    first, *others = [[p.grad for p in model.parameters()] for model in models.values()]
    return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


class _Checkpointed(nn.Module):
    """A block that is called through `call`."""

    def __init__(self, block, call):
        super().__init__()
        self.block, self.call = block, call

    def forward(self, x):
        return self.call(self.block, x)


def kept_and_operations(model):
    """Run forward and backward, and return (bytes kept between the two, floating-point operations
    of the matmuls in both). Afterwards the parameters have their gradients."""
    model.zero_grad()
    torch.manual_seed(1)
    with PeakBytes() as memory, FlopCounterMode(display=False) as operations:
        loss = model.loss(*batch())
        kept = memory.alive()
        loss.backward()
    return kept, operations.get_total_flops()


class OverASlowBus(zero.OffloadedOptimizer):
    """An OffloadedOptimizer whose copies to the host and back take as long as they would over a bus
    of `host` bytes per second."""

    host = 2e6

    def step(self) -> None:
        """Copy the gradients to the host, update there, and copy the weights back."""
        nbytes = sum(s.grad.nbytes for s in self.shards)
        time.sleep(nbytes / self.host)
        super().step()
        time.sleep(nbytes / self.host)


def offload_seconds(n):
    """[seconds of each of n optimizer steps over the slow bus], with 16-bit FSDP."""
    model, rank, N, seconds = GPT(SHAPE).bfloat16(), dist.get_rank(), dist.get_world_size(), []
    fsdp = zero.FSDP(model, model.blocks)
    optimizer = OverASlowBus(fsdp.groups, adamw)
    optimizer.shards = fsdp.shards
    for step in range(n + 1):  # the first one creates the state, and is not counted
        model.loss(*tiny(step, rank, N)).backward()
        fsdp.average_gradients()
        dist.barrier()
        begin = time.monotonic()
        optimizer.step()
        seconds.append(time.monotonic() - begin)
        optimizer.zero_grad()
    return seconds[1:]
