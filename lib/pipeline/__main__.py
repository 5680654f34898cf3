"""`python -m lib.pipeline`: find the shortest makespan of every level of the puzzle, and store
it."""

import json
from itertools import count

from lib.measuring.seeds import stamp
from lib.pipeline.puzzle import FILE, LEVELS
from lib.pipeline.shortest import most_work, schedule_by


def store():
    """Find the shortest makespan of every level, print it, and write the file."""
    levels = {}
    for level, puzzle in LEVELS.items():
        refuted = {}
        for deadline in count(most_work(puzzle)):
            schedule, nodes = schedule_by(puzzle, deadline)
            if schedule:
                break
            refuted[deadline] = nodes
        levels[level] = {
            "1F1B": puzzle.of_1f1b,
            "best": deadline,
            "nodes": nodes,
            "nodes of what is shorter": refuted,
        }
        print(
            f"level {level}: 1F1B {puzzle.of_1f1b}, shortest {deadline}, "
            f"found after {nodes} nodes; nothing shorter, {sum(refuted.values())} nodes"
        )
    what = (
        "shortest makespans by level, and the nodes of the search, "
        "written by `python -m lib.pipeline`"
    )
    FILE.write_text(
        json.dumps({"what": what, **stamp(), "levels": levels}) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    store()
