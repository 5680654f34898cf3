"""Finds the mistakes from the evidence alone. The first quantity that differs from the single
process reveals the mistake, and whether ranks agree or differ along each axis reveals the axis."""

from lib.hybrid.hunt.evidence import alike, job
from lib.hybrid.hunt.rules import DATA, HEALTHY, JOBS, KINDS, Finding

SEED = 2026


# exercise: lab6.findings
def findings(seed=SEED):
    """(seed, {number: Finding or HEALTHY}) for the ten jobs of a seed, from their evidence."""
    return seed, {number: _detect(job(seed, number)) for number in range(JOBS)}


def _detect(e):
    """What is wrong with the job of this Evidence: a Finding or HEALTHY."""
    found = next(
        ((step, kind) for step in range(e.steps) for kind in KINDS if _off(e, step, kind)), None
    )
    if found is None:
        return HEALTHY
    step, kind = found
    return Finding(*_named(e, step, kind, _off(e, step, kind)), step, kind)


def _off(e, step, kind):
    """The quantities of this kind that differ from the single process on one rank or more."""
    return [what for k, what in e.quantities if k == kind and any(e.off(step, kind, what))]


def _named(e, step, kind, off):
    """(mistake, axis), from `off`, the wrong quantities of the first step and kind that has any."""
    axes, data = list(e.sizes), [axis for axis in DATA if axis in e.sizes]
    held, alone = (e.held(step, kind, off[0]), e.alone(step, kind, off[0]))
    agree = lambda numbers: [axis for axis in axes if alike(numbers, axis, e.sizes)]
    differ = lambda numbers: next(axis for axis in axes if axis not in agree(numbers))
    ratio = [a and b and a / b for a, b in zip(held, alone, strict=True)]
    if kind in ("input", "activation"):  # ranks are alike that should differ
        axis = next(axis for axis in agree(held) if axis not in agree(alone))
        return "the same data" if kind == "input" else "one dropout seed", axis
    if kind == "loss":
        return "local tokens", differ(ratio)
    if kind == "norm":
        return "local norm", differ(held)
    if kind == "update":
        return "local norm", differ(ratio)
    sets = {
        ("tied",): ("tied embedding summed once", "pp"),
        ("replicated",): ("LayerNorm not summed", "tp"),
        ("experts",): ("experts averaged over dp", "ep"),
    }
    if tuple(off) in sets:
        return sets[tuple(off)]
    apart = [axis for axis in data if axis not in agree(held)]
    return ("mean over the wrong group", apart[0]) if apart else ("local tokens", data[0])
