"""A script's own models under the data-parallel wrappers, ZeRO-1 and ZeRO-2, with what else
such a script uses."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from own_models import (
    CNN,
    PLAIN,
    Llama,
    adamw,
    alone,
    batch_of,
    far,
    in_bfloat16,
    on_two_ranks,
    one_layer_thrice,
    pictures,
    seeded,
    share,
    text,
    train,
)  # fmt: skip
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib import data_parallel
from lib.data_parallel import BucketedDataParallel, NaiveDataParallel, OverlappedDataParallel
from lib.training.clip import clip_gradients
from lib.training.precision import MasterWeights
from lib.training.recompute import recompute
from lib.zero import Muon, Zero1, Zero2

through_torch = lambda layer, x, positions: checkpoint(
    lambda x: layer(x, position_embeddings=positions), x, use_reentrant=False
)
through_lib = lambda layer, x, positions: recompute(
    lambda x: layer(x, position_embeddings=positions), x
)
by_name = lambda layer, x, positions: recompute(
    lambda x, cos, sin: layer(x, None, (cos, sin)), x, *positions
)


def eager(model):
    """Compiled without code for a processor: graphs, guards and breaks, but nothing to wait for."""
    return torch.compile(model, backend="aot_eager")


def compiled_inside(model):
    model.compile(backend="aot_eager")
    return model


def wrapped(kind, make, loss, prepare=PLAIN, call=PLAIN, like=None, **more):
    """As data parallelism trains: each rank makes its own weights, rank 0's count."""
    model = prepare(seeded(make, dist.get_rank()))
    wrapper = kind(model)
    got = train(
        model, call(wrapper), wrapper.average_gradients, adamw(model.parameters()), loss, **more
    )
    return far(got, alone(like or make, loss, **more))


def sharded(kind, make, loss, prepare=PLAIN, call=PLAIN, optimizer=adamw, **more):
    model = prepare(seeded(make, dist.get_rank()))
    zero = kind(model.parameters(), optimizer)
    return far(
        train(model, call(model), zero.average_gradients, zero, loss, **more),
        alone(make, loss, optimizer=optimizer, **more),
    )


class Complex(nn.Module):
    """Complex parameters, one without a dimension, and buffers of dtypes that hold no gradient."""

    def __init__(self):
        super().__init__()
        self.filter, self.scale = (
            nn.Parameter(torch.randn(8, dtype=torch.cfloat)),
            nn.Parameter(torch.tensor(1.0)),
        )
        self.linear = nn.Linear(8 * 3 * 8, 10)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("few", torch.empty(0, dtype=torch.int8))

    def forward(self, x):
        return self.linear((x * self.filter).abs().flatten(1) * self.scale)


last = lambda model: model.to(memory_format=torch.channels_last)
saved, saved_by_lib, saved_by_name = (
    functools.partial(Llama, checkpoint=how) for how in (through_torch, through_lib, by_name)
)
one_layer = functools.partial(Llama, n_layers=1)  # for the compiler, which takes a while for each
WRAPPED = {
    "cnn": (OverlappedDataParallel, CNN, pictures),
    "cnn, bucketed": (BucketedDataParallel, CNN, pictures),
    "cnn, naive": (NaiveDataParallel, CNN, pictures),
    "cnn, channels_last": (OverlappedDataParallel, CNN, pictures, last),
    "complex": (OverlappedDataParallel, Complex, pictures),
    "llama": (OverlappedDataParallel, Llama, text),
    "llama, compiled inside": (OverlappedDataParallel, one_layer, text, compiled_inside),
    "llama, compiled around": (OverlappedDataParallel, one_layer, text, PLAIN, eager),
    "llama, torch's checkpoint": (OverlappedDataParallel, saved, text),
    "llama, recompute": (OverlappedDataParallel, saved_by_lib, text),
    "llama, recompute of several tensors": (BucketedDataParallel, saved_by_name, text),
    "llama, one layer thrice": (OverlappedDataParallel, one_layer_thrice, text),
    "llama, one layer thrice, recomputed": (
        BucketedDataParallel, functools.partial(one_layer_thrice, checkpoint=through_lib), text
    ),
}  # fmt: skip
CAST = {
    "llama": (OverlappedDataParallel, Llama, text),
    "llama, recompute": (OverlappedDataParallel, saved_by_lib, text),
    "llama, recompute, naive": (NaiveDataParallel, saved_by_name, text),
    "cnn": (BucketedDataParallel, CNN, pictures),
}
SHARDED = {
    "zero1, llama": (Zero1, Llama, text),
    "zero2, llama": (Zero2, Llama, text),
    "zero1, cnn": (Zero1, CNN, pictures),
    "zero2, cnn, channels_last": (Zero2, CNN, pictures, last),
    "zero1, recompute": (Zero1, functools.partial(one_layer_thrice, checkpoint=through_lib), text),
    "zero2, compiled": (Zero2, one_layer, text, PLAIN, eager),
    "zero1, compiled before": (Zero1, one_layer, text, compiled_inside),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped(name):
    assert max(on_two_ranks(wrapped, *WRAPPED[name])) < 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", CAST)
def test_wrapped_under_autocast(name):
    """Half batches round otherwise than the full one. AdamW turns the sign of a gradient near 0
    into a step of 1e-2."""
    assert max(on_two_ranks(functools.partial(wrapped, cast=in_bfloat16), *CAST[name])) < 3.1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDED)
def test_sharded(name):
    assert max(on_two_ranks(sharded, *SHARDED[name])) < 5e-6


def other_ways():
    """What a script does around its step, each against one process."""
    found, rank = {}, dist.get_rank()
    want = alone(Llama, text)

    model = seeded(Llama, rank)
    wrapper, optimizer = OverlappedDataParallel(model), adamw(model.parameters())
    for _ in range(3):
        pieces = [x.split(2) for x in share(batch_of(text))]
        microbatches = list(zip(*pieces, strict=True))
        data_parallel.accumulate(wrapper, microbatches, [1] * len(microbatches), text)
        optimizer.step()
        optimizer.zero_grad()
    found["accumulate"] = far(dict(model.named_parameters()), want)

    def clipped(model, call, average, clip, batch):
        optimizer = adamw(model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for _ in range(3):
            text(call, batch).backward()
            average()
            clip(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return {name: p.detach() for name, p in model.named_parameters()}

    model = seeded(Llama)
    wrapper = OverlappedDataParallel(model)
    clip = lambda parameters, most: clip_gradients(parameters, most, [])
    got = clipped(model, wrapper, wrapper.average_gradients, clip, share(batch_of(text)))
    model = seeded(Llama)
    one = clipped(model, model, lambda: None, torch.nn.utils.clip_grad_norm_, batch_of(text))
    found["clip and schedule"] = far(got, one)

    model = seeded(Llama)
    layers = [p for p in model.layers.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if all(p is not other for other in layers)]
    muon, zero1 = (
        Muon(layers, lr=0.02, momentum=0.95, weight_decay=0.1, dtype=torch.bfloat16),
        Zero1(rest, adamw),
    )
    step = lambda: (muon.step(), zero1.step())
    both = type(
        "Both", (), {"step": staticmethod(step), "zero_grad": staticmethod(zero1.zero_grad)}
    )
    got = train(model, model, zero1.average_gradients, both, text)
    if hasattr(torch.optim, "Muon"):
        model = seeded(Llama)
        layers = [p for p in model.layers.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters() if all(p is not other for other in layers)]
        pair = [torch.optim.Muon(layers, lr=0.02, momentum=0.95, weight_decay=0.1), adamw(rest)]
        for _ in range(3):
            text(model, batch_of(text)).backward()
            for optimizer in pair:
                optimizer.step()
                optimizer.zero_grad()
        # in bfloat16
        found["muon"] = far(got, {name: p.detach() for name, p in model.named_parameters()}) / 100
    return found


@pytest.mark.slow
def test_accumulation_clipping_schedules_and_muon():
    for found in on_two_ranks(other_ways):
        assert all(off < 5e-5 for off in found.values()), found


def batch_norm():
    """Running averages are each rank's own until `broadcast_buffers`."""
    model = seeded(lambda: CNN(nn.BatchNorm2d), dist.get_rank())
    wrapper = OverlappedDataParallel(model)
    train(model, wrapper, wrapper.average_gradients, adamw(model.parameters()), pictures)
    data_parallel.broadcast_buffers(model)
    sums = torch.tensor([x.double().sum() for x in model.state_dict().values()])
    other = sums.clone()
    dist.broadcast(other, 0)
    return torch.equal(sums, other)


def masters():
    """A bfloat16 model with masters stays as near to float32 as its rounding."""
    model = seeded(Llama).bfloat16()
    wrapper, optimizer = OverlappedDataParallel(model), MasterWeights(model.parameters(), adamw)
    average = lambda: (wrapper.average_gradients(), optimizer.grads_to_master())
    return far(train(model, wrapper, average, optimizer, text), alone(Llama, text))


def second_order():
    """A gradient penalty: the wrapper's hooks leave autograd's graph as it is."""
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    wrapper = OverlappedDataParallel(model)
    x = torch.linspace(-1, 1, 64).view(8, 8)
    penalty = lambda model, x: (
        torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].square().sum(-1).mean()
    )
    penalty(wrapper, share((x,))[0].clone().requires_grad_()).backward()
    wrapper.average_gradients()
    other = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    penalty(other, x.clone().requires_grad_()).backward()
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((p.grad - q.grad).abs().max().item() for p, q in pairs if q.grad is not None)


def replaced_optimizers():
    """Adafactor looks at matrices, SGD with Nesterov's momentum does not; both run, the
    second is as alone."""
    nesterov = lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    fused = lambda groups: torch.optim.AdamW(groups, lr=1e-2, foreach=True)
    return max(sharded(Zero2, CNN, pictures, optimizer=make) for make in (nesterov, fused))


@pytest.mark.slow
def test_batch_norm_masters_gradient_penalties_and_other_optimizers():
    assert on_two_ranks(batch_norm) == [True, True]
    assert max(on_two_ranks(masters)) < 3e-2
    assert max(on_two_ranks(second_order)) < 1e-7
    assert max(on_two_ranks(replaced_optimizers)) < 5e-6


def ordinary_again():
    """After Zero1: a copy that is trained by itself, and the model once its wrapper is gone."""
    model = seeded(Llama)
    wrapper = Zero1(model.parameters(), adamw)
    with torch.no_grad():
        text(model, batch_of(text))
    off = far(train(model, model, wrapper.average_gradients, wrapper, text), alone(Llama, text))

    def clipped_norm(model):
        text(model, batch_of(text)).backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()

    copied = copy.deepcopy(model)
    norms = [clipped_norm(copied)]
    adamw(copied.parameters()).step()
    moved = far(dict(copied.named_parameters()), dict(model.named_parameters())) > 0
    del wrapper
    return off, [*norms, clipped_norm(model)], moved


@pytest.mark.slow
def test_a_copy_of_a_sharded_model_and_a_model_whose_wrapper_is_gone_are_ordinary_models():
    for off, (copied, own), moved in on_two_ranks(ordinary_again):
        assert off < 5e-6 and copied == pytest.approx(own) and own > 0 and moved
