"""The groups of ranks that Lab 3's exercises run on, and what these exercises have in common: how
they are measured, and the hints on groups. A script is given a tuple of groups:

    group (0, 1, 2, 3)       case.members, and nothing else
    ... two at once          case.members, and this rank's pair of them: two calls, over different
                             groups, are under way before any goes backward

Groups of two come first: whoever writes it for two ranks is found out next; then whoever takes
ranks of the world for ranks of the group; then one rank alone.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib.check import comm, shown
from lib.check import side_by_side as side
from lib.check import symptoms as s
from lib.check.causes import hints, in_variant
from lib.check.exercise import Exercise

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
CALLS = shown.calls


def first_on(members):
    """Where groups before this one were right: trouble in one plain call on it."""
    return s.in_case((), lambda case: (case.members, case.what) == (members, ""), *s.SHAPES)


HINTS = {
    "the_group_is_not_passed_on": s.kind("group"),
    "shared_by_two_calls": in_variant("two at once", "the other of two"),
    "right_on_two_ranks_only": first_on(GROUPS[1]),
    "group_None": first_on(ALL),  # as the default argument, and the only None among GROUPS
    "ranks of the world, not of the group": s.whose_ranks,
    "one_rank_alone": s.in_case((), lambda case: case.world_size == 1, *s.SHAPES),
    "not_what_it_was_given": s.kind("another way"),
    "not_on_every_rank": s.kind("clash"),
    "other_calls": s.kind("calls"),
}


def measure(script, reference, cases, **options):
    together = cases[0], replace(cases[0], again=1)  # of one shape: a buffer of it is kept
    options = {"groups": groups, "together": together} | options
    return side.SideBySide(script, reference, cases, **options)


def exercise(measure, families, predicates, *rows, leaves_out=FUNCTION, **more):
    """families: of hints. rows: the claims; CALLS in one is the judge of what the ranks call."""
    name = measure.reference.__name__
    with_judges = [[CALLS(measure) if one is CALLS else one for one in row] for row in rows]
    return Exercise(
        name=name, reference=measure.reference, measure=measure, worlds=(WORLD,),
        leaves_out=leaves_out, **{"may_call": MAY_CALL} | more,
        claims=shown.claims(measure, *with_judges),
        hints=hints("lab3", name, "of_a_group", *families, **predicates),
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
