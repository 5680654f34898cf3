"""A script's own models under FSDP: units of every kind, what else goes around a step, and
FSDP as a module."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from own_models import (
    CNN,
    PLAIN,
    Llama,
    adamw,
    alone,
    batch_of,
    far,
    gradients_alone,
    in_bfloat16,
    on_two_ranks,
    pictures,
    recomputed,
    relative,
    said,
    seeded,
    share,
    text,
    train,
)  # fmt: skip
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from lib import collectives
from lib.training.clip import clip_gradients
from lib.zero import FSDP, FSDPModule, MasterShards, PrefetchingFSDP

KINDS = {"FSDP": FSDP, "PrefetchingFSDP": PrefetchingFSDP}
blocks = lambda model: list(model.layers)
halves = lambda model: [part for layer in model.layers for part in (layer.self_attn, layer.mlp)]
convolutions = lambda model: [model.stem, model.body]
last = lambda model: model.to(memory_format=torch.channels_last)


def by_checkpoint(reentrant=False):
    """What a layer is called through, as Llama's `checkpoint`."""
    return lambda layer, x, positions: checkpoint(
        lambda x: layer(x, position_embeddings=positions), x, use_reentrant=reentrant
    )


def without_early_stop(layer, x, positions):
    with set_checkpoint_early_stop(False):
        return by_checkpoint()(layer, x, positions)


def compiled(model):
    model.compile(backend="aot_eager")
    return model


def compiled_layers(model):
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    return model


def compiled_mlps(model):
    for layer in model.layers:
        layer.mlp.compile(backend="aot_eager")
    return model


def saved_mlps(model):
    for layer in model.layers:
        layer.mlp.forward = functools.partial(checkpoint, layer.mlp.forward, use_reentrant=False)
    return model


def first_again():
    """The last of three layers is the first one."""
    model = Llama()
    model.layers = nn.ModuleList([model.layers[0], model.layers[1], model.layers[0]])
    return model


def only_queries():
    """Frozen but for one matrix of each layer, as a low-rank adapter leaves it."""
    model = Llama()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    return model


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.rnn = nn.LSTM(16, 16, 2, batch_first=True)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def fsdp(
    kind,
    make,
    units=blocks,
    loss=text,
    prepare=PLAIN,
    call=PLAIN,
    optimizer=adamw,
    like=None,
    **more,
):
    model = prepare(seeded(make, dist.get_rank()))
    wrapper = kind(model, units(model))
    train(model, call(wrapper), wrapper.average_gradients, optimizer(wrapper.groups), loss, **more)
    with wrapper.unsharded():
        got = {
            name.replace("module.", ""): p.detach().clone() for name, p in model.named_parameters()
        }
    return far(got, alone(like or make, loss, **more))


PROGRAMS = {
    "llama": (Llama,),
    "cnn": (CNN, convolutions, pictures),
    "cnn, channels_last": (CNN, convolutions, pictures, last),
    "halves of blocks": (Llama, halves),
    "no units": (Llama, lambda model: []),
    "lstm": (LSTM, lambda model: [model.rnn]),
    "frozen": (only_queries,),
    "a layer twice": (first_again, lambda model: list(model.layers)[:2]),
    "a layer twice, a unit twice": (first_again,),
    "torch's checkpoint": (functools.partial(Llama, checkpoint=by_checkpoint()),),
    "torch's checkpoint, reentrant": (functools.partial(Llama, checkpoint=by_checkpoint(True)),),
    "torch's checkpoint, without its early stop": (
        functools.partial(Llama, checkpoint=without_early_stop),
    ),
    "torch's checkpoint of a part of a unit": (Llama, blocks, text, saved_mlps),
    "recomputed units": (Llama, blocks, text, recomputed),
}


one_layer = functools.partial(Llama, n_layers=1)  # for the compiler, which takes a while for each
COMPILED = {
    "model": (one_layer, blocks, text, compiled),
    "units": (one_layer, blocks, text, compiled_layers),
    "parts of units": (one_layer, blocks, text, compiled_mlps),
    "wrapper": (
        one_layer,
        blocks,
        text,
        PLAIN,
        lambda wrapper: torch.compile(wrapper, backend="aot_eager"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_one_process(name, kind):
    assert max(on_two_ranks(fsdp, KINDS[kind], *PROGRAMS[name])) < 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_as_one_process(name):
    assert max(on_two_ranks(fsdp, PrefetchingFSDP, *COMPILED[name])) < 5e-6


def under_autocast(kind, prepare=PLAIN):
    """Gradients of one step, from the shards' lines."""
    model = prepare(seeded(Llama))
    wrapper = kind(model, blocks(model))
    with in_bfloat16():
        loss = text(wrapper, share(batch_of(text)))
    loss.backward()
    wrapper.average_gradients()
    names, got = {p: name.replace("module.", "") for name, p in model.named_parameters()}, {}
    for flat in wrapper.flats:
        line = collectives.all_gather(flat.shard.grad)[: flat.n]
        for parameter, slot in zip(
            flat.parameters, line.split([s.numel() for s in flat.slots]), strict=True
        ):
            got[names[parameter]] = slot
    want, wide = gradients_alone(Llama, text, in_bfloat16), gradients_alone(Llama, text)
    flat_of = lambda gradients: {name: g.flatten() for name, g in gradients.items()}
    return relative(got, flat_of(want)), relative(flat_of(want), flat_of(wide))


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [PLAIN, recomputed])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_is_as_near_to_one_process_under_autocast_as_that_is_to_float32(kind, prepare):
    for off, rounding in on_two_ranks(under_autocast, KINDS[kind], prepare):
        assert off < rounding < 3e-2


def between_steps(kind):
    """Forwards that no backward follows, one under inference_mode; accumulation; a second
    model by turns."""
    found = {}
    model = seeded(Llama)
    wrapper = kind(model, blocks(model))
    optimizer = adamw(wrapper.groups)
    for i in range(3):
        with torch.inference_mode() if i % 2 else torch.no_grad():
            text(wrapper, batch_of(text))
        text(wrapper, share(batch_of(text)))  # and one with a graph, dropped
        train_on = [x.split(2) for x in share(batch_of(text))]
        for piece in zip(*train_on, strict=True):
            (text(wrapper, piece) / 2).backward()
            wrapper.average_gradients()
        optimizer.step()
        optimizer.zero_grad()
    with wrapper.unsharded():
        found["accumulated"] = far(dict(model.named_parameters()), alone(Llama, text))

    make = lambda n_in, n_out: nn.Sequential(nn.Linear(n_in, 8), nn.ReLU(), nn.Linear(8, n_out))
    noise, real = torch.linspace(-1, 1, 32).view(8, 4), torch.linspace(0, 1, 64).view(8, 8)

    def adversaries(generator, critic, averages, steps, noise, real):
        for _ in range(2):
            fake = generator(noise)
            (critic(fake.detach()).mean() - critic(real).mean()).backward()
            averages[1]()
            steps[1].step()
            steps[1].zero_grad()
            (-critic(fake).mean()).backward()
            for average in averages:
                average()
            steps[0].step()
            for step in steps:
                step.zero_grad()

    models = seeded(lambda: (make(4, 8), make(8, 1)))
    wrappers = [kind(model, [model[0]]) for model in models]
    steps = [torch.optim.SGD(w.groups, lr=0.1) for w in wrappers]
    adversaries(*wrappers, [w.average_gradients for w in wrappers], steps, *share((noise, real)))
    ones = seeded(lambda: (make(4, 8), make(8, 1)))
    adversaries(
        *ones,
        [lambda: None] * 2,
        [torch.optim.SGD(m.parameters(), lr=0.1) for m in ones],
        noise,
        real,
    )
    for name, model, wrapper, one in zip(
        ["generator", "critic"], models, wrappers, ones, strict=True
    ):
        with wrapper.unsharded():
            found[name] = far(dict(model.named_parameters()), dict(one.named_parameters()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_stray_forwards_accumulation_and_two_models_by_turns(kind):
    for found in on_two_ranks(between_steps, KINDS[kind]):
        assert all(off < 5e-6 for off in found.values()), found


class Branches(nn.Module):
    """Rank 0 goes one way, rank 1 the other."""

    def __init__(self):
        super().__init__()
        self.ways, self.head = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(sum(way(x) * (i == dist.get_rank()) for i, way in enumerate(self.ways)))


def unused_branch():
    model = seeded(Branches)
    wrapper = FSDP(model, list(model.ways))
    wrapper(torch.ones(2, 8)).sum().backward()
    wrapper.average_gradients()
    return all(shard.grad.isfinite().all() for shard in wrapper.shards)


def masters_of_bfloat16():
    with_masters = lambda groups: MasterShards(groups, adamw)
    return fsdp(FSDP, Llama, prepare=lambda model: model.bfloat16(), optimizer=with_masters)


def saved_with_torch(folder):
    """torch's distributed checkpoint of the full state, and a plain file, both loaded
    without a wrapper."""
    model = seeded(Llama)
    wrapper = PrefetchingFSDP(model, blocks(model))
    with wrapper.unsharded() as full:
        state = {name: tensor.clone() for name, tensor in full.state_dict().items()}
    dcp.save({"model": state}, checkpoint_id=folder / "dcp")
    torch.save(state, folder / f"{dist.get_rank()}.pt")
    other = {"model": seeded(Llama, 7).state_dict()}
    dcp.load(other, checkpoint_id=folder / "dcp")
    one = seeded(Llama).state_dict()
    return far(other["model"], one), far(torch.load(folder / f"{dist.get_rank()}.pt"), one)


@pytest.mark.slow
def test_unused_branches_masters_and_torchs_checkpoints(tmp_path):
    assert on_two_ranks(unused_branch) == [True, True]
    assert max(on_two_ranks(masters_of_bfloat16)) < 3e-2
    assert on_two_ranks(saved_with_torch, tmp_path) == [(0.0, 0.0)] * 2


def against_fully_shard():
    """fully_shard in float32 for five steps, next to ours: the losses and norms of both."""
    from torch.distributed.fsdp import fully_shard

    ours, theirs = seeded(Llama), seeded(Llama)
    wrapper = PrefetchingFSDP(ours, blocks(ours))
    for layer in theirs.layers:
        fully_shard(layer)
    fully_shard(theirs)
    optimizers, worst = [adamw(wrapper.groups), adamw(theirs.parameters())], 0.0
    for _ in range(5):
        a, b = (text(model, share(batch_of(text))) for model in (wrapper, theirs))
        a.backward()
        b.backward()
        wrapper.average_gradients()
        norm = clip_gradients(wrapper.shards, 1.0, [None])
        other = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0).full_tensor()
        worst = max(worst, abs(a.item() - b.item()), abs(float(norm) - other.item()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return worst


@pytest.mark.slow
def test_five_steps_of_a_llama_are_those_of_fully_shard():
    assert max(on_two_ranks(against_fully_shard)) < 5e-6


# What cannot be right is refused.


def mlp():
    return seeded(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)))


def refusals(kind):
    def second_derivative():
        model = mlp()
        wrapper = kind(model, [model[0], model[2]])
        x = torch.ones(2, 6, requires_grad=True)
        try:
            torch.autograd.grad(wrapper(x).square().sum(), x, create_graph=True)
        finally:
            getattr(wrapper, "finish_communication", lambda: None)()  # gathers in the background

    def moved(change):
        model = mlp()
        wrapper = FSDPModule(model, [model[0]])
        change(wrapper)

    def optimizer_of_a_script():
        class Plain(torch.optim.Optimizer):
            def step(self):
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.data -= group["lr"] * parameter.grad

        model = mlp()
        # before wrapping, as many scripts have it
        optimizer = Plain(model.parameters(), {"lr": 0.1})
        wrapper = kind(model, [model[0]])
        wrapper(torch.ones(2, 6)).sum().backward()
        wrapper.average_gradients()
        optimizer.step()

    def on_meta():
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(6, 6))
        kind(model, [model[0]])

    return {
        "second derivative": said(second_derivative),
        "to": said(moved, lambda wrapper: wrapper.to(torch.float64)),
        "half": said(moved, lambda wrapper: wrapper.half()),
        "optimizer": said(optimizer_of_a_script),
        "meta": said(on_meta),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_what_shards_cannot_do_is_said(kind):
    for texts in on_two_ranks(refusals, KINDS[kind]):
        assert "cannot be differentiated twice" in texts["second derivative"], texts
        assert "before it is wrapped" in texts["to"] and "before it is wrapped" in texts["half"]
        assert "this optimizer would train nothing: give it x.groups" in texts["optimizer"]
        assert "to_empty" in texts["meta"]
