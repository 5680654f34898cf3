"""Hints that exercises share. Each has a sentence, and a predicate on the typed facts of a Problem.
No predicate reads a Problem's text.

An exercise lists those that apply among its own, the more specific ones first:

    hints=(BUILT_IN, RETURNED_NONE, WHOSE_RANKS, ALL_SEND_FIRST, NARROW,
           Hint("another rank's chunk", ...), NOT_PAIRED)

`kind` and `fact` make predicates: kind("value"), fact("doubled"), kind("form", dtype=True).
"""

from lib.check.exercise import Hint
from lib.check.failure import HANGS

P2P = ("send", "recv", "p2p.send", "p2p.recv", "p2p.send_recv", "p2p.exchange")
SHAPES = ("value", "form", "mismatch", "raised", "died", *HANGS)  # what a wrong size can lead to


def failed(p):
    """What is known of the run if it failed (raised, hung, or sent messages that do not match),
    else None."""
    return p.fact("failed")


def hung(p):
    return p.kind in HANGS


def kind(*kinds, **facts):
    """A predicate: the Problem is of one of these kinds, and each of these facts is as `fact`
    requires."""
    return lambda p: p.kind in kinds and all(fact(name, value)(p) for name, value in facts.items())


def fact(name, value=True):
    """A predicate: the fact is there and true or, if a value is given, equals it."""
    return lambda p: bool(p.fact(name)) if value is True else p.fact(name) == value


def both(*predicates):
    return lambda p: all(fits(p) for fits in predicates)


def either(*predicates):
    return lambda p: any(fits(p) for fits in predicates)


def refused(*names):
    """A predicate: an exception of torch or lib says one of these. names: keys of
    `failure.REFUSALS`."""
    return lambda p: failed(p) is not None and bool(failed(p).refusals & set(names))


def raised(*types):
    return lambda p: (
        p.kind == "raised" and (failed(p).raised if failed(p) else p.fact("raised")) in types
    )


def all_wait_in(op):
    return lambda p: failed(p) is not None and failed(p).all_wait_in(op)


def case_of(p, cases):
    """The Case in which the Problem was observed, or None. cases: the exercise's."""
    if "case" in p.facts:
        return p.facts["case"]
    return next((case for case in cases if failed(p) and case.name == failed(p).case), None)


def members(p):
    """The global ranks of the case in which the Problem was observed; () if it was in none."""
    if "case" in p.facts:
        return p.facts["case"].members
    return failed(p).members if failed(p) and failed(p).case else ()


def left_under_way(p):
    """True if the answer returned while something that it started was in flight, or if ranks wait
    for each other outside of any call of it."""
    if failed(p) is not None and failed(p).raised == "NotWaitedFor":
        return True
    return (
        p.kind == "timeout"
        and failed(p) is not None
        and not failed(p).case
        and bool(failed(p).awaited)
    )


def mixed_up_ranks(p):
    """True if something went wrong in a group whose ranks are not 0 to N-1. Such groups come last,
    so the answer was right in all others."""
    where = members(p)
    return len(where) > 1 and where != tuple(range(len(where)))


def whose_ranks(p):
    """True if global ranks were taken for ranks of the group."""
    beyond = failed(p) is not None and (
        failed(p).beyond_the_group() or "to itself" in failed(p).refusals
    )
    return p.kind == "group" or beyond or (p.kind in SHAPES and mixed_up_ranks(p))


def remainder(cases):
    """A predicate: something went wrong where N does not divide n, in a group that was right where
    it does."""

    def fits(p):
        case = case_of(p, cases)
        return p.kind in SHAPES and case is not None and case.n % case.world_size > 0

    return fits


def in_case(cases, test, *kinds):
    """A predicate: it was in a case that passes this test, and of one of these kinds if any are
    given.

    For example, in_case(CASES, lambda case: case.world_size == 1, *SHAPES).
    """

    def fits(p):
        case = case_of(p, cases)
        return p.kind in (kinds or (p.kind,)) and case is not None and bool(test(case))

    return fits


def another_dtype(p):
    mismatch = failed(p) is not None and failed(p).mismatch == "dtype"
    return mismatch or p.kind == "wire dtype" or (p.kind == "form" and bool(p.fact("dtype")))


NO_NUMBER = Hint(
    "nothing returned",
    lambda p: p.kind in ("returned", "number") and p.fact("got") == "None",
    "Try: end the function with `return ...`.",
)
ENDLESS = Hint(
    "never ends",
    lambda p: p.kind in ("endless", "timeout") and not left_under_way(p),
    "a loop never reaches its end. Look for the value that its condition tests, and for the line "
    "that should change it.",
)
UNDER_WAY = Hint(
    "a message that nobody waits for",
    left_under_way,
    "your function has returned on these ranks while messages that it started may still be in "
    "flight, so everything after it waits for them. Call .wait() on every work that isend, irecv, "
    "a batch or async_op=True returns.",
)
RAISED = Hint(
    "an error in one case",
    kind("raised"),
    "your function does not handle what it is given in this case. Go through the line above with "
    "these values, and print what it uses just before it.",
)
# Errors that Python itself raises. Those in CERTAIN leave no doubt about their cause, so they are
# tried before the hints of an exercise.
CERTAIN = (
    Hint(
        "a name that does not exist",
        raised("NameError"),
        "Python does not know this name where your function runs. Compare its spelling with the "
        "names that you define, and run the cell that defines it.",
    ),
    Hint(
        "a variable without a value",
        raised("UnboundLocalError"),
        "on this path through your function the variable gets no value before it is read. Assign "
        "it before the `if` or the loop.",
    ),
    Hint(
        "another signature",
        kind("signature"),
        "Try: keep the parameters of the exercise, with their names, order and default values, "
        "because later cells call it in the same way.",
    ),
)
PYTHON = (
    *CERTAIN,
    Hint(
        "an attribute that does not exist",
        raised("AttributeError"),
        "the object has no attribute of this name. Print type(...) of it just before this line; "
        "a NoneType often comes from a function without `return`, or from a .grad that does not "
        "exist.",
    ),
    Hint(
        "an index that does not exist",
        raised("IndexError"),
        "the list or the tensor is shorter than this index. Print its length just before this "
        "line; N ranks count from 0 to N-1, and a rank may have nothing at all.",
    ),
    Hint(
        "a key that does not exist",
        raised("KeyError"),
        "the dict has no such key. Print its keys just before this line.",
    ),
)
CONDITION = Hint(
    "a tensor as a condition",
    refused("truth"),
    "a tensor of several elements is neither true nor false. `is None` tests whether there is a "
    "tensor, and torch.equal or .any() what its elements are.",
)
EXITED = Hint(
    "exits",
    kind("exited"),
    "Try: return from the function, because nothing in a lab should end the process.",
)
UNREADABLE = Hint(
    "another kind of result",
    kind("unreadable"),
    "Try: return what the docstring says, in that form and nothing else.",
)
IN_PLACE = Hint(
    "not in place",
    kind("in place"),
    "the caller's tensor must contain the result, so write into it: tensor.copy_(result). "
    "`tensor = result` only gives the name to another tensor.",
)
NOTHING_ADDED = Hint(
    "unsummed",
    lambda p: p.fact("own") and not p.fact("finished"),
    "the tensor still contains what it did before, probably because the sum is in another tensor, "
    "which is then lost.",
)
ALL_SEND_FIRST = Hint(
    "everyone sends first",
    all_wait_in("send"),
    "a send ends only when its receive has been posted, and every rank is still in its send. "
    "p2p.send_recv posts both at once.",
)
NOT_PAIRED = Hint(
    "a receive without its send",
    either(
        hung,
        lambda p: (
            p.kind == "mismatch" and failed(p) and failed(p).mismatch not in ("size", "dtype")
        ),
    ),
    "a rank waits for a message that no rank sends. Write down, for 3 ranks and each round, which "
    "rank sends to which and which receives from which, because the two lists must be the same.",
)
CALLED_LIB = Hint(
    "called lib's", kind("built-in"), "Try: build it from what the function is given."
)
ANYWHERE = (
    ENDLESS,
    UNDER_WAY,
    EXITED,
    UNREADABLE,
    CONDITION,
    *PYTHON,
    RAISED,
)  # for every exercise, last


OTHER_WAY_ROUND = Hint(
    "the other way round",
    lambda p: (
        p.kind == "neighbours"
        and p.facts["peers"] == [(p.facts["rank"] - 1) % p.facts["case"].world_size]
    ),
    "it is a ring, but it goes to the left. Send to the right, (rank + 1) % N, and receive from "
    "the left.",
)


def nothing_there(cases):
    some_empty = both(hung, in_case(cases, lambda case: case.n < case.world_size))
    return Hint(
        "right only where there is something",
        either(both(kind(*SHAPES), in_case(cases, lambda case: case.n == 0)), some_empty),
        "here some chunks are empty, or all of them. A rank with an empty chunk still takes part "
        "in all its rounds, because the others wait for it.",
    )


def alone(cases):
    return Hint(
        "one rank alone",
        both(kind(*SHAPES, "shared"), in_case(cases, lambda case: case.world_size == 1)),
        "here N is 1, so there is no other rank to send to, and the result is what the rank itself "
        "has.",
    )


TWO_ONLY = Hint(
    "right on two ranks only",
    lambda p: p.kind in SHAPES and len(members(p)) > 2,
    "two ranks were right. With more, there is a rank that is neither the first nor the last, so "
    "write it for rank r of N.",
)
