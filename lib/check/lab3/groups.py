"""The groups of ranks that Lab 3's exercises run on. A script is given a tuple of them:

    group (0, 1, 2, 3)       case.members, and nothing else
    ... two at once          case.members, and this rank's pair of them: two calls, over different
                             groups, are under way before any goes backward

Groups of two come first: whoever writes it for two ranks is found out next; then whoever takes
ranks of the world for ranks of the group; then one rank alone.
"""

import torch
import torch.distributed as dist

from lib.check import comm
from lib.check import side_by_side as side

WORLD = 4
ALL = tuple(range(WORLD))
GROUPS = ((0, 1), (0, 1, 2), ALL, (1, 3), (2,))
GROUPS_SAY = "1, 2, 3, 4 ranks, a subgroup"
PAIRS = ((0, 1), (2, 3))
AT_ONCE = "and a pair of them, two at once"
MAPPINGS = tuple(
    f"mappings.{name}_group" for name in ("copy_to", "reduce_from", "split_to", "gather_from")
)
MAY_CALL = (
    *comm.MAY_CALL,
    *MAPPINGS,
    "shards.gather_along_dim",
    "groups.all_reduce",
    "groups.given",
)
FUNCTION = {"generators": "no argument is an iterator"}


def groups(cases):
    """{case: (the groups of its calls, two more of its ranks for the recorders of two scripts)}"""
    mine = [dist.new_group(pair) for pair in PAIRS][dist.get_rank() // 2]
    of = lambda case, group: (group, mine) if case.what == AT_ONCE else (group,)
    return {
        case: (of(case, group), *controls)
        for case, (group, *controls) in side.groups_and_controls(cases).items()
    }


def calls(show, groups):
    """[(group, N, this rank's number in it, what is behind names of the second call), ...]"""
    if len(groups) > 1:
        show.allowed = [show.members, *PAIRS]
    return [
        (group, dist.get_world_size(group), dist.get_rank(group), ", the pair" * number)
        for number, group in enumerate(groups)
    ]


def in_place(show):
    """The all_reduce that an answer is given: it returns nothing, as torch's does."""

    def all_reduce(tensor, group=None, op=dist.ReduceOp.SUM):
        show.all_reduce(tensor, group, op)

    return all_reduce


def contiguous_only(collective, odd):
    """The collective, as the answer gets it; `odd` learns of tensors that are not contiguous."""

    def given(tensor, *args, **named):
        if torch.is_tensor(tensor) and not tensor.is_contiguous():
            odd.append(f"{collective.__name__} was given a tensor that is not contiguous")
        return collective(tensor, *args, **named)

    return given
