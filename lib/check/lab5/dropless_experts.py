"""Lab 5, section 13, bonus: grouped_mm(rows, weights, counts), and dropless(x, choice, n_experts,
experts, group, all_to_all), which sends every token through all the experts that it has chosen.

The two are judged separately: the experts that dropless is given use lib's grouped_mm.
"""

from typing import NamedTuple

import torch

from lib import moe
from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle
from lib.check.footprint import Footprint
from lib.check.lab3 import groups as g
from lib.check.lab5.exchange_tokens import CALLED, SENT, show_sent
from lib.check.left_out import TENSORS, but
from lib.check.products import count_products, multiply_adds
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw
from lib.moe import Choice

GROUPS = {  # name -> rows of each group, D, F
    "3 groups of 2, 4, 1 rows": ((2, 4, 1), 3, 2),
    "groups of 0, 5, 0, 2, 0 rows": ((0, 5, 0, 2, 0), 2, 3),
    "all 6 rows in the last of 4 groups": ((0, 0, 0, 6), 3, 3),
    "one group": ((4,), 2, 5),
    "no rows": ((0, 0), 3, 2),
    "9 rows in 6 groups": ((7, 0, 1, 0, 1, 0), 4, 5),
}
GROUPED = here(*GROUPS)


def grouped(make, case, show):
    counts, D, F = GROUPS[case.what]
    m, E = sum(counts), len(counts)
    given = draw(m + D, m, D), draw(100 + E, E, D, F)
    rows = show.give("rows", given[0], learns=True)
    weights = show.give("weights", given[1], learns=True)
    y = show.run(make, rows, weights, torch.tensor(counts))
    show("the result", y)
    yield
    if show.wrong("the result"):
        return
    show.backward(y)
    if case == GROUPED[-1]:
        leaves = [x.requires_grad_() for x in given]
        with Footprint(leaves) as footprint, count_products() as factors:
            make(*leaves, torch.tensor(counts)).sum().backward()
        # forward and backward together need 3 m D F multiply-adds, and no tensor that is larger
        # than rows, weights and the result
        show("multiply-adds", multiply_adds(factors), at_most=True)
        show("numbers in the largest tensor", footprint.largest, at_most=True)


OF_GROUPS = SideBySide(
    grouped, moe.grouped_mm, GROUPED, groups=None, excused={"alive": "what backward keeps is free"}
)
GROUPED_MM = OF_GROUPS.exercise(
    ("each group by its own matrix", 1, "5 cases; groups without rows, no rows",
     "the result"),
    ("gradients", 1, "of rows and of all matrices", "rows", "weights", "graph",
     "arguments", "storage"),
    ("no row is padded", 1, "3 m D F multiply-adds; no tensor of padded groups"),
    hints=hints("lab5", "grouped_mm"), bonus=True, leaves_out=but(TENSORS, "memory"),
)  # fmt: skip

# --- dropless -------------------------------------------------------------------------------------

D, WIDTH = 4, 3
ANY, SOME_IDLE, NOBODY, ONE, NO_TOKENS = (
    "every expert", "experts that get no token", "tokens that ask for nobody",
    "one expert gets all", "no tokens",
)  # fmt: skip


class Crowd(NamedTuple):
    """each: experts per rank. k: choices per token. tokens: how many tokens ranks 0, 1, 2 and 3 of
    the group have in the first call."""

    what: str
    each: int = 2
    k: int = 2
    tokens: tuple[int, ...] = (5, 3, 4, 6)


TWO, THREE, FOUR, SOME, ALONE = g.GROUPS
AT_ONCE = Setting(FOUR, what=g.AT_ONCE)
CROWDS = {
    Setting(members, what=f"{crowd.what}, {crowd.each} a rank, k={crowd.k}"): crowd
    for members, crowd in (
        (TWO, Crowd(ANY)), (TWO, Crowd(ANY, 1, 1)), (FOUR, Crowd(ANY, 1)),
        (TWO, Crowd(SOME_IDLE, 3)), (FOUR, Crowd(SOME_IDLE)), (THREE, Crowd(NOBODY)),
        (FOUR, Crowd(ANY, 2, 3, (6, 0, 7, 4))), (FOUR, Crowd(ONE, 2, 1)), (SOME, Crowd(ANY, 3)),
        (FOUR, Crowd(NO_TOKENS, tokens=(0, 0, 0, 0))), (ALONE, Crowd(ANY)),
    )
} | {AT_ONCE: Crowd(ANY)}  # fmt: skip
CASES = tuple(CROWDS)


def _chosen(crowd, seed, n, E):
    """The experts that a rank's tokens choose, (n, k); -1 stands for no expert."""
    if crowd.what == ONE:
        return torch.full((n, 1), E - 1)
    liking = draw(seed, n, E)
    liking[:, 1::2] -= 100.0 * (crowd.what == SOME_IDLE)  # experts 1, 3, 5, ... get no tokens
    chosen = liking.argsort(1, descending=True)[:, : crowd.k]
    # the last token chooses the last expert, so that a bincount without minlength is long enough;
    # SOME_IDLE is the case in which it is too short
    if crowd.what in (ANY, NOBODY):
        chosen[-1:] = torch.arange(E - 1, E - 1 - crowd.k, -1)
    if crowd.what == NOBODY:
        chosen[1:-1:2, 1:] = -1
        chosen[:1] = -1
    return chosen


def script(make, case, groups, show):
    show.begin("forward")
    ys = []
    for group, N, rank, of in g.calls(show, groups):
        crowd = CROWDS[case]
        n, E, seed = crowd.tokens[rank] + 2 * bool(of), N * crowd.each, 100 * N + 10 * rank
        chosen = _chosen(crowd, seed + 5 * bool(of), n, E)
        choice = Choice(chosen, draw(seed + 1, *chosen.shape).sigmoid() * (chosen >= 0),
                        torch.full((n, E), 1 / E, dtype=torch.float64))  # fmt: skip
        w_in = show.give(f"w_in{of}", 0.5 * draw(seed + 2, crowd.each, D, WIDTH), learns=True)
        w_out = show.give(f"w_out{of}", 0.5 * draw(seed + 3, crowd.each, WIDTH, D), learns=True)
        told = []

        def experts(rows, counts, w_in=w_in, w_out=w_out, told=told):
            if tuple(counts.shape) != (len(w_in),) or len(rows) != int(counts.sum()):
                fit = f"expected those of each of the {len(w_in)} experts here"
                told.append(f"experts got {len(rows)} rows and counts {counts.tolist()}, {fit}")
                return 1 * rows
            hidden = moe.grouped_mm(rows, w_in, counts).tanh()
            return moe.grouped_mm(hidden, w_out, counts)

        x = show.give(f"x{of}", draw(seed + 4, n, D), learns=True)
        choice = show.give(f"choice{of}", choice, learns=n > 0)
        ys.append(show.run(make, x, choice, E, experts, group, show.all_to_all))
        show(f"counts{of}", told[0] if told else "")
        show(f"y{of}", ys[-1])
        if show.wrong(f"counts{of}", f"y{of}"):
            return
    show_sent(show, "forward")
    yield
    show.begin("backward")
    show.backward(*ys)
    show_sent(show, "backward")


MEASURE = SideBySide(
    script, moe.dropless, CASES, groups=g.groups,
    excused={"alive": "what backward keeps is free", "bfloat16": "it is rounded in another order"},
)  # fmt: skip
PAIR = ("", ", the pair")


DROPLESS = MEASURE.exercise(
    ("every token, all its experts", 2, "1 to 4 ranks, 1 to 3 experts each; none, one for all",
     *(f"{name}{of}" for of in PAIR for name in ("counts", "y"))),
    ("every gradient", 2, "of x, the weights and all experts", "graph",
     *(f"{name}{of}" for of in PAIR for name in ("x", "w_in", "w_out")),
     *(f"choice{of}.weights" for of in PAIR)),
    ("each pair's row, both ways", 1, "no padding; E/ep counts to each other rank",
     calls(MEASURE, nothing_else=False), CALLED, SENT),
    hints=hints("lab5", "dropless", "exchanges"), worlds=(g.WORLD,), bonus=True,
    may_call=(*MAY_CALL, "exchange.exchange_counts", "exchange.exchange_tokens"),
    leaves_out={
        "generators": "no argument is an iterator",
        "returned": "the docstring promises a tensor, which only the caller has",
        "memory": "rows that travel are counted, and grouped_mm is the one that could pad",
    },
)  # fmt: skip
EXERCISE = Bundle("dropless_experts", (GROUPED_MM, DROPLESS), bonus=True)
