"""Hints of exercises that are judged side by side: data in sentences/<lab>.toml, and generic hints.

    [recompute]
    "the graph is kept" = "more than x is kept until backward. Call f without a graph ..."
    "the seed" = {when = "the generator after", says = "Try: restore what you have saved ..."}
    "no number" = {when = {kind = "raised", refused = "None"}, says = "f may return ..."}

Most hints are found by the fingerprint of a known mistake (fingerprints.py). `when` says which
other Problems a hint fits. Several mistakes can make the same condition true, so a sentence with a
`when` names none of them. It says what the condition proves, which rule is broken and why the rule
holds, or, after "Try: ", what to look at.

A string after `when` fits if the name of the wrong value begins with it, and a list of strings fits
if one of them does. A table fits if all of its keys do (`CONDITIONS`), and a list of tables if one
of them does. A condition that cannot be written like this is a predicate in the exercise's file: a
function of the Problem. The generic hints are about what the harness detects by itself in any
exercise. A few of them are tried before the exercise's own hints, and most after them.
"""

import functools
import re
import tomllib
from dataclasses import replace
from math import isclose
from pathlib import Path

from lib.check import probes
from lib.check import symptoms as s
from lib.check.exercise import Hint

FOLDER = Path(__file__).with_name("sentences")
KINDS = {"a wrong size": s.SHAPES, "a hang": s.HANGS}  # each name means several kinds of Problem


@functools.cache
def _sentences(lab: str) -> dict[str, dict[str, str | dict]]:
    with open(FOLDER / f"{lab}.toml", "rb") as file:
        return tomllib.load(file)


def hints(lab: str, *sections: str, **predicates) -> tuple[Hint, ...]:
    """The hints of an exercise, in the order in which they are tried.

    sections: the sections of sentences/<lab>.toml that belong to the exercise, its own and those
        that it shares with others. If two hints have the same name, the first counts.
    predicates: the conditions of hints without a `when`. Each has the name of its hint, with
        underscores for spaces and punctuation.
    """
    known: dict[str, str | dict] = {}
    for name in sections:
        known = {**known, **{k: v for k, v in _sentences(lab)[name].items() if k not in known}}
    as_argument = lambda name: re.sub(r"\W", "_", name)
    names = {as_argument(name): name for name, said in known.items() if isinstance(said, str)}
    if unknown := [name for name in predicates if as_argument(name) not in names]:
        raise ValueError(f"sentences/{lab}.toml, {sections}: no hint without `when` is {unknown}")
    given = {names[as_argument(name)]: fits for name, fits in predicates.items()}
    own = (_hint(name, said, given.get(name, _never)) for name, said in known.items())
    return (*FIRST, *own, *GENERIC)


def _hint(name, said, fits):
    if isinstance(said, str):
        return Hint(name, fits, said)
    return Hint(name, condition(said["when"]), said["says"])


def _never(p):
    return False


def condition(when):
    """The predicate that this `when` describes (see the top of this file)."""
    if isinstance(when, dict):
        if unknown := when.keys() - CONDITIONS.keys():
            raise ValueError(f"{sorted(unknown)} in {when}: there are {', '.join(CONDITIONS)}")
        return s.both(*(CONDITIONS[key](*_listed(value)) for key, value in when.items()))
    if isinstance(when, str) or isinstance(when[0], str):
        return of_name(*_listed(when))
    return s.either(*map(condition, when))


def _listed(value):
    return value if isinstance(value, list) else [value]


def of_name(*names):
    """A predicate: the name of the shown value begins with one of these."""
    return lambda p: str(p.fact("name", "")).startswith(names)


def in_variant(*variants):
    """A predicate: the Problem was found in one of these variants of the first case (probes.py)."""
    return lambda p: getattr(p.fact("case"), "what", "").endswith(variants)


def differs(*names):
    """A predicate: a value or form differs from lib's under a name that begins with one of these,
    and not in a variant (probes.py). Values that are rounded, None, or of another dtype are
    excluded, because GENERIC has hints for them."""

    def fits(p):
        told = p.fact("narrowed") or p.fact("dtype") or p.fact("got") == "None"
        usual = not in_variant(*probes.VARIANTS)(p)
        return p.kind in ("value", "form", "returned") and not told and usual and of_name(*names)(p)

    return fits


def _kind(*kinds):
    return s.kind(*(one for kind in kinds for one in KINDS.get(kind, (kind,))))


def in_case(*parts):
    """A predicate: the name of the case in which the Problem was found has one of these as a part
    between commas."""

    def fits(p):
        case = p.fact("case")
        name = case.name if case is not None else s.failed(p).case if s.failed(p) else ""
        return any(f", {part}, " in f", {name}, " for part in parts)

    return fits


def times(*factors):
    """A predicate: all elements are wrong by one of these factors, "N" or "1/N"."""

    def fits(p):
        factor, case = p.fact("factor"), p.fact("case")
        by = {"N": case.world_size, "1/N": 1 / case.world_size} if case is not None else {}
        return factor is not None and any(isclose(factor, by[one], rel_tol=1e-9) for one in factors)

    return fits


ALSO = {
    "a rank outside the group": s.whose_ranks,
    "a subgroup": s.mixed_up_ranks,
    "one rank": lambda p: len(s.members(p)) == 1,
    "under way": s.left_under_way,
}
# the keys that a table after `when` may have
CONDITIONS = {
    "name": of_name,
    "case": in_case,
    "kind": _kind,
    "differs": differs,
    "factor": times,
    "fact": lambda *names: s.both(*map(s.fact, names)),  # these are true
    "lacks": lambda *names: lambda p: not any(map(p.fact, names)),  # none of these is
    "facts": lambda facts: s.both(*(s.fact(*one) for one in facts.items())),  # have these values
    "variant": in_variant,
    "refused": s.refused,
    "raised": s.raised,
    "all_wait_in": s.all_wait_in,
    "also": lambda *names: s.both(*(ALSO[name] for name in names)),
}


def _generic(section):
    return tuple(_hint(name, said, _never) for name, said in _sentences("generic")[section].items())


FIRST = tuple(replace(hint, certain=True) for hint in _generic("first"))
GENERIC = _generic("last")
