"""A script's own Llama and CNN in a pipeline: schedules, autocast around and inside of
stages, evaluation."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
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
    relative,
    said,
    seeded,
    text,
)  # fmt: skip
from torch import nn

from lib.launch import RankError
from lib.pipeline import Action, balance, gpipe, interleaved, one_f_one_b, v_shape, zb_h1, zb_v
from lib.pipeline.links import connect
from lib.pipeline.split import split_layers
from lib.pipeline.stage import Pipeline
from lib.training.recompute import Recomputed

loss_of = lambda y, targets: F.cross_entropy(y.float().flatten(0, 1), targets.flatten())
four = functools.partial(Llama, n_layers=4)


class Embed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.embed_tokens = model.embed_tokens

    def forward(self, tokens):
        return self.embed_tokens(tokens)


class Middle(nn.Module):
    def __init__(self, layer, model):
        super().__init__()
        self.layer = layer
        self.register_buffer("cos", model.cos)
        self.register_buffer("sin", model.sin)

    def forward(self, x):
        return self.layer(x, position_embeddings=(self.cos, self.sin))


class Head(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.norm, self.lm_head = model.norm, model.lm_head

    def forward(self, x):
        return self.lm_head(self.norm(x))


class Inside(nn.Module):
    """A stage that is under autocast by itself."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        with in_bfloat16():
            return self.module(x)


def stages_of(model, n):
    layers = [Embed(model), *(Middle(layer, model) for layer in model.layers), Head(model)]
    return split_layers(layers, balance([1.0] * len(layers), n))


def compiled(module):
    module.compile(backend="aot_eager")
    return module


def pipeline_of(model, v=1, placement=None, wrap=PLAIN):
    """(the pipeline, micro-batches, their targets) of four micro-batches of two rows."""
    tokens, targets = (x.chunk(4) for x in batch_of(text))
    stages = [wrap(stage) for stage in stages_of(model, dist.get_world_size() * v)]
    more = {"placement": placement} if placement else {}
    return Pipeline(stages, connect(), tokens, **more), tokens, targets


def own_parameters(pipeline, model):
    """{the model's name: parameter} of this rank's stages."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[p]: p
        for stage in pipeline.stages.values()
        for p in stage.module.parameters()
        if p in names
    }


def trained(schedule, v=1, placement=None, wrap=PLAIN, prepare=PLAIN):
    """Three steps, from those of one process; the loss before each by `evaluate`,
    from that of `run`."""
    model = prepare(seeded(four))
    pipeline, tokens, targets = pipeline_of(model, v, placement, wrap)
    own = own_parameters(pipeline, model)
    optimizer, losses = adamw(list(own.values())), [0.0]
    for _ in range(3):
        evaluated = pipeline.evaluate(tokens, targets, loss_of)
        loss = pipeline.run(schedule(2, 4), tokens, targets, loss_of)
        if loss is not None:
            losses.append(abs(loss.item() - evaluated.item()))
        optimizer.step()
        optimizer.zero_grad()
    want = alone(four, text)
    return far(own, {name: want[name] for name in own}), max(losses)


PROGRAMS = {
    "gpipe": (gpipe,),
    "1F1B": (one_f_one_b,),
    "ZB-H1": (zb_h1,),
    "interleaved": (functools.partial(interleaved, v=2), 2),
    "ZB-V": (zb_v, 2, v_shape),
    "ZB-H1, compiled stages": (zb_h1, 1, None, compiled),
    "1F1B, recomputed stages": (one_f_one_b, 1, None, Recomputed),
    "ZB-V, recomputed stages": (zb_v, 2, v_shape, Recomputed),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_one_process(name):
    for off, losses in on_two_ranks(trained, *PROGRAMS[name]):
        assert off < 5e-6 and losses < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1F1B", "ZB-H1", "ZB-V"])
def test_weights_in_bfloat16(name):
    bfloat16 = functools.partial(trained, prepare=lambda model: model.bfloat16())
    for off, losses in on_two_ranks(bfloat16, *PROGRAMS[name]):
        assert off < 6e-2 and losses < 1e-3


def under_autocast(schedule, around, v=1, placement=None, wrap=PLAIN):
    """How far this rank's gradients are from one process under autocast, and that from float32."""
    model = seeded(four)
    within = (lambda stage: wrap(stage)) if around else (lambda stage: wrap(Inside(stage)))
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        pipeline, tokens, targets = pipeline_of(model, v, placement, within)
        pipeline.run(schedule(2, 4), tokens, targets, loss_of)
    got = {name: p.grad for name, p in own_parameters(pipeline, model).items()}
    want, wide = gradients_alone(four, text, in_bfloat16), gradients_alone(four, text)
    own = lambda gradients: {name: gradients[name] for name in got}
    return relative(got, own(want)), relative(own(want), own(wide))


CAST = {
    "1F1B around": (one_f_one_b, True),
    "1F1B inside": (one_f_one_b, False),
    "ZB-H1 around": (zb_h1, True),
    "ZB-H1 inside": (zb_h1, False),
    "ZB-V inside": (zb_v, False, 2, v_shape),
    "interleaved inside": (functools.partial(interleaved, v=2), False, 2),
    "ZB-H1 inside, recomputed": (zb_h1, False, 1, None, Recomputed),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "ZB-H1 inside" else pytest.mark.slow) for n in CAST]
)
def test_autocast_is_as_near_to_one_process_under_autocast_as_that_is_to_float32(name):
    for off, rounding in on_two_ranks(under_autocast, *CAST[name]):
        assert off < rounding < 3e-2


def convolutions():
    """W of a convolution is done in I: it comes with grad x."""
    model = seeded(CNN)
    model.logit_scale.requires_grad_(False)

    class Rest(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = model.body, model.head

        def forward(self, x):
            return self.head(self.body(x).mean((2, 3))) * 1.5

    images, targets = (x.chunk(4) for x in batch_of(pictures))
    pipeline = Pipeline([model.stem, Rest()], connect(), images)
    pipeline.run(zb_h1(2, 4), images, targets, F.cross_entropy)
    want = gradients_alone(CNN, pictures)
    got = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return far(got, {name: want[name] for name in got})


class Two(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


def two_tensors():
    Pipeline([Two(4, 4), nn.Linear(4, 4)], connect(), [torch.randn(2, 4)] * 2)


def refusals():
    x = [torch.randn(2, 4)] * 2
    make = lambda: Pipeline([nn.Linear(4, 4), nn.Linear(4, 4)], connect(), x)
    forwards = [[Action(rank, "F", j) for j in range(2)] for rank in range(2)]
    run = lambda schedule: make().run(schedule, x, x, F.mse_loss)
    with torch.no_grad():
        without_graph = said(run, one_f_one_b(2, 2))
        evaluated = make().evaluate(x, x, F.mse_loss)
    with torch.inference_mode():
        inference = said(run, one_f_one_b(2, 2))
    return {
        "no_grad": without_graph,
        "inference_mode": inference,
        "forwards": said(run, forwards),
        "evaluate": evaluated is None or evaluated.isfinite().item(),
    }


@pytest.mark.slow
def test_convolutions_and_what_a_pipeline_refuses():
    assert max(on_two_ranks(convolutions)) < 1e-6
    for texts in on_two_ranks(refusals):
        assert all(
            "pipeline.evaluate" in texts[name] for name in ("no_grad", "inference_mode", "forwards")
        )
        assert texts["evaluate"] is True
    with pytest.raises(RankError, match="tensor"):
        on_two_ranks(two_tensors)
