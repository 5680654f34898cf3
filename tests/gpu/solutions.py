"""Solutions, executed from the first cell to the last with the visible GPUs; nothing is stored.

    python -m tests.gpu.solutions            all labs
    python -m tests.gpu.solutions 0 lab1     these

With 8 GPUs visible every cell runs on NCCL, with 4 those of four ranks, and so on: what mixes
devices shows. Needs nbclient and nbval.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "solutions"


def chosen(labs: list[str], folder: Path = FOLDER) -> list[Path]:
    """The solutions of these labs, "0" or "lab0", in their order; none given: all. ValueError for
    one that is not."""
    found = {
        re.match(r"lab(\d+)", path.stem)[1]: path for path in sorted(folder.glob("lab*.ipynb"))
    }
    numbers = [lab.removeprefix("lab") for lab in labs] or list(found)
    if unknown := [number for number in numbers if number not in found]:
        raise ValueError(
            f"there is no Lab {', '.join(unknown)}: name one of {', '.join(found) or 'none'}"
        )
    return [path for number, path in found.items() if number in numbers]


def main(argv=None, cell_timeout=600):
    from lib.course import execute, notebook

    parser = argparse.ArgumentParser(prog="python -m tests.gpu.solutions")
    parser.add_argument(
        "labs",
        nargs="*",
        metavar="LAB",
        help="0 or lab0, several with spaces between them; none: all",
    )
    try:
        paths = chosen(parser.parse_args(argv).labs)
    except ValueError as error:
        parser.error(str(error))
    # the kernels find lib, whether it is installed or not
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")])
    )
    wrong = []
    for path in paths:
        began, said = time.monotonic(), "executed"
        try:
            execute.run(notebook.read(path), FOLDER, cell_timeout)
        except notebook.CourseError as error:
            said = str(error)
            wrong.append(f"{path.stem}, {said.splitlines()[0]}")
        print(f"{path.stem}: {said}, {time.monotonic() - began:.0f} s", flush=True)
    print("showed: " + "; ".join([f"{len(paths) - len(wrong)} of {len(paths)} executed", *wrong]))
    return 1 if wrong or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
