"""Lab 1, section 9: diagnose(run), which of five mistakes a data-parallel training was made with,
if any.

The runs are trainings on real ranks, made when the check is called for the first time, with other
seeds and sizes than the notebook's. They depend on no answer, so they are kept for the next one.
"""

from copy import deepcopy
from functools import cache

from lib import launch
from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import but
from lib.check.pure import CHANGED, LEAVES_OUT, NOTHING, ONCE, asked, each, left_alone
from lib.data_parallel.sabotage import HEALTHY, SABOTAGES, Setup, diagnose, runs, train_all

NO_BROADCAST, SUM, NO_NO_SYNC, NO_SET_EPOCH, UNEQUAL = SABOTAGES
NAMES = (HEALTHY, *SABOTAGES)
FEW = 7_000  # bytes of a bucket that make many buckets
SETUPS = {
    "2 ranks": Setup(HEALTHY, (3, 3), 1, 2, 2, seed=11),
    "4 ranks, 2 micro-batches, many buckets": Setup(HEALTHY, (2,) * 4, 2, 2, 2, FEW, 12),
    "3 ranks with 5, 1 and 3 examples": Setup(HEALTHY, (5, 1, 3), 1, 2, 2, seed=13),
    "3 ranks, 3 micro-batches, 3 epochs": Setup(HEALTHY, (3,) * 3, 3, 3, 1, seed=14),
    "1 rank": Setup(HEALTHY, (6,), 2, 2, 2, seed=15),
    "2 ranks that begin apart": Setup(NO_BROADCAST, (3, 3), 1, 2, 2, seed=21),
    "3 ranks with 4, 1 and 2 examples that begin apart": Setup(
        NO_BROADCAST, (4, 1, 2), 2, 2, 2, seed=22
    ),
    "2 ranks, 2 micro-batches, all exchanged": Setup(NO_NO_SYNC, (4, 4), 2, 2, 2, seed=31),
    "4 ranks, 3 micro-batches, all exchanged": Setup(NO_NO_SYNC, (3,) * 4, 3, 2, 1, FEW, seed=32),
    "3 ranks with 2, 5 and 3 examples, all exchanged": Setup(
        NO_NO_SYNC, (2, 5, 3), 2, 2, 2, seed=33
    ),
    "2 ranks, 2 epochs alike": Setup(NO_SET_EPOCH, (3, 3), 1, 2, 3, seed=41),
    "3 ranks with 4, 2 and 3 examples, 3 epochs alike": Setup(
        NO_SET_EPOCH, (4, 2, 3), 2, 3, 2, seed=42
    ),
    "3 ranks, 3 epochs alike": Setup(NO_SET_EPOCH, (3,) * 3, 1, 3, 2, seed=43),
    "4 ranks, summed": Setup(SUM, (2,) * 4, 1, 2, 2, seed=51),
    "2 ranks with 5 and 2 examples, summed": Setup(SUM, (5, 2), 1, 2, 2, seed=52),
    "3 ranks, 3 micro-batches, summed": Setup(SUM, (3,) * 3, 3, 2, 1, FEW, seed=53),
    "2 ranks with 1 and 5 examples, each its own mean": Setup(UNEQUAL, (1, 5), 1, 2, 2, seed=61),
    "4 ranks with 5, 3, 4 and 1 examples, each its own mean": Setup(
        UNEQUAL, (5, 3, 4, 1), 2, 2, 2, seed=63
    ),
}


@cache
def made():
    """{name: Run}, trained on ranks."""
    setups = list(SETUPS.values())
    logs = launch.capture(train_all, setups, nproc=max(len(setup.shares) for setup in setups))
    return dict(zip(SETUPS, runs(setups, logs, logs.ledger), strict=True))


def _measure(fn):
    of = made()
    return asked(fn, diagnose, [(name,) for name in SETUPS], lambda n: (deepcopy(of[n]),), _read)


def _read(out, *_):
    if out is None:
        return Problem("nothing", "it returned None, expected one of the six names")
    if not isinstance(out, str):
        return Problem("form", f"got {out!r:.60}, a {type(out).__name__}, expected a name")
    if out not in NAMES:
        return Problem("name", f"got {out!r:.60}, expected one of {', '.join(map(repr, NAMES))}")
    return out


def _judge(*sabotages):
    cases = [(name,) for name, setup in SETUPS.items() if setup.sabotage in (*sabotages, HEALTHY)]

    def judge(got, name):
        want = SETUPS[name].sabotage
        facts = {"want": want, "said": got}
        return None if got == want else Problem("value", f"expected {want!r}, got {got!r}", facts)

    return each(sorted(cases, key=lambda case: SETUPS[case[0]].sabotage == HEALTHY), judge, str)


def _said(want, *got):
    fits = lambda p: p.fact("want") in want and p.fact("said") in (got or NAMES)
    return s.both(s.kind("value"), fits)


EXERCISE = Exercise(
    name="diagnose", reference=diagnose, measure=_measure, worlds=(),
    before=made, leaves_out=but(LEAVES_OUT, "given used", "again", "empty rank", "alone")
    | {"given used": "no function is given to it",
       "again": "a name, asked for in many cases",
       "empty rank": "a rank without examples has no mean of its own",
       "alone": "a run of one rank is a case", "returned": "a name"},
    claims=(
        claim(NO_BROADCAST, 2, "2 and 3 ranks; and no healthy run is called sick",
              _judge(NO_BROADCAST)),
        claim(NO_NO_SYNC, 3, "2 to 4 ranks, 2 and 3 micro-batches", _judge(NO_NO_SYNC)),
        claim(NO_SET_EPOCH, 3, "2 and 3 ranks, 2 and 3 epochs", _judge(NO_SET_EPOCH)),
        claim(SUM, 3, "2 to 4 ranks, equal and unequal shards", _judge(SUM)),
        claim(UNEQUAL, 3, "2 and 4 ranks; runs left as they were", _judge(UNEQUAL),
              left_alone(str)),
    ),
    hints=(
        s.CALLED_LIB.saying("read the log, and decide by what it says."),
        NOTHING,
        Hint("not a name", s.kind("form"), "return one of the six names, a str."),
        Hint("another name", s.kind("name"),
             "spell the names as the docstring does, in lower case."),
        CHANGED,
        ONCE,
        Hint("weights change as they train", _said((HEALTHY,), NO_BROADCAST),
             "the checksums of a healthy run change from step to step. Compare the ranks of one "
             "step with each other."),
        Hint("messages of a healthy run", _said((HEALTHY,), NO_NO_SYNC),
             "how many messages are right depends on the run: a ring of N ranks sends 2(N-1)N for "
             "each bucket."),
        Hint("batches of a healthy run", _said((HEALTHY,), NO_SET_EPOCH),
             "a healthy run leaves its baseline by nothing, and its batches differ from epoch to "
             "epoch. Compare step i of one epoch with step i of the next."),
        Hint("unequal shards are no mistake", _said((HEALTHY,), UNEQUAL, SUM),
             "ranks may have different numbers of examples where each example weighs the same: "
             "the run then follows its baseline up to rounding, which is less than 0.01%."),
        Hint("weights of the ranks", _said((NO_BROADCAST,)),
             "the weights of the ranks must be equal bit for bit: compare the checksums of all "
             "ranks before you look at anything else, because weights that differ change losses "
             "and norms too."),
        Hint("a mistake that costs only time", _said((NO_NO_SYNC,)),
             "it changes no loss and no norm. Count: how many messages would a ring send for this "
             "run's buckets, once a step?"),
        Hint("an epoch like the first", _said((NO_SET_EPOCH,)),
             "in the first epoch nothing is wrong. Which batches does each rank draw in the "
             "second? Compare step i with step i + steps_per_epoch."),
        Hint("N times the gradient", _said((SUM,)),
             "a sum over N ranks is N times the mean. Before the first update the weights are "
             "those of the baseline: compare the gradient norms of step 0."),
        Hint("another gradient", _said((UNEQUAL,)),
             "the mean of the ranks' means is another gradient than the baseline's, and no "
             "multiple of it: compare losses or norms with a tolerance above rounding and below "
             "what the docstring says that a mistake changes."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
