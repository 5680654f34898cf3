"""On which ranks Lab 1's functions are checked: groups of one launch of four.

    None     all four ranks, as the default argument says
    0 1 2    whoever divides by the world's size instead of the group's is found out here
    1   3    and here whoever takes ranks of the world for ranks of the group

`in_step`, `groups_of`, `called` and `seen` are Lab 0's.
"""

from dataclasses import dataclass

WORLD = 4
GROUPS = (tuple(range(WORLD)), (0, 1, 2), (1, 3))
GROUPS_SAY = "4 ranks, groups of 3 and 2"


@dataclass(frozen=True)
class Case:
    """One call of `function` on these global ranks. what: whatever else tells it from its other cases."""

    function: str
    members: tuple[int, ...]
    what: str = ""

    @property
    def world_size(self) -> int:
        return len(self.members)

    @property
    def where(self) -> str:
        group = f"{WORLD} ranks" if self.world_size == WORLD else f"group {self.members}"
        return ", ".join(filter(None, [group, self.what]))

    @property
    def name(self) -> str:
        """The label of the case's section in the ledger."""
        return f"{self.function}, {self.where}"

    def rank(self, number) -> str:
        """A rank of the group in words."""
        return f"rank {number}" if self.world_size == WORLD else f"rank {number} of the group"


def group_argument(group):
    """The trailing arguments that name `group`: none where the default does."""
    return () if group is None else (group,)
