"""python -m lib.check                              which exercise meets which adversarial case, and
                                                 why not
python -m lib.check fingerprints [exercise ...]  judge the known mistakes anew and write
                                                 lib/check/fingerprints/"""

import sys
from importlib.util import find_spec

from lib.check import fingerprints
from lib.check.exercise import ADVERSARIAL, ALWAYS
from lib.check.exercises import EXERCISES, MODULES


def table() -> str:
    """Exercise x adversarial case: + met, . left out (the reason below)."""
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


def write_fingerprints(names: list[str]) -> None:
    if find_spec("lib.check.mistakes") is None:
        raise SystemExit(
            "the known mistakes are no part of a release: run this where the course is made"
        )
    from lib.check import mistakes

    unknown = set(names) - {part.name for module in MODULES for part in module.EXERCISE.parts}
    if unknown:
        raise SystemExit(
            f"there is no exercise {', '.join(sorted(unknown))}: name functions, as in "
            f"ring_all_reduce"
        )
    fingerprints.tables.cache_clear()
    for module in MODULES:
        lab = module.__name__.split(".")[2]
        for part in module.EXERCISE.parts:
            if (not names or part.name in names) and (made := mistakes.table_of(part, module)):
                mistakes.write(lab, {part.name: made})
                shared = sum(len(hints) > 1 for hints in made["prints"].values())
                print(
                    f"{part.name}: {len(made['prints'])} fingerprints, {shared} of several mistakes"
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["fingerprints"]:
        write_fingerprints(sys.argv[2:])
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        print(table())
