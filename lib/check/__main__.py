"""python -m lib.check: the adversarial cases and probes that each exercise meets, and the reasons
for those that it leaves out.

python -m lib.check rules [function ...]: an exercise's docstring next to what its check claims.
"""

import sys

from lib.check import probes
from lib.check.exercise import ADVERSARIAL, ALWAYS
from lib.check.exercises import EXERCISES, FUNCTIONS
from lib.check.rules import rules
from lib.check.side_by_side import SideBySide


def table() -> str:
    """A table of exercises and adversarial cases. A + means that the exercise is tested in the
    case, and a . that it is not, for a reason given below the table."""
    names = list(ADVERSARIAL)
    lines = [f"{'':<26}" + " ".join(names)]
    reasons = []
    for bundle in EXERCISES.values():
        for part in bundle.parts:
            left = part.leaves_out
            marks = ["." if name in left else "+" for name in names]
            cells = (f"{mark:^{len(name)}}" for name, mark in zip(names, marks, strict=True))
            lines.append(f"{part.name:<26}" + " ".join(cells).rstrip())
            reasons += [f"{part.name}: {name}: {why}" for name, why in left.items()]
    legend = [f"{name:<12}{what}" for name, what in ADVERSARIAL.items()]
    return "\n".join([*lines, "", *legend, ALWAYS, "", "Left out", *reasons])


def probed() -> str:
    """The same table with probes in place of cases, for the exercises that are judged side by
    side."""
    lines = [f"{'':<26}" + " ".join(probes.ALL)]
    reasons = []
    for part in FUNCTIONS.values():
        if not isinstance(part.measure, SideBySide):
            continue
        excused = part.measure.excused
        cells = (f"{'.' if name in excused else '+':^{len(name)}}" for name in probes.ALL)
        lines.append(f"{part.name:<26}" + " ".join(cells).rstrip())
        reasons += [f"{part.name}: {name}: {why}" for name, why in excused.items()]
    return "\n".join([*lines, "", "Excused", *reasons])


if __name__ == "__main__":
    if sys.argv[1:2] == ["rules"]:
        print(rules(sys.argv[2:]))
        raise SystemExit
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    print(f"{table()}\n\n{probed()}")
