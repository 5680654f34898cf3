"""Recognises known mistakes by their fingerprints. We ship a table of these, and neither the
mistakes nor the solution.

    fingerprints/lab0.json    {"ring_reduce_scatter": {"source": hash of all that it depends on,
                                                       "prints": {fingerprint: [name, ...]}}}

A fingerprint is a hash of the claim that failed, of how and in which case it failed, and of the
Problem's trace. A trace has numbers as ratios, rounded, and never depends on which rank hung first.
Each known mistake (tests/check/mistakes.py) leaves a fingerprint when it is judged like any answer,
and `python tests/check/fingerprints.py` writes the table anew. If one or two mistakes have a
fingerprint, they are named. If more do, the exercise's own hints decide, which look at facts.

An answer that is judged side by side leaves a second, narrower fingerprint, which covers only the
name that is wrong, in all cases. It recognises a known mistake even if something else is wrong as
well.
"""

import functools
import hashlib
import json
import math
from pathlib import Path

FOLDER = Path(__file__).with_name("fingerprints")
SEVERAL = 2  # mistakes that one fingerprint may name
TRY = "Try: "  # how a hint begins that gives advice
# How others begin: if this very failure is known, if only the wrong value is known, and if only a
# condition fits, which proves no cause; its hint states what holds and which rule is broken.
USUAL, POSSIBLE, HINT = "Usual cause: ", "Possible cause: ", "Hint: "
DIGITS = 6
NOTHING = 1e-9  # relative to the largest neighbouring number, what counts as 0


def of(claim, problem) -> str:
    """The fingerprint of a Problem, the first that a claim found."""
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
    """The sentences of hints of these names. If two hints have one name, the first counts, because
    an exercise's own come before those that fit anywhere."""
    known = {hint.name: hint.text for hint in reversed(exercise.hints)}
    return [known[name] for name in names if name in known]


def labelled(sentences: list[str], label: str = USUAL) -> str:
    """Hints under the label that says what they are: advice begins with "Try:", and everything else
    names a cause of what was seen. Of two hints the cause comes first."""
    causes = [text for text in sentences if not text.startswith(TRY)]
    advice = [text.removeprefix(TRY) for text in sentences if text.startswith(TRY)]
    shown = [label + " Or: ".join(causes)] if causes else []
    if advice:
        shown.append(("Or try: " if causes else TRY) + " Or: ".join(advice))
    return " ".join(shown)


@functools.cache
def tables() -> dict[str, dict]:
    """{exercise: its table}, of all labs."""
    found = {}
    for path in sorted(FOLDER.glob("*.json")):
        found |= json.loads(path.read_text(encoding="utf-8"))
    return found


def table(exercise) -> dict:
    # tests judge several answers as "ring_all_reduce 1", ...
    return tables().get(exercise.name.partition(" ")[0], {})


def _rounded(value, scale=0.0):
    """Plain data in which every float has DIGITS digits, and floats that are not finite are named.

    scale: the largest of the neighbouring numbers. What is negligible compared with it is a 0 that
        a sum of rounded numbers missed, and differs from processor to processor.
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
