"""The points so far: the latest results of a lab's checks in this kernel, exercise by exercise."""

from lib.check.exercises import EXERCISES, MODULES
from lib.check.framework import WIDTH, judged
from lib.measuring import predictions


def points(lab: int) -> None:
    """Print a line for each exercise of Lab `lab`, 0 to 6, and the sums. Bonus points are summed
    separately. If the student has made predictions, a sentence says how many were close. Raises
    ValueError if there is no such lab."""
    names = names_of(lab)
    if not names:
        raise ValueError(f"there is no Lab {lab!r}: give its number, as in check.points(0)")
    print(f"Lab {lab}")
    for name in names:
        full, outcome = EXERCISES[name].points, judged.get(name)
        got = outcome.points if outcome else 0
        bonus = " bonus" if EXERCISES[name].bonus else ""
        print(f"  {name:<{WIDTH}} {got:>3} of {full:>3}{bonus:<6}  {_remark(outcome)}".rstrip())
    for bonus, what in ((False, "points"), (True, "bonus points")):
        alike = [name for name in names if EXERCISES[name].bonus == bonus]
        if alike:
            print(f"{_sum(alike)} of {_full(alike)} {what} so far")
    if sentence := predictions.in_words():
        print(sentence)


def names_of(lab: int) -> list[str]:
    """The exercises of a lab, in the order of the notebook."""
    return [m.EXERCISE.name for m in MODULES if m.__name__.split(".")[2] == f"lab{lab}"]


def lab_of(name: str) -> int | None:
    """The lab that an exercise belongs to, or None."""
    return next((lab for lab in range(7) if name in names_of(lab)), None)


def so_far(lab: int, after: str = "") -> tuple[int, int, str]:
    """Return (points so far without bonus, their maximum, the next exercise that has not passed).

    The search for the next exercise begins with the one that follows `after`, and continues from
    the beginning of the lab. The name is "" if all exercises have passed. Bonus exercises are left
    out.
    """
    names = names_of(lab)
    core = [name for name in names if not EXERCISES[name].bonus]
    index = names.index(after) if after in names else -1
    order = [name for name in names[index + 1 :] + names[: index + 1] if name in core]
    left = [name for name in order if not (name in judged and judged[name].passed)]
    return _sum(core), _full(core), left[0] if left else ""


def _sum(names):
    return sum(judged[name].points for name in names if name in judged)


def _full(names):
    return sum(EXERCISES[name].points for name in names)


def _remark(outcome):
    if outcome is None:
        return "not run since the kernel started"
    return "" if outcome.passed else outcome.message.partition(":")[0]
