"""Lab 1, section 9: diagnose(run), which of five mistakes a data-parallel training was made with,
if any.

The runs are trainings on real ranks, made when the check is called for the first time, with other
seeds and sizes than the notebook's. They depend on no answer, so they are kept for the next one.
"""

from copy import deepcopy
from functools import cache

from lib import launch
from lib.check import symptoms as s
from lib.check.causes import hints
from lib.check.exercise import Exercise
from lib.check.left_out import LEAVES_OUT, NO_TENSORS, but
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.data_parallel.sabotage import HEALTHY, SABOTAGES, Setup, diagnose, runs, train_all

NO_BROADCAST, SUM, NO_NO_SYNC, NO_SET_EPOCH, UNEQUAL = SABOTAGES
NAMES = (HEALTHY, *SABOTAGES)
FEW = 7_000  # bytes of a bucket that make many buckets


def _words(setup):
    """What a verdict calls its run."""
    each, k, steps = ", ".join(map(str, setup.shares)), setup.microbatches, setup.steps_per_epoch
    return (
        f"{setup.sabotage}: ranks with {each} examples, {k} micro-batch{'es' * (k > 1)}, "
        f"{setup.epochs} epochs of {steps} step{'s' * (steps > 1)}"
    )


SETUPS = {  # the healthy ones last, so that a claim begins with its own mistake
    _words(setup): setup
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


FORM = ("something", "a name", "one of the six")
MISTAKE = "the mistake"


def script(make, case, show):
    of, run = made()[case.what], deepcopy(made()[case.what])
    out = show.run(make, run)
    show("something", "it returned None, expected one of the six names" if out is None else "")
    is_one = isinstance(out, str)
    form = f"got {out!r:.60}, a {type(out).__name__}, expected a name"
    show("a name", "" if is_one or out is None else form)
    six = f"got {out!r:.60}, expected one of {', '.join(map(repr, NAMES))}"
    show("one of the six", six if is_one and out not in NAMES else "")
    changed = [f for f in vars(of) if getattr(run, f) != getattr(of, f)]
    show("arguments of the run", ", ".join(f"run.{one}" for one in changed))
    if not show.wrong(*FORM):
        show(MISTAKE, out)


MEASURE = SideBySide(script, diagnose, here(*SETUPS), groups=None, excused=NO_TENSORS)


def about(*sabotages):
    """What a claim on these is about: their runs, and the healthy ones."""
    cases = here(*(name for name, of in SETUPS.items() if of.sabotage in (*sabotages, HEALTHY)))
    return [(name, cases) for name in (*FORM, MISTAKE)]


def said(want, *got):
    """Was the mistake `want` called one of `got`, or anything else?"""
    return lambda p: (
        p.fact("name") == MISTAKE and p.fact("want") == want and (p.fact("got") in (got or NAMES))
    )


def _alone(p):
    """Is it about the run of one rank?"""
    setup = SETUPS.get(getattr(p.fact("case"), "what", ""))
    return setup is not None and len(setup.shares) == 1


EXERCISE = Exercise(
    name="diagnose", reference=diagnose, measure=MEASURE, worlds=(),
    before=made, leaves_out=but(LEAVES_OUT, "given used", "again", "empty rank", "alone")
    | {"given used": "no function is given to it",
       "again": "a name, asked for in many cases",
       "empty rank": "a rank without examples has no mean of its own",
       "alone": "a run of one rank is a case", "returned": "a name"},
    claims=claims(
        MEASURE,
        (NO_BROADCAST, 2, "2 and 3 ranks; and no healthy run is called sick", *about(NO_BROADCAST)),
        (NO_NO_SYNC, 3, "2 to 4 ranks, 2 and 3 micro-batches", *about(NO_NO_SYNC)),
        (NO_SET_EPOCH, 3, "2 and 3 ranks, 2 and 3 epochs", *about(NO_SET_EPOCH)),
        (SUM, 3, "2 to 4 ranks, equal and unequal shards", *about(SUM)),
        (UNEQUAL, 3, "2 and 4 ranks; runs left as they were", *about(UNEQUAL)),
    ),
    hints=hints(
        "lab1", "diagnose",
        weights_change_as_they_train=said(HEALTHY, NO_BROADCAST),
        messages_of_a_healthy_run=said(HEALTHY, NO_NO_SYNC),
        batches_of_a_healthy_run=said(HEALTHY, NO_SET_EPOCH),
        a_sum_over_one_rank=s.both(said(HEALTHY, SUM), _alone),
        unequal_shards_are_no_mistake=said(HEALTHY, UNEQUAL, SUM),
        weights_of_the_ranks=said(NO_BROADCAST),
        a_mistake_that_costs_only_time=said(NO_NO_SYNC),
        an_epoch_like_the_first=said(NO_SET_EPOCH),
        N_times_the_gradient=said(SUM),
        another_gradient=said(UNEQUAL),
    ),
)  # fmt: skip
