"""Lab 1, section 9: diagnose(run), which of five mistakes a data-parallel training run contains, if
any.

The runs come from training on real ranks, with other seeds and sizes than in the notebook. They do
not depend on the answer, so only the first call of the check trains, and later calls reuse them.
"""

from copy import deepcopy
from functools import cache

from lib import launch
from lib.check.causes import hints
from lib.check.left_out import LEAVES_OUT, NO_TENSORS, but
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.data_parallel.sabotage import HEALTHY, SABOTAGES, Setup, diagnose, runs, train_all

NO_BROADCAST, SUM, NO_NO_SYNC, NO_SET_EPOCH, UNEQUAL = SABOTAGES
NAMES = (HEALTHY, *SABOTAGES)
FEW = 7_000  # a bucket capacity in bytes that is so small that there are many buckets


SETUPS = {  # the healthy ones come last, so that a claim begins with its own mistake
    str(setup): setup
    for setup in (
        Setup(NO_BROADCAST, (3, 3), 1, 2, 2, seed=21),
        Setup(NO_BROADCAST, (4, 1, 2), 2, 2, 2, seed=22),
        Setup(NO_NO_SYNC, (4, 4), 2, 2, 2, seed=31),
        Setup(NO_NO_SYNC, (3,) * 4, 3, 2, 1, FEW, seed=32),
        Setup(NO_NO_SYNC, (2, 5, 3), 2, 2, 2, seed=33),
        Setup(NO_SET_EPOCH, (3, 3), 1, 2, 3, seed=41),
        Setup(NO_SET_EPOCH, (4, 2, 3), 2, 3, 2, seed=42),
        Setup(NO_SET_EPOCH, (3,) * 3, 1, 3, 2, seed=43),
        Setup(SUM, (2,) * 4, 1, 2, 2, seed=51),
        Setup(SUM, (5, 2), 1, 2, 2, seed=52),
        Setup(SUM, (3,) * 3, 3, 2, 1, FEW, seed=53),
        Setup(UNEQUAL, (1, 5), 1, 2, 2, seed=63),
        Setup(UNEQUAL, (5, 3, 4, 1), 2, 2, 2, seed=63),
        Setup(HEALTHY, (3, 3), 1, 2, 2, seed=11),
        Setup(HEALTHY, (2,) * 4, 2, 2, 2, FEW, seed=12),
        Setup(HEALTHY, (1, 5, 3), 1, 2, 2, seed=16),  # rank 0 begins both epochs alike
        Setup(HEALTHY, (3,) * 3, 3, 3, 1, seed=14),
        Setup(HEALTHY, (6,), 2, 2, 2, seed=15),
    )
}


@cache
def made():
    """{name: Run}, trained on ranks."""
    setups = list(SETUPS.values())
    logs = launch.capture(train_all, setups, nproc=max(len(setup.shares) for setup in setups))
    return dict(zip(SETUPS, runs(setups, logs, logs.ledger), strict=True))


def script(make, case, show):
    of, run = made()[case.what], deepcopy(made()[case.what])
    out = show.run(make, run)
    changed = [f for f in vars(of) if getattr(run, f) != getattr(of, f)]
    show("arguments of the run", ", ".join(f"run.{one}" for one in changed))
    is_name, six = isinstance(out, str) and out in NAMES, f"one of {', '.join(map(repr, NAMES))}"
    if show.returned(out, is_name, six, "one of the six"):
        show("the mistake", out)


MEASURE = SideBySide(script, diagnose, here(*SETUPS), groups=None, excused=NO_TENSORS)


def about(*sabotages):
    """The shown names and the cases of a claim about these mistakes, which include healthy runs."""
    cases = here(*(name for name, of in SETUPS.items() if of.sabotage in (*sabotages, HEALTHY)))
    return (RETURNED, "one of the six", "the mistake"), cases


EXERCISE = MEASURE.exercise(
    (NO_BROADCAST, 2, "2 and 3 ranks; and no healthy run is called sick", about(NO_BROADCAST)),
    (NO_NO_SYNC, 3, "2 to 4 ranks, 2 and 3 micro-batches", about(NO_NO_SYNC)),
    (NO_SET_EPOCH, 3, "2 and 3 ranks, 2 and 3 epochs", about(NO_SET_EPOCH)),
    (SUM, 3, "2 to 4 ranks, equal and unequal shards", about(SUM)),
    (UNEQUAL, 3, "2 and 4 ranks; runs left as they were", about(UNEQUAL)),
    hints=hints("lab1", "diagnose"), before=made,
    leaves_out=but(LEAVES_OUT, "alone")
    | {"again": "a name, asked for in many cases", "returned": "a name",
       "empty rank": "a rank without examples has no mean of its own"},
)  # fmt: skip
