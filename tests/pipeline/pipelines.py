"""What the tests of pipelines on ranks share: models that can be cut anywhere, valid lists of any
kind, the comparison.

Equal means: every gradient differs from the single process's by less than `TOLERANCE` times the
largest number in it.
"""

import functools
import itertools
import random
from typing import NamedTuple

import torch
from torch import nn

from lib.pipeline import Action, balance, dependencies_of, loop
from lib.pipeline.split import split_gpt, split_layers
from lib.training import model

TOLERANCE = 1e-12  # float64
VOCABULARY, HIDDEN = 11, 8
WIDTHS = (5, 9, 4, 7, 3, 8, 6)  # of the layers' outputs, over and over


class Layer(nn.Module):
    """(b, n_in) -> (b, n_out): two uses of one matrix product, a norm, and a parameter that
    no module knows."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.into, self.norm, self.out = (
            nn.Linear(n_in, n_in),
            nn.LayerNorm(n_in),
            nn.Linear(n_in, n_out, bias=False),
        )
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, n_out))

    def forward(self, x):
        return self.out(self.norm(self.into(self.into(x).tanh()))).tanh() * self.gain


class Layers(nn.Module):
    """A row of layers, each as wide as it likes. One layer is frozen; with `frozen_start`
    the first one too."""

    def __init__(self, n_layers, frozen_start=False):
        super().__init__()
        widths = [WIDTHS[i % len(WIDTHS)] for i in range(n_layers + 1)]
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(n_layers)
            self.layers = nn.ModuleList(Layer(*both) for both in itertools.pairwise(widths))
        self.to(torch.get_default_device(), torch.float64)
        self.layers[-1].into.requires_grad_(False)
        self.layers[0].requires_grad_(not frozen_start)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Case(NamedTuple):
    """build(n_layers) -> module; split(module, ranges) -> stages; batch(rows) -> (x, target);
    loss(y, target) -> ()."""

    build: callable
    split: callable
    batch: callable
    loss: callable


def _gpt(n_layers):
    shape = model.Shape(
        vocab_size=VOCABULARY, seq_len=5, n_layers=n_layers, hidden=HIDDEN, n_heads=2, n_kv_heads=1
    )
    return model.GPT(shape, seed=n_layers).double()


def _tokens(rows):
    tokens = torch.randint(
        VOCABULARY, (rows, 6), generator=torch.Generator("cpu").manual_seed(rows), device="cpu"
    )
    tokens = tokens.to(torch.get_default_device())
    return tokens[:, :-1], tokens[:, 1:]


def _numbers(rows):
    draw = lambda n: torch.randn(
        rows,
        n,
        generator=torch.Generator("cpu").manual_seed(rows + n),
        dtype=torch.float64,
        device="cpu",
    ).to(torch.get_default_device())
    return draw(WIDTHS[0]), draw(1)


def _squares(y, target):
    return (y - target).square().sum(1).mean()


_row = lambda module, ranges: split_layers(module.layers, ranges)
CASES = {
    "gpt": Case(_gpt, split_gpt, _tokens, model.cross_entropy),
    "layers": Case(Layers, _row, _numbers, _squares),
    "frozen start": Case(functools.partial(Layers, frozen_start=True), _row, _numbers, _squares),
}


def cut(case, n_stages):
    """(module, its stages): one layer more than stages, so that one stage has two."""
    module = case.build(n_stages + 1)
    return module, case.split(module, balance([1] * (n_stages + 1), n_stages))


def split_rows(batch, m):
    """m micro-batches of 2 rows, the last one of 1: [x of each], [target of each]."""
    x, target = batch
    assert len(x) == 2 * m - 1
    return x.split(2), target.split(2)


@functools.cache
def one_process(name, n_stages, m):
    """(loss, {parameter: gradient}) of the whole batch."""
    case = CASES[name]
    module, (x, target) = case.build(n_stages + 1), case.batch(2 * m - 1)
    loss = case.loss(module(x), target)
    loss.backward()
    return loss.detach(), gradients(module)


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters()}


def differences(got, want, tolerance=TOLERANCE):
    """["head.weight: off by 0.1, 1e-13 allowed", ...] for each gradient of `got`, {name: gradient}.

    The scale of a gradient is its largest number. The true gradient of attention's key bias is
    zero: its weight's then.
    """
    wrong = []
    for name, grad in got.items():
        right = want[name]
        if grad is None or right is None:
            if grad is not right:
                wrong.append(f"{name}: {grad} for {right}")
            continue
        off, allowed = (
            (grad - right).abs().max().item(),
            tolerance * want[name.replace("k.bias", "k.weight")].abs().max().item(),
        )
        if not off <= allowed:
            wrong.append(f"{name}: off by {off:.3g}, {allowed:.3g} allowed")
    return wrong


def any_valid_list(seed, p, m, v, halves, placement=loop):
    """A valid schedule as nobody would write it: of the actions that could
    run now, any one runs."""
    draw, n_stages = random.Random(seed), p * v
    kinds = "FIW" if halves else "FB"
    todo = {Action(s, kind, j) for s in range(n_stages) for kind in kinds for j in range(m)}
    schedule, done, homes = [[] for _ in range(p)], set(), placement(p, n_stages)
    while todo:
        action = draw.choice(
            sorted(a for a in todo if done.issuperset(dependencies_of(a, n_stages)))
        )
        schedule[homes[action.stage]].append(action)
        todo.remove(action)
        done.add(action)
    return schedule
