"""python tests/check/fingerprints.py [--conditions] [exercise ...]: judge the known mistakes of
these exercises, or of all, and write what they leave behind into lib/check/fingerprints/, which
ships.

With --conditions it writes nothing, and prints which hint each mistake would get if its fingerprint
were unknown: the first one whose condition fits. A mistake that nobody has foreseen gets its hint
in this way, so every hint in this list should be true of the mistake before it.
"""

import sys

from mistakes import by_condition, table_of, write

from lib.check import fingerprints
from lib.check.exercises import FUNCTIONS, MODULES


def main(args: list[str]) -> None:
    names, alone = [one for one in args if one != "--conditions"], "--conditions" in args
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
            if alone:
                for mistake, hint in dict.fromkeys(by_condition(part, module)):
                    print(f"  {mistake}: {hint.text if hint else 'no hint'}")
                continue
            if made := table_of(part, module):
                write(lab, {part.name: made})
                shared = sum(len(hints) > 1 for hints in made["prints"].values())
                print(f"  {len(made['prints'])} fingerprints, {shared} of several mistakes")


if __name__ == "__main__":
    main(sys.argv[1:])
