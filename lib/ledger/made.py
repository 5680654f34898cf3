"""Records the process groups that each rank made, in a text file next to its log. We need this
because torch identifies a group across ranks only by its number:

    rank 0  new_group([0, 3])  torch calls it group 1  torch takes the n-th groups of all ranks for
    rank 1  new_group([1, 2])  torch calls it group 1  the same group, so these two use the same
                                                       addresses, and are mixed up or hang

Therefore every rank must call `new_group` for every group, in the same order. We do not record
groups that only their members make (use_local_synchronization=True), because torch names these by a
hash of their ranks, and not by a number.
"""

import json
import os
from dataclasses import dataclass, replace

from lib.ledger.log import now


@dataclass(frozen=True)
class Made:
    """One call of new_group. Times are in seconds, as in an Entry; `done` is None if the call has
    not returned."""

    rank: int
    number: int  # torch's number of the group, where 0 is the group of all ranks
    members: tuple[int, ...]  # global ranks
    file: str
    line: int
    function: str
    posted: float
    done: float | None


class GroupsWriter:
    """The rank's side. It writes a line when a call begins and another one when it has returned, so
    the parent can see that a rank hangs inside the call."""

    def __init__(self, log):
        self.log, self.path = log, f"{log.folder}/groups{log.rank}"

    def begins(self, number: int, members: tuple[int, ...], site: tuple[str, int, str]) -> None:
        self._write([number, now(), members, *site])

    def ends(self, number: int) -> None:
        self._write([number, now()])

    def _write(self, facts):
        with open(self.path, "a") as file:
            file.write(json.dumps(facts) + "\n")
        self.log.touch()


def read(folder: str, rank: int, zero: float) -> list[Made]:
    """The groups of one rank, in the order in which it made them, with times relative to `zero`."""
    path = f"{folder}/groups{rank}"
    if not os.path.exists(path):
        return []
    made = {}
    with open(path) as file:
        for number, when, *facts in (json.loads(line) for line in file if line.endswith("\n")):
            if facts:
                members, file, line, function = facts
                made[number] = Made(
                    rank, number, tuple(members), file, line, function, when - zero, None
                )
            elif number in made:
                made[number] = replace(made[number], done=when - zero)
    return list(made.values())
