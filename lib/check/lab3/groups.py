"""The groups of ranks on which the exercises of Lab 3 run. A script receives a tuple of groups:

    4 ranks                  case.members, and nothing else
    ... two at once          case.members, and this rank's pair of them: two calls, over different
                             groups, are in flight before any goes backward

The order of the groups lets a hint conclude something from the case that fails. Two ranks come
first, then three and four, then a subgroup, whose ranks differ from those of the world, and one
rank alone. The hints on groups are therefore tried before an exercise's own, and those on what the
ranks called after them.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib.check import comm, shown
from lib.check import side_by_side as side
from lib.check import symptoms as s
from lib.check.causes import hints

WORLD = 4
ALL = tuple(range(WORLD))
GROUPS = ((0, 1), (0, 1, 2), ALL, (1, 3), (2,))
GROUPS_SAY = "1, 2, 3, 4 ranks, a subgroup"
PAIRS = ((0, 1), (2, 3))
AT_ONCE = "and a pair of them, two at once"
MAY_CALL = (
    *comm.MAY_CALL, "mappings.copy_to_group", "mappings.reduce_from_group",
    "mappings.split_to_group", "mappings.gather_from_group", "shards.gather_along_dim",
    "f_and_g.all_reduce", "groups.given",
)  # fmt: skip
FUNCTION = {"generators": "no argument is an iterator"}
CALLS = shown.calls


def measure(script, reference, cases, **options):
    together = cases[0], replace(cases[0], again=1)  # of one shape: a buffer of it is kept
    options = {"groups": groups, "together": together} | options
    return side.SideBySide(script, reference, cases, **options)


def exercise(measure, families, *rows, leaves_out=FUNCTION, may_call=MAY_CALL, bonus=False):
    """families: sections of hints that it shares with others. rows: the claims; CALLS in one is the
    judge of what the ranks call."""

    def first_on(members):  # a plain call on these ranks fails, and those before it were right
        plain = lambda case: (case.members, case.what) == (members, "")
        return s.in_case(measure.cases, plain, *s.SHAPES)

    name = measure.reference.__name__
    with_judges = [[CALLS(measure) if one is CALLS else one for one in row] for row in rows]
    return measure.exercise(
        *with_judges,
        worlds=(WORLD,), may_call=may_call, leaves_out=leaves_out, bonus=bonus,
        hints=hints(
            "lab3", "of_a_group", name, *families, "calls_of_a_group",
            right_on_two_ranks_only=first_on(GROUPS[1]),
            group_None=first_on(ALL),  # the default argument, and the only None among GROUPS
        ),
    )  # fmt: skip


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


def contiguous_only(collective, odd):
    """The collective, as the answer gets it; `odd` learns of tensors that are not contiguous."""

    def given(tensor, *args, **named):
        if torch.is_tensor(tensor) and not tensor.is_contiguous():
            odd.append(f"{collective.__name__} was given a tensor that is not contiguous")
        return collective(tensor, *args, **named)

    return given
