"""The puzzle of Lab 2: find the schedule with the shortest makespan when stages differ, messages
take time and memory is limited.

    LEVELS[1]    2 ranks, 4 micro-batches     LEVELS[3].of_1f1b           the makespan of 1F1B
    LEVELS[2]    3 ranks, 5 micro-batches     LEVELS[3].best              the shortest that there is
    LEVELS[3]    4 ranks, 6 micro-batches     LEVELS[3].time(schedule)    that of your schedule

A rank keeps a micro-batch from its F to its W, and may keep `cap` of them at a time. The shortest
makespans are stored in puzzle.json; shortest.py finds them, shows that nothing is shorter, and
writes the file.
"""

import json
from pathlib import Path
from typing import NamedTuple

from lib.pipeline.schedules import one_f_one_b
from lib.pipeline.simulate import simulate

FILE = Path(__file__).with_name("puzzle.json")


class Puzzle(NamedTuple):
    """p ranks with a stage each, m micro-batches; times are whole numbers, at least 1, of any
    unit."""

    p: int
    m: int
    times: dict[str, tuple[int, ...]]  # F, I and W: of stage 0, 1, ...
    message: int  # time of a message between neighbouring ranks
    cap: tuple[int, ...]  # micro-batches with F done and W not, at most, on rank 0, 1, ...
    best: int | None = None  # the shortest makespan, if it is known

    @property
    def whole(self):
        """`times` for schedules whose backwards are full: B takes I + W."""
        F, I, W = (self.times[kind] for kind in "FIW")
        return {"F": F, "B": tuple(i + w for i, w in zip(I, W, strict=True))}

    @property
    def of_1f1b(self):
        """The makespan of 1F1B."""
        return simulate(one_f_one_b(self.p, self.m), self.whole, self.message).makespan

    def time(self, schedule):
        """The makespan of a schedule in F, I and W. Raises ScheduleError for one that deadlocks."""
        return simulate(schedule, self.times, self.message).makespan


def stored():
    """What puzzle.json says: {"what", "date", "python", "torch", "levels": {"1": {"1F1B", "best",
    ...}, ...}}."""
    return json.loads(FILE.read_text(encoding="utf-8"))


LEVELS = {
    1: Puzzle(2, 4, {"F": (2, 2), "I": (2, 2), "W": (2, 2)}, 1, (3, 2)),
    2: Puzzle(3, 5, {"F": (2, 3, 2), "I": (2, 3, 3), "W": (2, 2, 2)}, 1, (4, 3, 3)),
    3: Puzzle(4, 6, {"F": (3, 2, 4, 2), "I": (2, 4, 2, 3), "W": (1, 3, 2, 4)}, 1, (5, 4, 4, 3)),
}
LEVELS = {
    level: puzzle._replace(best=stored()["levels"][str(level)]["best"])
    for level, puzzle in LEVELS.items()
}
