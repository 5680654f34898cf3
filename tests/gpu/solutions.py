"""All solutions, executed from the first cell to the last with the GPUs that are visible; nothing is stored.

With 8 GPUs visible every cell runs on NCCL, with 4 those of four ranks, and so on: what mixes devices shows.
Needs nbclient and nbval.
"""

import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "solutions"


def main(cell_timeout=600):
    from lib.course import execute, notebook

    wrong, paths = [], sorted(FOLDER.glob("lab*.ipynb"))
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
