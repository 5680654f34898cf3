"""The mistakes that are made in gshard_gate, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab5.gates_hints import COMMON, wrong
from lib.check.lab5.here import is_kind

GSHARD_HINTS = (
    Hint(
        "numbers of its own",
        is_kind("random"),
        "take the numbers in `uniform`: they go with the token, so that ranks and one process sample alike.",
    ),
    *COMMON,
    Hint(
        "the other way round",
        wrong("the other way round"),
        "a number in [0, 1) is below q with probability q: taken where uniform < 2 * w_2.",
    ),
    Hint(
        "not twice",
        wrong("not twice its weight"),
        "the second's weight is 1/2 at most. It is taken with probability 2 * w_2: always, if both are equally good.",
    ),
    Hint(
        "before renormalising",
        wrong("before renormalising"),
        "w_2 = g_2 / (g_1 + g_2), and not g_2, decides how often.",
    ),
    Hint(
        "always or never",
        wrong("always taken", "never taken"),
        "it depends on each token, and on its second weight: uniform < 2 * w_2, a mask of (n,).",
    ),
    Hint(
        "the expert left",
        wrong("though it is not taken"),
        "an expert that is not taken must not get the token: its number becomes -1, experts.where(mask, -1).",
    ),
    Hint(
        "the weight left",
        wrong("though its expert is -1"),
        "beside an expert -1 the weight is 0: weights.where(mask, 0.0).",
    ),
    Hint(
        "the first renormalised again",
        wrong("renormalised again"),
        "the first keeps w_1 = g_1 / (g_1 + g_2), whether the second is taken or not. At 1 the router would learn "
        "nothing from it.",
    ),
    Hint(
        "not renormalised",
        wrong("not renormalised"),
        "the weights are top_k_gate's: w_i = g_i / (g_1 + g_2).",
    ),
    Hint(
        "weighted by its chance",
        wrong("the chance"),
        "the chance decides whether it is taken. A second that is taken has its whole weight w_2.",
    ),
    Hint(
        "another choice",
        wrong(what=""),
        "top_k_gate(logits, 2); then expert -1 and weight 0 in column 1 where uniform >= 2 * w_2. Column 0 stays.",
    ),
)  # fmt: skip
