"""The points so far: what the checks have said in this kernel, exercise by exercise of a lab."""

from lib.check.exercises import EXERCISES, MODULES
from lib.check.framework import WIDTH, judged


def points(lab: int) -> None:
    """Print a line for each exercise of Lab `lab`, 0 to 6, and the sums; bonus
    points count apart."""
    names = [
        module.EXERCISE.name for module in MODULES if module.__name__.split(".")[2] == f"lab{lab}"
    ]
    if not names:
        raise ValueError(f"there is no Lab {lab!r}: give its number, as in check.points(0)")
    print(f"Lab {lab}")
    for name in names:
        full, outcome = EXERCISES[name].points, judged.get(name)
        got = outcome.points if outcome else 0
        bonus = " bonus" if EXERCISES[name].bonus else ""
        print(f"  {name:<{WIDTH}} {got:>3} of {full:>3}{bonus:<6}  {_says(outcome)}".rstrip())
    for bonus, what in ((False, "points"), (True, "bonus points")):
        alike = [name for name in names if EXERCISES[name].bonus == bonus]
        if alike:
            got = sum(judged[name].points for name in alike if name in judged)
            print(f"{got} of {sum(EXERCISES[name].points for name in alike)} {what} so far")


def _says(outcome):
    if outcome is None:
        return "its check has not run"
    return "" if outcome.passed else outcome.message.partition(":")[0]
