"""Hints that several of Lab 2's schedules share, and what hints look at.

A Problem of a schedule has these kinds: of `pure.py` (built-in, raised, not kept), of reading
(nothing, iterator, lists, actions), of `validate` (unknown, place, missing, twice, order,
deadlock), kinds (a whole backward for a split one, or the reverse), and those that an exercise
adds.
"""

from itertools import pairwise

from lib.check import symptoms as s
from lib.check.exercise import Hint
from lib.check.pure import ONCE


def few_microbatches(problem):
    """Is it wrong only where there are fewer micro-batches than ranks? Those cases come last."""
    p, m = problem.facts.get("case", (0, 0))
    return m < p


def begins_backward(problem):
    """Does some rank begin with anything but a forward?"""
    return any(actions[0].kind != "F" for actions in problem.facts["seen"][problem.facts["case"]])


def forwards_first(schedule, p, m, v=1):
    """Does every rank run all forwards of its v stages before anything else?"""
    return all(action.kind == "F" for actions in schedule for action in actions[: v * m])


def weights_last(schedule, p, m, v=1):
    """Does every rank end with all W of its v stages?"""
    return all(action.kind == "W" for actions in schedule for action in actions[-v * m :])


def weights_at_once(schedule, p, m):
    """Does every W follow its own I?"""
    after = [(a, b) for actions in schedule for a, b in pairwise(actions) if b.kind == "W"]
    return all(a == b._replace(kind="I") for a, b in after)


def same(schedule, other):
    """Are they the same lists, be they lists or tuples?"""
    return [*map(list, schedule)] == other


CALLED_LIBS = s.CALLED_LIB.saying(
    "write the lists yourself: two loops, over ranks and micro-batches."
)
SEVERAL_RANKS_ONLY = Hint("right for several ranks only",
                          lambda p: p.facts.get("case", (0,))[0] == 1 and p.facts["case"][1] > 1,
                          "here p is 1. The one rank is the first and the last: its list is made "
                          "as everyone else's, by the same lines.")  # fmt: skip
FORM = (
    CALLED_LIBS,
    SEVERAL_RANKS_ONLY,
    ONCE,
    s.NOT_KEPT,
    Hint("nothing returned", s.kind("nothing"), "the function must end with `return schedule`."),
    Hint("an iterator", s.kind("iterator"),
         "a generator, a map or a zip is used up once it has been read, and later cells read a "
         "schedule several times. Make lists: list(...), [...]."),
    Hint("not a list per rank", s.kind("lists"),
         "return [[actions of rank 0], [actions of rank 1], ...], each in the order in which that "
         "rank runs them."),
    Hint("not actions", s.kind("actions"),
         'stage 2\'s forward on micro-batch 0 is Action(2, "F", 0), also written parse("2F0"). '
         "Later cells read its .stage, .kind and .microbatch."),
)  # fmt: skip
NOT_ITS_STAGE = Hint("another rank's stage", s.kind("wrong rank"),
                         "rank i has one stage, stage i, and its list has the actions of that "
                         "stage alone.")  # fmt: skip


def _counts_from_0(problem):
    """Has some list the stage 0, and some the micro-batch 0?"""
    actions = [
        action for actions in problem.facts["seen"][problem.facts["case"]] for action in actions
    ]
    return 0 in {action.stage for action in actions} and 0 in {
        action.microbatch for action in actions
    }


NUMBERS = (
    Hint("past the last", s.both(s.kind("unknown"), _counts_from_0),
         "there are micro-batches 0 to m-1, and as many stages as said above: leave out what goes "
         "beyond."),
    Hint("counted from one", s.kind("unknown"), "ranks, stages and micro-batches count from 0."),
)  # fmt: skip
TWICE = Hint("twice", s.kind("twice"), "an action is listed twice: each is done once.")
WHOLE_BACKWARD = Hint("halves of a backward", s.kind("kinds"),
                      "a backward is whole here, B. Its halves I and W come with the zero-bubble "
                      "schedules.")  # fmt: skip
HALVES_ONLY = Hint("a whole backward", s.kind("kinds"),
                   "every backward is split here: I first, its W later.")  # fmt: skip
W_FIRST = Hint("W before its I", s.kind("order"),
               "I of a micro-batch stands before its W: it brings the gradient of the output on "
               "which W works.")  # fmt: skip
NO_BACKWARD = Hint(
    "no backward",
    lambda p: (
        p.kind == "missing"
        and not any(a.kind in "BI" for a in p.facts["expected"] - p.facts["missing"])
    ),
    "the backwards are part of the schedule, one for every F.",
)
