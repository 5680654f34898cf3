"""Recognises known mistakes by their fingerprints. Students get only a table of fingerprints, and
not the mistakes themselves.

    fingerprints/lab0.json    {"ring_reduce_scatter": {"source": hash of all that it depends on,
                                                       "prints": {fingerprint: [name, ...]}}}

A fingerprint is a hash of the claim that failed, of the Problem's kind and of its trace. Numbers in
a trace are rounded, and a trace never depends on which rank hung first. Each known mistake
(tests/check/mistakes.py) leaves a fingerprint when it is judged like any answer, and `python
tests/check/fingerprints.py` computes the table from these. If a fingerprint belongs to one or two
mistakes, the hint names them. If it belongs to more, the hints with conditions on facts are tried.

An answer that is judged side by side leaves a second, narrower fingerprint. It covers, in all
cases, only the one shown name that is reported as wrong. It therefore recognises a known mistake
even if something else is wrong as well.
"""

import functools
import hashlib
import json
import math
from pathlib import Path

FOLDER = Path(__file__).with_name("fingerprints")
SEVERAL = 2  # the most mistakes that one fingerprint may name
TRY = "Try: "  # the beginning of a hint that gives advice
# The beginnings of other hints: USUAL if the whole failure is known, POSSIBLE if only the wrong
# value is known, and HINT if only a condition fits. A condition does not prove a cause, so such a
# hint states what holds and which rule is broken.
USUAL, POSSIBLE, HINT = "Usual cause: ", "Possible cause: ", "Hint: "
DIGITS = 6
NOTHING = 1e-9  # a number this small, relative to its largest neighbour, counts as 0


def of(claim, problem) -> str:
    """The fingerprint of the Problem that this claim found."""
    return print_of(claim, problem, problem.text if problem.trace is None else problem.trace)


def all_of(claim, problem) -> list[str]:
    """The fingerprint, and the narrower one if there is one."""
    narrower = problem.fact("narrower")
    return [of(claim, problem), *([print_of(claim, problem, narrower)] if narrower else [])]


def print_of(claim, problem, trace):
    plain = json.dumps([claim.name, problem.kind, _rounded(trace)], sort_keys=True, default=str)
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def hint_for(exercise, claim, problem) -> tuple[str | None, str]:
    """(name, sentence) of the hint to give; (None, "") if none fits."""
    prints = table(exercise).get("prints", {})
    known = [prints.get(one, []) for one in all_of(claim, problem)]
    names = next((names for names in known if 1 <= len(names) <= SEVERAL), [])
    if names:
        label = USUAL if names == known[0] else POSSIBLE
        return " or ".join(names), labelled(_sentences(exercise, names), label)
    hint = by_condition(exercise, problem)
    if not hint:
        return None, ""
    return hint.name, labelled([hint.text], USUAL if hint.certain else HINT)


def by_condition(exercise, problem):
    """The first hint of the exercise whose condition fits, or None."""
    return next((hint for hint in exercise.hints if hint.fits(problem)), None)


def _sentences(exercise, names):
    """The sentences of the hints with these names. If two hints have the same name, the first
    counts, because an exercise's own hints come before most of the generic ones."""
    known = {hint.name: hint.text for hint in reversed(exercise.hints)}
    return [known[name] for name in names if name in known]


def labelled(sentences: list[str], label: str = USUAL) -> str:
    """The hints as one text. Advice begins with "Try:", and any other sentence gets the label. If
    there are both, the advice comes last."""
    causes = [text for text in sentences if not text.startswith(TRY)]
    advice = [text.removeprefix(TRY) for text in sentences if text.startswith(TRY)]
    shown = [label + " Or: ".join(causes)] if causes else []
    if advice:
        shown.append(("Or try: " if causes else TRY) + " Or: ".join(advice))
    return " ".join(shown)


@functools.cache
def tables() -> dict[str, dict]:
    """{exercise: its table}, for all labs."""
    found = {}
    for path in sorted(FOLDER.glob("*.json")):
        found |= json.loads(path.read_text(encoding="utf-8"))
    return found


def table(exercise) -> dict:
    # tests that judge several answers together name them "ring_all_reduce 1", ...
    return tables().get(exercise.name.partition(" ")[0], {})


def _rounded(value, scale=0.0):
    """The value as plain data, in which every float is a text with DIGITS significant digits.

    scale: the largest of the neighbouring numbers. A number that is negligible compared with it is
        only a rounding error, which differs from processor to processor, so it becomes 0.
    """
    if isinstance(value, dict):
        return {str(key): _rounded(one, scale) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        scale = max(
            (abs(one) for one in value if isinstance(one, float) and math.isfinite(one)),
            default=scale,
        )
        return [_rounded(one, scale) for one in value]
    if isinstance(value, float):
        return f"{0.0 if abs(value) <= NOTHING * scale else value:.{DIGITS}g}"
    return value
