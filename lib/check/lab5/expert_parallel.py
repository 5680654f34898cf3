"""Lab 5, section 6: exchange_tokens, which sends routed tokens to the ranks of their experts, and
the class ExpertParallelMoE, which uses it.

The two are judged separately: the class uses lib's exchange_tokens.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from lib import backend
from lib.check.cases import Setting, form_of
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle
from lib.check.lab3.groups import ALL, WORLD
from lib.check.lab5.exchange_tokens import CALLED, EXCHANGE_TOKENS, SENT, show_sent
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.moe import MoE, switch_gate, top_k_gate
from lib.moe import expert_parallel as libs

D = 4
TOP_2 = partial(top_k_gate, k=2)


class Setup(NamedTuple):
    """A layer with `each` experts per rank. calls: for each call, how many tokens ranks 0, 1, 2 and
    3 of the group have."""

    each: int
    gate: object
    factor: float
    calls: tuple[tuple[int, ...], ...]
    router: float = 1.0  # its weights are multiplied by this; 0: every token prefers expert 0


SETUPS = {
    "1 expert a rank": Setup(1, switch_gate, 1.0, ((5, 3, 4, 6),)),
    "2 experts a rank": Setup(2, TOP_2, 4.0, ((5, 3, 4, 6),)),
    "drops, a rank without tokens": Setup(2, TOP_2, 0.8, ((5, 8, 0, 11),)),
    # 12 experts on 2 ranks: sorted by name, expert 10 would come before expert 2
    "6 experts a rank": Setup(6, TOP_2, 2.0, ((7, 4, 0, 0),)),
    "all tokens to expert 0": Setup(2, switch_gate, 64.0, ((3, 5, 2, 4),), router=0.0),
    "no tokens": Setup(2, switch_gate, 1.0, ((0, 0, 0, 0),)),
    "two calls, then backward": Setup(2, TOP_2, 1.0, ((5, 3, 4, 6), (2, 7, 0, 3))),
}
ONE, TWO, DROPS, SIX, TO_ONE, NOBODY, TWICE = SETUPS
# The first case has all ranks, so it detects wrong counts even if the group is not passed on. The
# second, on a smaller group, shows whether it is.
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        (ALL, ONE), ((0, 1), ONE), ((0, 1), TWO), ((0, 1, 2), TWO), (ALL, DROPS), ((1, 3), SIX),
        ((2,), TWO), (ALL, TO_ONE), (ALL, NOBODY), (ALL, TWICE),
    )
)  # fmt: skip


def _layer(case):
    """The layer with all experts, the same on all ranks."""
    setup = SETUPS[case.what]
    experts = [
        nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, D))
        for _ in range(setup.each * case.world_size)
    ]
    moe = MoE(D, experts, setup.gate, setup.factor).to(backend.device(), torch.float64)
    for i, parameter in enumerate(moe.parameters()):
        parameter.data = 0.4 * draw(i, *parameter.shape)
    moe.router.weight.data *= setup.router
    return moe


def script(make, case, group, show):
    show.begin("forward")
    layer = show.run(make, _layer(case), group, show.all_to_all)
    layer.run = partial(_looked_at, show, layer.run)
    ys = forward_of(layer, SETUPS[case.what].calls, show)
    yield
    if not show.wrong("the output"):
        backward_of(layer, ys, show)


def _looked_at(show, run, rows):
    """Call run(rows). Return its result, or `rows` if combine could not use the result."""
    out = run(rows)
    fits = form_of(out) == form_of(rows)
    told = f"`run` returned {form_of(out)}, expected {form_of(rows)}"
    show("what `run` returns", "" if fits else told)
    return out if fits else rows


def forward_of(layer, calls, show, *shape):
    """[the layer's output for this rank's tokens in each call]. shape: dimensions before (n, D)."""
    ys = []
    for number, n in enumerate(of[show.place] for of in calls):
        x = 0.6 * draw(100 + 10 * number + show.place, *shape, n, D)
        ys.append(show.run(layer, show.give(f"x{number or ''}", x, learns=True)))
        show("the output", ys[-1])
    show_sent(show, "forward")
    return ys


def backward_of(layer, ys, show):
    """Run backward, and show the parameters' gradients, too. A missing gradient is shown as
    zeros."""
    show.begin("backward")
    show.backward(*ys)
    show_sent(show, "backward")
    found = [(n, torch.zeros_like(p) if p.grad is None else p.grad)
             for n, p in layer.named_parameters()]  # fmt: skip
    show("the gradient of the experts", [(n, g) for n, g in found if n.startswith("experts")])
    show("the gradient of what is on all ranks", [
        (n, g) for n, g in found if not n.startswith("experts")
    ])  # fmt: skip


GRADIENTS = ("x", "x1", "the experts", "what is on all ranks", "graph")
EXCUSED = dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model") | {
    "alive": "what backward keeps is free"
}
LEAVES_OUT = {
    "generators": "no argument is an iterator",
    "returned": "what `run` returns goes to lib's combine, which makes a new tensor",
    "memory": "it makes the rows that travel, and keeps none",
    "attributes": "the constructor is lib's; one method alone is the answer's",
}
MEASURE = SideBySide(script, libs.ExpertParallelMoE, CASES, writes=("run",), excused=EXCUSED)
EXPERT_PARALLEL_MOE = MEASURE.exercise(
    ("the output of one process", 6, "1, 2, 4 experts a rank, 1 to 4 ranks; drops, none",
     "what `run` returns", "the output"),
    ("its gradients", 4, "of x, the router, the experts", *GRADIENTS),
    ("each kept pair's row, both ways", 4, "elements; E/ep counts to each other rank",
     calls(MEASURE, nothing_else=False), CALLED, SENT),
    hints=hints("lab5", "ExpertParallelMoE", "exchanges"), worlds=(WORLD,),
    may_call=(*MAY_CALL, "exchange.exchange_counts", "exchange.exchange_tokens",
              "expert_parallel.exchange"),
    leaves_out=LEAVES_OUT,
)  # fmt: skip
EXERCISE = Bundle("expert_parallel", (EXCHANGE_TOKENS, EXPERT_PARALLEL_MOE))
