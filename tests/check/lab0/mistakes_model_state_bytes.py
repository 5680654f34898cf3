"""Known mistakes of model_state_bytes, each named after its cause."""

from mistakes import Mistake

from lib.check.lab0.model_state_bytes import GPT3
from lib.cost.state import RECIPES


def _parts(hint, count):
    """count(the recipe's parts) -> bytes per parameter."""
    return Mistake(hint, lambda n, precision: n * count(RECIPES[precision]))


MISTAKES = (
    _parts("16-bit throughout", lambda r: 8 if r.master else r.total),
    _parts("weights alone", lambda r: r.weight),
    _parts("no optimizer state", lambda r: r.weight + r.gradient),
    _parts("no moments", lambda r: r.weight + r.gradient + r.master),
    _parts("master copy forgotten", lambda r: r.total - r.master),
    _parts("gradients forgotten", lambda r: r.total - r.gradient),
    *(
        Mistake("gradients forgotten",
                lambda n, p, q=q: n * (RECIPES[p].total - (RECIPES[p].gradient if p == q else 0)))
        for q in RECIPES
    ),
    _parts("16-bit moments", lambda r: r.weight + r.gradient + r.master + 2 + 2),
    Mistake("16-bit moments", lambda n, p: n * (RECIPES[p].total - (4 if "mixed" in p else 0))),
    _parts("fp32 moments everywhere", lambda r: r.weight + r.gradient + r.master + 4 + 4),
    _parts("one moment", lambda r: r.total - r.variance),
    _parts("master copy everywhere", lambda r: r.total if r.master else r.total + 4),
    Mistake("master copy in bf16", lambda n, p: n * (RECIPES[p].total + (4 if p == "bf16" else 0))),
    Mistake("master copy in fp32", lambda n, p: n * (RECIPES[p].total + (4 if p == "fp32" else 0))),
    Mistake("gradients of mixed", lambda n, p: n * (RECIPES[p].total - (2 if "," in p else 0))),
    Mistake("only the gradients change",
            lambda n, p: n * (RECIPES[p].total + (2 if "," in p else 0))),
    _parts("16 for all", lambda r: 16),
    _parts("bits for bytes", lambda r: r.total * 8),
    Mistake("per parameter", lambda n, p: RECIPES[p].total),
    Mistake("GPT-3 only", lambda n, p: GPT3 * RECIPES[p].total),
    *(
        Mistake("another unit",
                lambda n, p, unit=unit, whole=whole: whole(n * RECIPES[p].total / unit))
        for unit in (1e3, 1e6, 1e9, 1e12, 2**10, 2**20, 2**30, 2**40)
        for whole in (float, int, round)
    ),
)  # fmt: skip
