"""What the stages refuse, and how FSDP's units behave: order, ties, several inputs,
recomputation, evaluation."""

import pytest
import torch
import torch.distributed as dist
from replicas import share
from torch import nn
from zero_cases import SHAPE, STAGES, adamw, case_of

from lib import collectives, launch, ledger
from lib.training import model
from lib.training.precision import LossScaler
from lib.training.recompute import Recomputed
from lib.zero import FSDP, Flat, MasterShards, Unit, Zero1, Zero2

NAME = "gpt float64"


def said(fn, *args, **kwargs):
    try:
        fn(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def backward(net, step=0):
    case = case_of(NAME)
    case.loss(net, share(case.batch(step), dist.get_rank(), dist.get_world_size())).backward()


def refusals():
    seen, case = {}, case_of(NAME)
    zero = Zero1(case.build(0).parameters(), adamw)
    net = case.build(0)
    zero = Zero1(net.parameters(), adamw)
    backward(net)
    seen["step before averaging"] = said(zero.step)
    net = case.build(0)
    zero = Zero2(net.parameters(), adamw)
    backward(net)
    seen["second backward"] = said(backward, net)
    zero.average_gradients()

    net = case.build(0)
    fsdp = FSDP(net, net.blocks)
    seen["shape of a sharded parameter"] = tuple(net.blocks[0].mlp.up.weight.shape)
    seen["touched while sharded"] = said(
        net.blocks[0].mlp.up, torch.zeros(1, SHAPE.hidden, dtype=torch.float64)
    )
    net = case.build(0)
    seen["in no group"] = said(FSDP, net, net.blocks, parameters=list(net.parameters())[1:])
    return seen, len(fsdp.shards)


class TwoInputs(nn.Module):
    """A unit with a keyword and a nest as inputs, and a dict as output."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 4.0, dtype=torch.float64))

    def forward(self, x, *, more):
        return {"sum": self.weight * x + more[0], "label": "kept", "product": self.weight * more[1]}


class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.units = nn.ModuleList(TwoInputs() for _ in range(3))

    def forward(self, x):
        for unit in self.units:
            out = unit(x, more=(x.cos(), [x.sin()][0]))
            x = out["sum"] + out["product"]
            assert out["label"] == "kept"
        return x


def nests(stage):
    """The gradients' differences with inputs that are nests, and a unit that is called twice."""
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    off = []
    for forward in (
        lambda net, x: net(x),
        lambda net, x: net(net(x)),
        lambda net, x: net(x) + net(2 * x),
    ):
        one, net = Nest(), Nest()
        forward(one, rows).square().sum(1).mean().backward()
        fsdp = STAGES[stage](net, net.units)
        forward(net, rows.chunk(4)[dist.get_rank()]).square().sum(1).mean().backward()
        fsdp.average_gradients()
        want = [u.weight.grad for u in one.units]
        whole = [collectives.all_gather(flat.shard.grad)[: flat.n] for flat in fsdp.flats]
        pairs = zip(whole, want, strict=True)
        off.append(
            max(((got - right).abs().max() / right.abs().max()).item() for got, right in pairs)
        )
        assert not any(flat.full.untyped_storage().nbytes() for flat in fsdp.flats)
    return off


def recomputed(stage):
    """Shards' gradients with and without recomputation inside the units, and what
    the second sent."""
    grads = []
    for wrap in (lambda block: block, Recomputed):
        net = case_of(NAME).build(0)
        net.blocks = nn.ModuleList(wrap(block) for block in net.blocks)
        fsdp = STAGES[stage](net, net.blocks)
        ledger.mark(f"recomputed {stage} {wrap is Recomputed}")
        backward(net)
        fsdp.average_gradients()
        ledger.mark("")
        grads.append([shard.grad for shard in fsdp.shards])
    return [torch.equal(a, b) for a, b in zip(*grads, strict=True)]


def evaluation(stage):
    """Losses without a graph before and after a step, and while a training forward waits
    for its backward."""
    case = case_of(NAME)
    net, one = case.build(0), case.build(0)
    fsdp = STAGES[stage](net, net.blocks)
    step, alone = torch.optim.SGD(fsdp.groups, lr=0.1), torch.optim.SGD(one.parameters(), lr=0.1)
    seen, memory = [], []

    def evaluate():
        with torch.no_grad():
            seen.append(
                (case.loss(net, case.batch(5)) - case.loss(one, case.batch(5))).abs().item()
            )
        memory.append(sum(flat.full.untyped_storage().nbytes() for flat in fsdp.flats))

    evaluate()
    loss = case.loss(net, share(case.batch(0), dist.get_rank(), 4))
    if stage == "fsdp":  # a prefetching one uses the group now
        with torch.no_grad():
            seen.append(
                (case.loss(net, case.batch(5)) - case.loss(one, case.batch(5))).abs().item()
            )
    loss.backward()
    fsdp.average_gradients()
    step.step()
    case.loss(one, case.batch(0)).backward()
    alone.step()
    evaluate()
    return seen, memory


def order_of_events(stage):
    """What each place of a step does, as a list."""
    net = case_of(NAME).build(0)
    events = []

    def noted(name, fn):
        def call(tensor, group, **out):
            events.append(name)
            return fn(tensor, group, **out)

        return call

    fsdp = STAGES[stage](
        net, net.blocks,
        all_gather=noted("gather", collectives.all_gather),
        reduce_scatter=noted("reduce", collectives.reduce_scatter),
    )  # fmt: skip
    for i, block in enumerate(net.blocks):
        block.mlp.register_forward_pre_hook(lambda *_, i=i: events.append(f"forward {i}"))
        block.mlp.register_full_backward_hook(lambda *_, i=i: events.append(f"backward {i}"))
    backward(net)
    fsdp.average_gradients()
    return events


def scaled():
    """LossScaler around Zero2: an overflow on one rank skips the step on all, and
    the next one steps."""
    net = model.GPT(SHAPE).to(torch.bfloat16)
    zero = Zero2(net.parameters(), lambda groups: MasterShards(groups, adamw))
    scaler, stepped = LossScaler(scale=2.0**10), []
    before = [shard.detach().clone() for shard in zero.shards]
    for step in range(2):
        zero.zero_grad()
        case = case_of(NAME)
        tokens, targets = share(case.batch(0), dist.get_rank(), dist.get_world_size())
        loss = model.cross_entropy(net(tokens).float(), targets)
        if step == 0 and dist.get_rank() == 1:
            loss = loss * torch.inf
        scaler.scale_loss(loss).backward()
        zero.average_gradients()
        zero.optimizer.grads_to_master()
        stepped.append(scaler.step(zero))
        same = all(torch.equal(a, b) for a, b in zip(before, zero.shards, strict=True))
        stepped.append(same)
    return stepped


def flats():
    """A unit by hand."""
    parameters = [
        nn.Parameter(torch.full((2, 3), 1.0 + dist.get_rank())),
        nn.Parameter(torch.tensor(5.0)),
    ]
    flat = Flat(parameters)
    seen = {"n": (flat.n, flat.padded, tuple(flat.shard.shape)), "rank 0's": flat.full.tolist()}
    unit = Unit([flat])
    seen["sharded"] = (
        [tuple(p.shape) for p in parameters],
        flat.full.untyped_storage().nbytes(),
        unit.is_unsharded,
    )
    with torch.no_grad():
        flat.shard.add_(dist.get_rank())
    unit.unshard()
    seen["unsharded"] = [p.tolist() for p in parameters]
    (parameters[0].sum() * (1 + dist.get_rank())).backward()
    unit.reduce_gradients()
    seen["gradient"] = flat.shard.grad.tolist(), [p.grad for p in parameters]
    return seen


def everything():
    stages = ("fsdp", "prefetching")
    return {
        "refusals": refusals(),
        "nests": {stage: nests(stage) for stage in stages},
        "recomputed": {stage: recomputed(stage) for stage in stages},
        "evaluation": {stage: evaluation(stage) for stage in stages},
        "events": {stage: order_of_events(stage) for stage in stages},
        "scaled": scaled(),
        "flats": flats(),
    }


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, nproc=4, backend="gloo", timeout=600)


def test_what_is_refused_says_what_to_do(results):
    for seen in results:
        refused, n_shards = seen["refusals"]
        assert (
            "call average_gradients() between backward and step()"
            in refused["step before averaging"]
        )
        assert (
            "ZeRO-2 sends every micro-batch: call average_gradients() after each"
            in refused["second backward"]
        )
        assert (
            "embedding.token.weight is trained, but in no parameter group" in refused["in no group"]
        )
        assert n_shards == SHAPE.n_layers + 1


def test_a_sharded_parameter_is_empty_and_whoever_uses_it_meets_an_error(results):
    for seen in results:
        assert seen["refusals"][0]["shape of a sharded parameter"] == (0,)
        assert seen["refusals"][0]["touched while sharded"].startswith("RuntimeError")


@pytest.mark.parametrize("stage", ["fsdp", "prefetching"])
def test_nests_of_inputs_and_units_that_are_called_twice(results, stage):
    for seen in results:
        assert max(seen["nests"][stage]) < 1e-12


@pytest.mark.parametrize("stage", ["fsdp", "prefetching"])
def test_recomputed_units_have_the_same_bits_and_are_gathered_as_often(results, stage):
    for rank, seen in enumerate(results):
        assert all(seen["recomputed"][stage])
        sent = [
            results.ledger.section(f"recomputed {stage} {again}").sent("elements", rank)
            for again in (False, True)
        ]
        assert sent[0] == sent[1] > 0


@pytest.mark.parametrize("stage", ["fsdp", "prefetching"])
def test_an_evaluation_sees_the_new_weights_and_leaves_nothing_gathered(results, stage):
    for seen in results:
        off, memory = seen["evaluation"][stage]
        assert max(off) < 1e-12 and memory == [0, 0]


def test_fsdp_gathers_when_needed_and_prefetching_before(results):
    for seen in results:
        plain = seen["events"]["fsdp"]
        assert plain == [
            "gather", "gather", "forward 0", "gather", "forward 1", "gather", "forward 2", "gather",
            "backward 2", "reduce", "gather", "backward 1", "reduce", "gather", "backward 0",
            "reduce", "reduce",
        ]  # fmt: skip
        ahead = [event for event in seen["events"]["prefetching"] if event in ("gather", "reduce")]
        # root, 0, 1, 2; in backward 2 and 1 before anything is reduced, then in turns
        assert ahead == ["gather"] * 4 + [
            "gather",
            "gather",
            "reduce",
            "gather",
            "reduce",
            "reduce",
            "reduce",
        ]


def test_the_loss_scaler_skips_on_all_ranks_or_on_none(results):
    for seen in results:
        assert seen["scaled"] == [False, True, True, False]


def test_a_flat_and_a_unit_by_hand(results):
    for rank, seen in enumerate(results):
        flat = seen["flats"]
        assert flat["n"] == (7, 8, (2,))
        assert flat["rank 0's"] == [1.0] * 6 + [5.0, 0.0]
        assert flat["sharded"] == ([(0,), (0,)], 0, False)
        # each shard plus its rank
        assert flat["unsharded"] == [[[1.0, 1.0, 2.0], [2.0, 3.0, 3.0]], 8.0]
        mean = (1 + 2 + 3 + 4) / 4
        assert flat["gradient"] == ([mean, mean] if rank < 3 else [0.0, 0.0], [None, None])
