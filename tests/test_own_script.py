"""What a training script of one's own does with these classes: it works, or a sentence says why not."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import collectives, launch
from lib.data_parallel import BucketedDataParallel, NaiveDataParallel, OverlappedDataParallel
from lib.moe import ExpertParallelMoE, MoE
from lib.recompute import recompute
from lib.tensor_parallel import ColumnParallelLinear
from lib.zero import FSDP, PrefetchingFSDP, Zero1, Zero2

WRAPPERS = (NaiveDataParallel, BucketedDataParallel, OverlappedDataParallel)
sgd = lambda groups: torch.optim.SGD(groups, lr=0.1)
SHARDERS = {
    "Zero1": lambda model: Zero1(model.parameters(), sgd),
    "Zero2": lambda model: Zero2(model.parameters(), sgd),
    "FSDP": lambda model: FSDP(model, [model[0]]),
    "PrefetchingFSDP": lambda model: PrefetchingFSDP(model, [model[0]]),
}
EACH = {kind.__name__: kind for kind in WRAPPERS} | SHARDERS


def said(act):
    """What the error of act() says, or "" if there is none."""
    try:
        act()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def expert_layer():
    torch.manual_seed(dist.get_rank())
    return ExpertParallelMoE(MoE(3, [nn.Linear(3, 3) for _ in range(4)]))


def shards_that_differ():
    own, _ = collectives.node_groups(1)  # a group of this rank alone
    moe, columns = nn.Sequential(expert_layer()), nn.Sequential(ColumnParallelLinear(nn.Linear(3, 4)))
    before = [p.detach().clone() for p in moe.parameters()]
    seen = {name: (said(lambda: make(moe)), said(lambda: make(columns))) for name, make in EACH.items()}  # noqa: B023
    untouched = all(torch.equal(p, b) for p, b in zip(moe.parameters(), before, strict=True))
    return seen, untouched, said(lambda: OverlappedDataParallel(moe[0].experts, own))


def test_no_wrapper_overwrites_experts_or_shards_with_those_of_another_rank():
    for seen, untouched, over_same_experts in launch.run(shards_that_differ, nproc=2, backend="gloo"):
        assert untouched and over_same_experts == ""
        for name, both in seen.items():
            for text in both:
                assert text.startswith("ValueError") and "is sharded over ranks [0, 1]" in text, name
                assert "moe.reduce_gradients" in text and "collectives.node_groups" in text


def sparse_gradients():
    def step(make):
        model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
        wrapper = make(model)
        model(torch.tensor([0, 4])).sum().backward()
        wrapper.average_gradients()

    return {name: said(lambda: step(make)) for name, make in EACH.items()}  # noqa: B023


def test_sparse_gradients_are_refused_with_the_setting_that_makes_them():
    for seen in launch.run(sparse_gradients, nproc=2, backend="gloo"):
        for name, text in seen.items():
            assert "a (5, 3) parameter is sparse" in text and "without sparse=True" in text, name


def one_layer_in_two_recomputed_blocks():
    def step(make, through):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3))
        wrapper = make(model)
        x = torch.full((2, 3), 1.0 + dist.get_rank())
        through(model, through(model, x)).sum().backward()
        wrapper.average_gradients()
        return [p.grad for p in getattr(wrapper, "shards", model.parameters())]

    plainly, again = lambda f, x: f(x), recompute
    equal = {}
    for name in ("NaiveDataParallel", "BucketedDataParallel", "Zero1"):
        pairs = zip(step(EACH[name], again), step(EACH[name], plainly), strict=True)
        equal[name] = all(torch.allclose(a, b) for a, b in pairs)
    # Last, because what has been sent in the background belongs to no step.
    refused = {
        "OverlappedDataParallel": OverlappedDataParallel,
        "Zero2": lambda m: Zero2(m.parameters(), sgd, dist.new_group()),
    }
    texts = {name: said(lambda: step(make, again)) for name, make in refused.items()}  # noqa: B023
    return texts, equal


def test_a_layer_in_two_recomputed_blocks_is_refused_by_its_cause_or_averaged():
    for texts, equal in launch.run(one_layer_in_two_recomputed_blocks, nproc=2, backend="gloo"):
        assert all("used several times inside of recomputed blocks" in text for text in texts.values())
        assert "use BucketedDataParallel" in texts["OverlappedDataParallel"] and "use Zero1" in texts["Zero2"]
        assert all(equal.values()), equal


def what_stays_alive():
    alive = {}
    for name, make in EACH.items():
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        wrapper = make(model)
        model(torch.ones(2, 3)).sum().backward()
        wrapper.average_gradients()
        there = weakref.ref(wrapper), weakref.ref(model[0].weight)
        del wrapper, model
        gc.collect()
        alive[name] = [ref() is not None for ref in there]
    return alive


def test_wrappers_and_their_models_are_freed():
    for alive in launch.run(what_stays_alive, nproc=2, backend="gloo"):
        assert alive == {name: [False, False] for name in EACH}


@pytest.mark.parametrize("autocast", [False, True])
def test_experts_in_bfloat16_behind_a_router_in_float32(autocast):
    torch.manual_seed(0)
    layer, x = MoE(8, [nn.Linear(8, 8) for _ in range(4)], factor=4.0), torch.randn(16, 8)
    want = layer(x)
    if autocast:
        with torch.autocast("cpu", torch.bfloat16):
            got = layer(x)
    else:
        layer.experts.bfloat16()
        got = layer(x.bfloat16())
        assert got.dtype == torch.bfloat16 and layer.router.weight.dtype == torch.float32
    got.float().square().sum().backward()
    assert (got.float() - want).norm() < 0.02 * want.norm()
    assert all(p.grad.dtype == p.dtype and p.grad.isfinite().all() for p in layer.parameters())
