"""Hints of exercises that are judged side by side: sentences stored by name, and generic hints.

The sentences are in sentences/<lab>.toml:

    [recompute]
    "the graph is kept" = "more than x is kept until backward. Call f without a graph ..."
    "something raised" = "Try: go through it by hand for one layer. ..."

A sentence that gives advice begins with "Try: "; every other names the cause (fingerprints.py).

Most hints are found by the fingerprint of a known mistake (fingerprints.py). Some also have a
predicate, which looks at a Problem's kind and facts. Generic hints come last. They are about what
the harness detects by itself, whatever the exercise builds.
"""

import functools
import re
import tomllib
from pathlib import Path

from lib.check import symptoms as s
from lib.check.exercise import Hint

FOLDER = Path(__file__).with_name("sentences")


@functools.cache
def _sentences(lab: str) -> dict[str, dict[str, str]]:
    with open(FOLDER / f"{lab}.toml", "rb") as file:
        return tomllib.load(file)


def hints(lab: str, exercise: str, *families: str, **predicates) -> tuple[Hint, ...]:
    """The hints of an exercise, including those of families of exercises that it belongs to.

    predicates: tried in this order if no fingerprint is known. Each has the name of its hint, with
        underscores for spaces and hyphens.
    """
    sentences = _sentences(lab)
    known = functools.reduce(dict.__or__, (sentences[name] for name in (*families, exercise)))
    as_argument = lambda name: re.sub(r"\W", "_", name)
    names = {as_argument(name): name for name in known}
    wanted = {names.get(as_argument(name), name): fits for name, fits in predicates.items()}
    if unknown := wanted.keys() - known.keys():
        raise ValueError(f"sentences/{lab}.toml has no {sorted(unknown)} of {exercise}")
    never = lambda p: False
    ordered = [*wanted, *(name for name in known if name not in wanted)]
    own = (Hint(name, wanted.get(name, never), known[name]) for name in ordered)
    return (LATER, *own, *GENERIC)


def of_name(*names):
    """A predicate: the name of the shown value begins with one of these."""
    return lambda p: str(p.fact("name", "")).startswith(names)


def in_variant(*variants):
    """A predicate: it happened in the first case, called in one of these ways (probes.py)."""
    return lambda p: getattr(p.fact("case"), "what", "").endswith(variants)


def another(cases, *names):
    """A predicate: a value or form differs from lib's, in one of these cases and under a name that
    begins with one of these. It excludes values that are rounded, None, or of another dtype,
    because GENERIC has hints for them."""

    def fits(p):
        told = p.fact("narrowed") or p.fact("dtype") or p.fact("got") == "None"
        return (
            p.kind in ("value", "form", "returned")
            and not told
            and (p.fact("case") in cases and of_name(*names)(p))
        )

    return fits


# tried before all others, because the same call was right the first time
LATER = Hint("used again by a later call", in_variant("once more"),
             "the first call was right and a later one is not, because something is kept from one "
             "call to the next: a buffer, a counter, or the list in a default argument. Make it "
             "anew in each call.")  # fmt: skip
GENERIC = (
    Hint("called what it builds", s.kind("built-in"),
         "Try: write it yourself, from what its docstring allows, because this is what the "
         "exercise builds."),
    Hint("no gradient",
         lambda p: of_name("graph")(p) or (p.kind == "returned" and of_name("the gradient of")(p)),
         "the graph is cut, for example by detach, item, no_grad or a new tensor made of numbers. "
         "An empty result belongs to the graph, too."),
    s.NO_NUMBER,
    s.ENDLESS,
    s.UNDER_WAY,
    s.EXITED,
    s.CONDITION,
    Hint("shared by two calls", in_variant("two at once", "the other of two"),
         "one call alone was right. Here a second one starts before the backward pass of the "
         "first, so keep what belongs to one call on self or on ctx, not on the class, on the "
         "function or in a global."),
    Hint("contiguous only", s.both(in_variant("strided"), lambda p: not of_name("alive")(p)),
         "it is right for contiguous tensors only, which x.view and x.data_ptr need. x.reshape and "
         "x.contiguous() work for all."),
    Hint("of one dtype only", in_variant("float32", "bfloat16"),
         "it was right in float64, and another dtype is not handled. Take dtype and device from "
         "what you are given."),
    Hint("rounded on the way", s.fact("narrowed"),
         "these are the right values, rounded, because they were in a narrower dtype on the way. "
         ".float(), torch.zeros(n) and torch.empty(n) are float32."),
    Hint("another dtype", s.either(s.kind("form", "clash", dtype=True), s.refused("dtype")),
         "the result, or something on the way, does not have the dtype of what the function is "
         "given."),
    Hint("arguments changed", of_name("arguments"),
         "your function changes what it is given, which belongs to the caller. Create new tensors "
         "and lists."),
    Hint("not a copy", of_name("storage"),
         "the result shares the memory of an argument. Return a tensor with memory of its own."),
    Hint("the random generator moved", of_name("generators"),
         "your function draws from, or seeds, a random generator that others use as well."),
    Hint("still alive", of_name("alive"),
         "something that is no longer needed is still referenced by an attribute, a list, or a "
         "view of a larger tensor."),
    *s.PYTHON,
    s.RAISED,
    s.UNREADABLE,
)  # fmt: skip
