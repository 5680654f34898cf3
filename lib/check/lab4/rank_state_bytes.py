"""Lab 4, section 1: rank_state_bytes(parameters, stage, N, precision), how many bytes of state one
of N ranks stores at each ZeRO stage."""

from lib.check.cases import form_of
from lib.check.causes import hints
from lib.check.claims import is_number
from lib.check.left_out import NO_RANKS, NO_TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.cost import zero
from lib.cost.state import RECIPES

PAPERS = 7_500_000_000  # the model of the ZeRO paper's first figure, on 64 ranks
MODELS = {
    ", ".join((f"{n:,.0f} parameters, N = {N}", *map(str, more))): (n, N, *more)
    for n, N, *more in (
        (PAPERS, 64), (PAPERS, 4), (1000, 1), (124_439_808, 7), (1.5e9, 2),
        *((PAPERS, 64, precision) for precision in RECIPES if precision != "mixed"),
    )
}  # fmt: skip
REFUSED = {
    "stage 4": (4, 64), "stage -1": (-1, 64), "stage 1.5": (1.5, 64), "stage 4, 1 rank": (4, 1),
    "stage 0, 0 ranks": (0, 0), "stage 3, -1 ranks": (3, -1),
}  # fmt: skip
CASES = here(*MODELS, *REFUSED)


def script(make, case, show):
    if case.what in REFUSED:
        show.refused(make, PAPERS, *REFUSED[case.what])
        return
    n, *more = MODELS[case.what]
    got = {f"at stage {stage}": show.run(make, n, stage, *more) for stage in range(4)}
    plain = {stage: float(x) if is_number(x) else form_of(x) for stage, x in got.items()}
    show("bytes", plain, tolerance=1e-12)


MEASURE = SideBySide(script, zero.rank_state_bytes, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("ZeRO's figure", 4, "7.5 billion parameters, 64 ranks: 120, 31.4, 16.6, 1.9 GB",
     ("bytes", CASES[:1])),
    ("other models and ranks", 2, "4 ranks, 7, and 1", ("bytes", CASES[1:5])),
    ("other precisions", 2, "fp32; fp32 gradients; bf16 alone",
     ("bytes", CASES[5 : len(MODELS)])),
    ("no such stage", 2, "a ValueError for any other stage, and for no rank"),
    hints=hints("lab4", "rank_state_bytes"), leaves_out=NO_RANKS,
)  # fmt: skip
