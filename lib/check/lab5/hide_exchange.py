"""Lab 5, section 12, bonus: start_exchange, and the class OverlappedMoE, which orders start,
compute and wait so that exchanges overlap with computation.

The two are judged separately: the class uses lib's start_exchange. How much is hidden is computed
with a simulated clock (later.py), not measured.
"""

import torch
from torch import nn

from lib import backend, moe
from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle
from lib.check.lab3.groups import ALL, WORLD
from lib.check.lab5 import expert_parallel as plain
from lib.check.lab5.exchange_tokens import CALLED, SENT
from lib.check.lab5.later import Starter, Takes
from lib.check.lab5.start_exchange import START_EXCHANGE
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.moe import Choice

ENOUGH = 0.8  # the share of the exchanges' time that has to be hidden
TOKENS = {  # how many tokens ranks 0, 1, 2 and 3 of the group have, for each call
    "2 experts a rank": ((6, 3, 4, 7),), "drops, a rank without tokens": ((5, 8, 0, 11),),
    "no tokens": ((0, 0, 0, 0),), "one token": ((1, 1, 1, 1),),
    "two calls, then backward": ((5, 3, 4, 6), (2, 7, 0, 3)),
    "as many rows for all": ((16, 16, 16, 16),), "x of (1, n, D)": ((6, 3, 4, 7),),
}  # fmt: skip
TWO_EACH, DROPS, NOBODY, ONE_TOKEN, TWICE, EVEN, NESTED = TOKENS
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        ((0, 1), TWO_EACH), (ALL, TWO_EACH), (ALL, DROPS), ((1, 3), TWO_EACH), ((2,), TWO_EACH),
        (ALL, ONE_TOKEN), (ALL, NOBODY), (ALL, TWICE), ((0, 1), EVEN), (ALL, EVEN),
        ((0, 1), NESTED),
    )
)  # fmt: skip


def _even_gate(logits):
    """Sends token t to expert t modulo E, weighted by its probability, so that every expert gets
    the same number of rows from each half of the tokens."""
    p = logits.softmax(-1)
    experts = (torch.arange(len(p), device=p.device) % p.shape[1]).unsqueeze(1)
    return Choice(experts, p.gather(1, experts), p)


class _Expert(nn.Module):
    """tanh(x w). It takes one second per row on the clock, in forward and again in backward."""

    def __init__(self, seed, clock):
        super().__init__()
        self.w, self.clock = nn.Parameter(0.4 * draw(seed, plain.D, plain.D)), clock

    def forward(self, x):
        return Takes.apply(torch.tanh(x @ self.w), self.clock)


def _parts(case, clock):
    """(the layer with all experts, the shared expert), the same on all ranks."""
    E, gate = 2 * case.world_size, _even_gate if case.what == EVEN else plain.TOP_2
    experts = [_Expert(10 + e, clock) for e in range(E)]
    whole = moe.MoE(plain.D, experts, gate, 0.8 if case.what == DROPS else 4.0).to(torch.float64)
    whole.router.weight.data = 0.4 * draw(1, E, plain.D)
    return whole.to(backend.device()), _Expert(5, clock)


def script(make, case, group, show):
    show.begin("forward")
    starter = Starter()
    clock = starter.clock
    clock.phase = "forward"
    layer = show.run(make, *_parts(case, clock), group, show.all_to_all, starter.start)
    ys = plain.forward_of(layer, TOKENS[case.what], show, *([1] if case.what == NESTED else []))
    show("exchanges that nobody waited for", starter.under_way)
    yield
    if show.wrong("the output"):
        return
    clock.phase = "backward"
    plain.backward_of(layer, ys, show)
    show.part = ""  # what follows is about both passes
    for way in ("forward", "backward") if case.what == EVEN else ():
        show(f"exchanges begun in {way}", sum(its == way for its, *_ in clock.messages))
        told = f"{clock.hidden(way):.0%} of the exchanges in {way} lies beside computation"
        enough = clock.hidden(way) > ENOUGH - 1e-9
        show(f"hidden in {way}", "" if enough else f"{told}, expected {ENOUGH:.0%}")


MEASURE = SideBySide(script, moe.OverlappedMoE, CASES, writes=("forward",), excused=plain.EXCUSED)
OVERLAPPED_MOE = MEASURE.exercise(
    ("the output of the plain layer", 1, "1 to 4 ranks; drops, one token, none",
     "the output", "exchanges that nobody waited for"),
    ("its gradients", 1, "of x, router, experts, shared", *plain.GRADIENTS),
    ("hidden in forward", 1, f"{ENOUGH:.0%} of the exchanges beside computation",
     "exchanges begun in forward", "hidden in forward"),
    ("hidden in backward", 1, "the same", "exchanges begun in backward", "hidden in backward"),
    ("the same rows", 1, "elements; counts of both halves", calls(MEASURE, nothing_else=False),
     CALLED, SENT),
    hints=hints("lab5", "OverlappedMoE", "exchanges"), worlds=(WORLD,), bonus=True,
    may_call=(
        *MAY_CALL, "overlapped.halves", "overlapped.start_dispatch", "overlapped.start_combine",
        "overlapped.experts", "overlapped.start_exchange", "overlapped.<lambda>", "later.wait",
        "expert_parallel.run", "overlapped.forward", "exchange.exchange_counts",
        "exchange.exchange_tokens", "expert_parallel.exchange",
    ),
    leaves_out=plain.LEAVES_OUT | {"returned": "a sum, a tensor of its own"},
)  # fmt: skip
EXERCISE = Bundle("hide_exchange", (START_EXCHANGE, OVERLAPPED_MOE), bonus=True)
