"""The mistakes that plan_buckets knows."""

from lib.check.framework import Hint


def _is(kind, fact=None):
    return lambda p: p.kind == kind and (fact is None or bool(p.facts.get(fact)))


HINTS = (
    Hint("called lib's", _is("built-in"), "write the loop over the parameters yourself."),
    Hint("not a list of lists", _is("form"), "return [[parameter, ...], ...], the parameters themselves."),
    Hint(
        "the large ones left out",
        _is("once", "large"),
        "a parameter larger than the capacity has a bucket of its own.",
    ),
    Hint(
        "the last bucket left out",
        _is("once", "last"),
        "the bucket that is still open after the loop belongs to the plan too.",
    ),
    Hint(
        "some left out",
        _is("once", "missing"),
        "a parameter that does not fit opens a new bucket: it is its first.",
    ),
    Hint("twice", _is("once", "twice"), "a parameter that opens a new bucket must not stay in the old one as well."),
    Hint(
        "an empty bucket",
        _is("once"),
        "an open bucket is closed only if there is something in it: what if the first parameter is too large?",
    ),
    Hint(
        "forward order",
        _is("order", "forward"),
        "backward goes through the layers from last to first: begin with reversed(parameters).",
    ),
    Hint(
        "forward inside a bucket",
        _is("order", "inside"),
        "reverse the parameters first and then fill buckets, instead of reversing a list of buckets.",
    ),
    Hint(
        "the order of the buckets",
        _is("order"),
        "a bucket is ready when its last parameter is; buckets go in the order in which they are ready.",
    ),
    Hint("elements for bytes", _is("capacity", "elements"), "the capacity is in bytes: p.numel() * p.element_size()."),
    Hint(
        "looked too late",
        _is("capacity", "one_too_many"),
        "the last one came in though it did not fit. Look whether it fits before you put it in.",
    ),
    Hint("room not counted anew", _is("capacity"), "count the bytes of the open bucket, from 0 for each new one."),
    Hint("dtypes mixed", _is("dtype"), "a parameter of another dtype needs another bucket."),
    Hint("one each", _is("many", "alone"), "a bucket takes parameters as long as they fit."),
    Hint(
        "closed too early",
        _is("many"),
        "a bucket may hold exactly `capacity` bytes, and is closed only when the next parameter does not fit.",
    ),
    Hint(
        "turned round in place",
        _is("changed"),
        "list.reverse() and del change the caller's list. reversed(parameters) does not.",
    ),
)
