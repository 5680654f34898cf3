"""Known mistakes of model_state_bytes, each named after its cause."""

from mistakes import Mistake

from lib.check.lab0.model_state_bytes import GPT3
from lib.cost.state import RECIPES


def _parts(hint, count, text):
    """count(the recipe's parts) -> bytes per parameter."""
    return Mistake(hint, lambda n, precision: n * count(RECIPES[precision]), text)


MISTAKES = (
    _parts("16-bit throughout", lambda r: 8 if r.master else r.total,
           "in mixed precision only weights and gradients are 16-bit. The optimizer keeps three "
           "fp32 numbers: master copy, momentum and variance."),
    _parts("weights alone", lambda r: r.weight,
           "that is the weights alone, enough to run the model. Training also keeps gradients and "
           "Adam's state."),
    _parts("no optimizer state", lambda r: r.weight + r.gradient,
           "weights and gradients are there; what the optimizer keeps is missing: momentum, "
           "variance and, in mixed precision, the master copy."),
    _parts("no moments", lambda r: r.weight + r.gradient + r.master,
           "Adam's momentum and variance are missing, one number each per parameter."),
    _parts("master copy forgotten", lambda r: r.total - r.master,
           "in mixed precision the optimizer keeps its own fp32 copy of the weights, beside the "
           "16-bit ones."),
    _parts("gradients forgotten", lambda r: r.total - r.gradient,
           "the gradients are missing: one number per parameter, kept until the optimizer has used "
           "them."),
    *(
        Mistake("gradients forgotten",
                lambda n, p, q=q: n * (RECIPES[p].total - (RECIPES[p].gradient if p == q else 0)))
        for q in RECIPES
    ),
    _parts("16-bit moments", lambda r: r.weight + r.gradient + r.master + 2 + 2,
           "only bf16 alone keeps 16-bit momentum and variance; everywhere else they are fp32, 4 "
           "bytes each."),
    Mistake("16-bit moments", lambda n, p: n * (RECIPES[p].total - (4 if "mixed" in p else 0))),
    _parts("fp32 moments everywhere", lambda r: r.weight + r.gradient + r.master + 4 + 4,
           "bf16 alone keeps everything in 16 bits, momentum and variance too: 2 bytes each."),
    _parts("one moment", lambda r: r.total - r.variance,
           "that counts one moment. Adam keeps two numbers per parameter: momentum and variance."),
    _parts("master copy everywhere", lambda r: r.total if r.master else r.total + 4,
           "only the two mixed recipes keep a master copy: fp32 weights need none, and bf16 alone "
           "does without."),
    Mistake("master copy in bf16", lambda n, p: n * (RECIPES[p].total + (4 if p == "bf16" else 0)),
            "bf16 alone keeps no master copy: its weights are all there is."),
    Mistake("master copy in fp32", lambda n, p: n * (RECIPES[p].total + (4 if p == "fp32" else 0))),
    Mistake("gradients of mixed", lambda n, p: n * (RECIPES[p].total - (2 if "," in p else 0))),
    Mistake("only the gradients change",
            lambda n, p: n * (RECIPES[p].total + (2 if "," in p else 0))),
    _parts("16 for all", lambda r: 16,
           "fp32 and mixed come to the same 16, but the other two do not: add up their parts."),
    _parts("bits for bytes", lambda r: r.total * 8, "these are bits: a byte has 8 of them."),
    Mistake("per parameter", lambda n, p: RECIPES[p].total,
            "that is the number of bytes of one parameter: multiply it by `parameters`."),
    Mistake("GPT-3 only", lambda n, p: GPT3 * RECIPES[p].total,
            "your result does not depend on `parameters`."),
    *(
        Mistake("another unit", lambda n, p, unit=unit,
            whole=whole: whole(n * RECIPES[p].total / unit),
                "return plain bytes, and divide only to print: by 1e9 for GB, by 2**30 for GiB, "
                "which is 7 % larger.")
        for unit in (1e3, 1e6, 1e9, 1e12, 2**10, 2**20, 2**30, 2**40)
        for whole in (float, int, round)
    ),
)  # fmt: skip
