"""What a training script of one's own does with these classes: it works, or a
sentence says why not."""

import copy
import dataclasses
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import collectives, launch
from lib.collectives import p2p
from lib.data_parallel import BucketedDataParallel, NaiveDataParallel, OverlappedDataParallel
from lib.moe import ExpertParallelMoE, MoE
from lib.tensor_parallel import ColumnParallelLinear
from lib.training.clip import clip_gradients
from lib.training.recompute import recompute
from lib.zero import FSDP, FSDPModule, PrefetchingFSDP, Zero1, Zero2

WRAPPERS = (NaiveDataParallel, BucketedDataParallel, OverlappedDataParallel)
sgd = lambda groups: torch.optim.SGD(groups, lr=0.1)
SHARDERS = {
    "Zero1": lambda model: Zero1(model.parameters(), sgd),
    "Zero2": lambda model: Zero2(model.parameters(), sgd),
    "FSDP": lambda model: FSDP(model, [model[0]]),
    "PrefetchingFSDP": lambda model: PrefetchingFSDP(model, [model[0]]),
}
EACH = {kind.__name__: kind for kind in WRAPPERS} | SHARDERS


def said(act, *args):
    """What the error of act(*args) says, or "" if there is none."""
    try:
        act(*args)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def settle(wrapper):
    """Wait for what a refused step has sent in the background, or the next message
    would meet it."""
    for work in [
        *getattr(wrapper, "works", []),
        *(work for _, work in getattr(wrapper, "in_flight", [])),
    ]:
        work.wait()


def expert_layer():
    torch.manual_seed(dist.get_rank())
    return ExpertParallelMoE(MoE(3, [nn.Linear(3, 3) for _ in range(4)]))


def shards_that_differ():
    own, _ = collectives.node_groups(1)  # a group of this rank alone
    moe, columns = (
        nn.Sequential(expert_layer()),
        nn.Sequential(ColumnParallelLinear(nn.Linear(3, 4))),
    )
    before = [p.detach().clone() for p in moe.parameters()]
    seen = {name: (said(make, moe), said(make, columns)) for name, make in EACH.items()}
    untouched = all(torch.equal(p, b) for p, b in zip(moe.parameters(), before, strict=True))
    return seen, untouched, said(lambda: OverlappedDataParallel(moe[0].experts, own))


def test_no_wrapper_overwrites_experts_or_shards_with_those_of_another_rank():
    for seen, untouched, over_same_experts in launch.run(
        shards_that_differ, nproc=2, backend="gloo"
    ):
        assert untouched and over_same_experts == ""
        for name, both in seen.items():
            for text in both:
                assert text.startswith("ValueError") and "is sharded over ranks [0, 1]" in text, (
                    name
                )
                assert "moe.reduce_gradients" in text and "collectives.node_groups" in text


def sparse_gradients():
    def step(make):
        model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
        wrapper = make(model)
        model(torch.tensor([0, 4])).sum().backward()
        wrapper.average_gradients()

    return {name: said(step, make) for name, make in EACH.items()}


def test_sparse_gradients_are_refused_with_the_setting_that_makes_them():
    for seen in launch.run(sparse_gradients, nproc=2, backend="gloo"):
        for name, text in seen.items():
            assert "a (5, 3) parameter is sparse" in text and "without sparse=True" in text, name


def one_layer_in_two_recomputed_blocks():
    def step(name, through):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3))
        wrapper = EACH[name](model)
        x = torch.full((2, 3), 1.0 + dist.get_rank())
        try:
            through(model, through(model, x)).sum().backward()
        except RuntimeError:
            settle(wrapper)
            raise
        wrapper.average_gradients()
        return [p.grad for p in getattr(wrapper, "shards", model.parameters())]

    plainly, again = lambda f, x: f(x), recompute
    texts = {name: said(step, name, again) for name in ("OverlappedDataParallel", "Zero2")}
    equal = {}
    for name in ("NaiveDataParallel", "BucketedDataParallel", "Zero1"):
        pairs = zip(step(name, again), step(name, plainly), strict=True)
        equal[name] = all(torch.allclose(a, b) for a, b in pairs)
    return texts, equal


def test_a_layer_in_two_recomputed_blocks_is_refused_by_its_cause_or_averaged():
    for texts, equal in launch.run(one_layer_in_two_recomputed_blocks, nproc=2, backend="gloo"):
        assert all(
            "used several times inside of recomputed blocks" in text for text in texts.values()
        )
        assert (
            "use BucketedDataParallel" in texts["OverlappedDataParallel"]
            and "use Zero1" in texts["Zero2"]
        )
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


def post_by_hand():
    other = 1 - dist.get_rank()
    p2p.post([(torch.ones(2), other)], [(torch.ones(2), other)]).wait()


def test_the_ledger_names_what_the_script_called_and_not_what_keeps_it_out_of_compiled_graphs():
    log = launch.capture(post_by_hand, nproc=2, backend="gloo").ledger
    assert {(e.op, e.via) for e in log.of(0)} == {("send", "p2p.post"), ("recv", "p2p.post")}


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


# Shards, where a script treats the model as any other.


def traps():
    said_by = {}
    for name, make in SHARDERS.items():
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        model[1].bias.requires_grad_(False)
        wrapper = make(model)
        theirs = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        wrapper.average_gradients()
        said_by[name] = {
            "step": said(theirs.step),
            "clip": said(torch.nn.utils.clip_grad_norm_, model.parameters(), 1.0),
            "ours": said(clip_gradients, model.parameters(), 1.0),
            "zero_grad": said(theirs.zero_grad) or said(model.zero_grad),
            "state_dict": said(model.state_dict) if "FSDP" in name else None,
            "load": said(model.load_state_dict, {}) if "FSDP" in name else None,
        }
    return said_by


def unfrozen():
    """What is said to a parameter that is unfrozen after wrapping: its gradient would stay
    on its own rank."""
    texts = {}
    for name, make in SHARDERS.items():
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        model[1].bias.requires_grad_(False)
        wrapper = make(model)
        model[1].bias.requires_grad_()
        texts[name] = said(
            lambda: (model(torch.ones(2, 3)).sum().backward(), wrapper.average_gradients())  # noqa: B023
        )
        settle(wrapper)
    return texts


def test_a_parameter_that_is_unfrozen_after_wrapping_is_refused():
    for texts in launch.run(unfrozen, nproc=2, backend="gloo"):
        assert all(
            "has been unfrozen" in text and "wrap the model then" in text for text in texts.values()
        ), texts


def test_what_would_do_nothing_in_silence_says_what_to_do_instead():
    for said_by in launch.run(traps, nproc=2, backend="gloo"):
        for name, texts in said_by.items():
            assert "this optimizer would train nothing: give it x.groups" in texts["step"], name
            assert "clip_gradients(x.shards, max_norm, [group])" in texts["clip"], name
            assert "nothing would be clipped" in texts["ours"] and texts["zero_grad"] == "", name
            if "FSDP" in name:
                assert "inside of `with fsdp.unsharded():`" in texts["state_dict"], name
                assert "inside of `with fsdp.unsharded():`" in texts["load"], name


def loaded_after_wrapping(name):
    torch.manual_seed(1)
    pretrained = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    wrapper = SHARDERS[name](model)
    if "FSDP" in name:
        with wrapper.unsharded() as full:
            full.load_state_dict(pretrained.state_dict())
        with wrapper.unsharded() as full:
            saved = {n: x.clone() for n, x in full.state_dict().items()}
    else:
        model.load_state_dict(pretrained.state_dict())
        wrapper.step()  # without gradients: what it gathers are the shards
        saved = model.state_dict()
    return all(torch.equal(x, pretrained.state_dict()[n]) for n, x in saved.items())


def test_pretrained_weights_can_be_loaded_after_wrapping():
    for results in launch.run(
        lambda: [loaded_after_wrapping(name) for name in SHARDERS], nproc=2, backend="gloo"
    ):
        assert all(results)


def schedules():
    rates = {}
    for kind in (Zero1, Zero2):
        model = nn.Linear(3, 2)
        zero = kind(model.parameters(), lambda groups: torch.optim.AdamW(groups, lr=1.0))
        schedule = torch.optim.lr_scheduler.StepLR(zero, step_size=1, gamma=0.5)
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            zero.average_gradients()
            zero.step()
            schedule.step()
            zero.zero_grad()
        state, before = (
            copy.deepcopy(zero.state_dict()),
            [p.detach().clone() for p in model.parameters()],
        )
        model(torch.ones(1, 3)).sum().backward()
        zero.average_gradients()
        zero.step()
        after = [p.detach().clone() for p in model.parameters()]
        zero.zero_grad()
        with torch.no_grad():
            for p, x in zip(model.parameters(), before, strict=True):
                p.copy_(x)
        zero.load_state_dict(state)
        model(torch.ones(1, 3)).sum().backward()
        zero.average_gradients()
        zero.step()
        same = all(torch.equal(p, x) for p, x in zip(model.parameters(), after, strict=True))
        rates[kind.__name__] = zero.param_groups[0]["lr"], len(zero.state), same
    return rates


def test_schedulers_and_state_dicts_take_zero_as_any_optimizer():
    for rates in launch.run(schedules, nproc=2, backend="gloo"):
        assert rates == {"Zero1": (0.25, 1, True), "Zero2": (0.25, 1, True)}


# FSDP as a module.


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x, scale=None):
        return x + self.linear(self.norm(x)) * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.layers = nn.ModuleList(Block(8) for _ in range(3))
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, scale=torch.ones(8))
        return self.head(x)


def losses_and_norms(kind, policy, steps=3):
    torch.manual_seed(0)
    net, (rank, N) = Net(), (dist.get_rank(), dist.get_world_size())
    if kind == "theirs":
        from torch.distributed.fsdp import fully_shard

        # given to a unit, it is of the unit's output
        inside = dataclasses.replace(policy, output_dtype=None)
        for layer in net.layers:
            fully_shard(layer, mp_policy=inside)
        model = fully_shard(net, mp_policy=policy)
        clip, average = (
            lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor(),
            lambda: None,
        )
    else:
        model = FSDPModule(net, net.layers, policy=policy)
        clip, average = lambda: model.clip_grad_norm_(0.5), model.average_gradients
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    tokens = torch.arange(44).reshape(4, 11).remainder(11).chunk(N)[rank]
    for _ in range(steps):
        y = model(tokens)
        loss = nn.functional.cross_entropy(y.float().flatten(0, 1), tokens.roll(1, 1).flatten())
        loss.backward()
        average()
        seen.append((loss.item(), float(clip()), y.dtype))
        optimizer.step()
        optimizer.zero_grad()
    return seen


def against_fully_shard():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    bf16, fp32 = torch.bfloat16, torch.float32
    policies = [
        MixedPrecisionPolicy(),
        MixedPrecisionPolicy(param_dtype=bf16),
        MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32, output_dtype=fp32),
    ]
    return [[losses_and_norms(kind, policy) for kind in ("ours", "theirs")] for policy in policies]


def test_a_policy_means_what_it_means_to_fully_shard():
    for runs in launch.run(against_fully_shard, nproc=2, backend="gloo"):
        for ours, theirs in runs:
            for (loss, norm, dtype), (their_loss, their_norm, their_dtype) in zip(
                ours, theirs, strict=True
            ):
                assert dtype == their_dtype
                assert loss == pytest.approx(their_loss, rel=1e-5) and norm == pytest.approx(
                    their_norm, rel=1e-3
                )


def as_a_module():
    torch.manual_seed(0)
    net = Net()
    before = {n: x.clone() for n, x in net.state_dict().items()}
    model = FSDPModule(net, net.layers)
    state, n_sharded = model.state_dict(), sum(p.numel() for p in model.parameters())
    same = state.keys() == before.keys() and all(
        torch.equal(x, before[n]) for n, x in state.items()
    )
    model.load_state_dict({n: x + 1 for n, x in state.items()})
    moved = all(torch.equal(x, before[n] + 1) for n, x in model.state_dict().items())
    model.eval()
    return (
        same,
        moved,
        n_sharded,
        sum(p.numel() for p in Net().parameters()),
        net.training,
        said(model.bfloat16),
    )


def test_the_module_has_a_full_state_dict_and_this_rank_s_shards_as_parameters():
    for same, moved, n_sharded, n, training, refused in launch.run(
        as_a_module, nproc=2, backend="gloo"
    ):
        assert same and moved and n / 2 <= n_sharded < n / 2 + 8 and not training
        assert "before it is wrapped" in refused


@pytest.mark.slow
def test_compiled_models_have_the_parameters_of_plain_ones():
    """FSDP units, tensor parallelism and expert-parallel layers: the compiler breaks its graph at
    their messages."""

    def grads(make, compiled):
        torch.manual_seed(0)
        model, average = make()
        run = torch.compile(model, backend="aot_eager") if compiled else model
        run(torch.linspace(-1, 1, 24).view(4, 6)).square().sum().backward()
        return average(model)

    def fsdp():
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        wrapper = PrefetchingFSDP(model, [model[0], model[2]])
        return model, lambda _: (wrapper.average_gradients(), [s.grad for s in wrapper.shards])[1]

    def columns():
        return nn.Sequential(ColumnParallelLinear(nn.Linear(6, 4))), lambda m: [
            p.grad for p in m.parameters()
        ]

    def experts():
        moe = ExpertParallelMoE(MoE(6, [nn.Linear(6, 6) for _ in range(4)]))
        return moe, lambda m: [p.grad for p in m.parameters()]

    def on_ranks():
        return [
            all(
                torch.allclose(a, b, atol=1e-6)
                for a, b in zip(grads(make, True), grads(make, False), strict=True)
            )
            for make in (fsdp, columns, experts)
        ]

    assert launch.run(on_ranks, nproc=2, backend="gloo", timeout=300) == [[True, True, True]] * 2
