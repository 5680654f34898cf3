"""What the hints for Zero2 look at."""

from math import isclose

from lib.check.lab0.mistakes import hung


def raised(*words):
    """Fits if the answer raised something that says one of `words`."""
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


def value(fits=lambda facts: True):
    return lambda p: p.kind == "value" and fits(p.facts)


def by(factor):
    """Fits if the gradient is right but for this factor, a function of N."""
    return value(lambda f: f["factor"] is not None and isclose(f["factor"], factor(f["world_size"])))


def in_case(words):
    """Fits if it went wrong in a case with these words."""
    return lambda p: words in (p.facts["failed"].case if "failed" in p.facts else p.text.splitlines()[0])


def numbers(p):
    return p.kind in ("value", "form", "raised", "unlike", "mismatch", "died") or hung(p)
