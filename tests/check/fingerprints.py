"""python tests/check/fingerprints.py [exercise ...]: judge the known mistakes of these exercises,
or of all, and write what they leave behind into lib/check/fingerprints/, which ships."""

import sys

from mistakes import table_of, write

from lib.check import fingerprints
from lib.check.exercises import FUNCTIONS, MODULES


def main(names: list[str]) -> None:
    if unknown := set(names) - set(FUNCTIONS):
        raise SystemExit(
            f"there is no exercise {', '.join(sorted(unknown))}: name functions, as in "
            f"ring_all_reduce"
        )
    fingerprints.tables.cache_clear()
    for module in MODULES:
        lab = module.__name__.split(".")[2]
        for part in module.EXERCISE.parts:
            if names and part.name not in names:
                continue
            print(f"{part.name}: judging its known mistakes, which can take minutes", flush=True)
            if made := table_of(part, module):
                write(lab, {part.name: made})
                shared = sum(len(hints) > 1 for hints in made["prints"].values())
                print(f"  {len(made['prints'])} fingerprints, {shared} of several mistakes")


if __name__ == "__main__":
    main(sys.argv[1:])
