"""The groups of ranks on which the exercises of Lab 3 run. A script receives a tuple of groups:

    a plain case             the group of case.members, and nothing else
    ... two at once          that group, and the pair that this rank belongs to: there are two
                             calls, over different groups, and both forward passes run before
                             either backward pass

In most exercises the plain cases run in the order of GROUPS: two, three and four ranks, then a
subgroup, in which a rank's number differs from its global rank, and finally a single rank. A hint
can therefore draw a conclusion from the first group on which an answer fails. The hints on groups
are tried before an exercise's own, and the hints on what the ranks called are tried after them.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib.check import comm, shown
from lib.check import side_by_side as side
from lib.check import symptoms as s
from lib.check.cases import groups_of
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
    together = cases[0], replace(cases[0], again=1)  # same shapes, so a cached buffer is reused
    options = {"groups": groups, "together": together} | options
    return side.SideBySide(script, reference, cases, **options)


def exercise(measure, families, *rows, leaves_out=FUNCTION, may_call=MAY_CALL, bonus=False):
    """families: the sections of hints that this exercise shares with others. rows: the claims;
    CALLS in a row stands for the judge of the collectives that the ranks call."""

    def first_on(members):  # the first case that fails is the plain one on these ranks
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
    """{case: a tuple with the group of each call}"""
    mine = [dist.new_group(pair) for pair in PAIRS][dist.get_rank() // 2]
    of = lambda case, group: (group, mine) if case.what == AT_ONCE else (group,)
    return {case: of(case, group) for case, group in groups_of(cases).items()}


def calls(show, groups):
    """[(group, its size N, this rank's number in it, a suffix for names), ...]. The suffix is ""
    for the first call and ", the pair" for the second."""
    if len(groups) > 1:
        show.allowed = [show.members, *PAIRS]
    return [
        (group, dist.get_world_size(group), dist.get_rank(group), ", the pair" * number)
        for number, group in enumerate(groups)
    ]


def contiguous_only(collective, odd):
    """`collective`, wrapped for the answer. Each call with a tensor that is not contiguous appends
    a sentence to the list `odd`."""

    def given(tensor, *args, **named):
        if torch.is_tensor(tensor) and not tensor.is_contiguous():
            odd.append(f"{collective.__name__} was given a tensor that is not contiguous")
        return collective(tensor, *args, **named)

    return given
