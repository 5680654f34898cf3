"""Lab 5, section 2: three gates, switch_gate(logits), top_k_gate(logits, k) and gshard_gate(logits, uniform)."""

import torch

from lib.check.framework import Bundle, Claim, Exercise
from lib.check.lab5 import gates_mistakes as gates
from lib.check.lab5.gates_hints import SWITCH_HINTS, TOP_K_HINTS
from lib.check.lab5.gates_runs import BY_HAND, EQUAL, LARGE, LOGITS, MANY, draws_itself, logits_for, measured
from lib.check.lab5.gshard_hints import GSHARD_HINTS
from lib.check.lab5.here import draw, found
from lib.moe import gates as libs

LARGE_LOGITS = 750 + 20 * draw(0, 4, 5)  # their exp is beyond float64
SWITCH_CASES = {
    "value": {BY_HAND: (LOGITS,), MANY: (logits_for(24, 5),), LARGE: (LARGE_LOGITS,)},
    "equal": {where: (logits,) for where, logits in EQUAL.items()},
    "sets": {
        where: (logits_for(n, E),) for where, n, E in (("no tokens", 0, 4), ("1 token", 1, 3), ("1 expert", 3, 1))
    },
}
TOP_K_CASES = {
    "value": {
        f"{BY_HAND}; k=2": (LOGITS, 2),
        MANY: (logits_for(24, 5), 3),
        f"{LARGE}; k=2": (LARGE_LOGITS, 2),
        "6 tokens, 4 experts, k=1": (logits_for(6, 4), 1),
        "6 tokens, 4 experts, k=4": (logits_for(6, 4), 4),
    },
    "equal": {f"{where}; k={k}": (logits, k) for where, logits in EQUAL.items() for k in (1, 2, 4)},
    "sets": {"no tokens, k=2": (logits_for(0, 4), 2), "1 token, k=2": (logits_for(1, 3), 2)},
}


def _uniform(n):
    """Numbers in [0, 1), in a scrambled order."""
    return (torch.arange(n, dtype=torch.float64) * 0.6180339887498949 + 0.05) % 1


ALMOST_1 = torch.full((3,), 0.999, dtype=torch.float64)
GSHARD_CASES = {
    "value": {
        # 2 w_2 is 0.75, 6/7 = 0.857 and 10/17 = 0.588: taken, just not taken, and not at all
        f"{BY_HAND}; uniform .74 .86 .9": (LOGITS, torch.tensor([0.74, 0.86, 0.9], dtype=torch.float64)),
        MANY: (logits_for(24, 5), _uniform(24)),
        LARGE: (LARGE_LOGITS, _uniform(4)),
    },
    "equal": {where: (logits, ALMOST_1[: len(logits)]) for where, logits in EQUAL.items()},
    "sets": {f"{n} tokens, 2 experts": (logits_for(n, 2), _uniform(n)) for n in (0, 1)},
}


def _measure_switch(fn):
    return measured(fn, libs.switch_gate, gates.one_of, gates.SWITCH, SWITCH_CASES)


def _measure_top_k(fn):
    return measured(fn, libs.top_k_gate, gates.several, gates.TOP_K, TOP_K_CASES)


def _measure_gshard(fn):
    seen = measured(fn, libs.gshard_gate, gates.two, gates.GSHARD, GSHARD_CASES)
    drawn = draws_itself(fn, libs.gshard_gate, MANY, GSHARD_CASES["value"][MANY])
    return {claim: drawn or problem for claim, problem in seen.items()}


SWITCH = Exercise(
    name="switch_gate",
    reference=libs.switch_gate,
    measure=_measure_switch,
    worlds=(),
    claims=(
        Claim("the best expert, its probability", 2, "3, 4 and 24 tokens; large logits", found("value")),
        Claim("gradients to the logits", 1, "of weights and of probabilities", found("gradient")),
        Claim("equal logits", 1, "the smaller number", found("equal")),
        Claim("any set, left alone", 1, "0 and 1 tokens, 1 expert", found("sets")),
    ),
    hints=SWITCH_HINTS,
)
TOP_K = Exercise(
    name="top_k_gate",
    reference=libs.top_k_gate,
    measure=_measure_top_k,
    worlds=(),
    claims=(
        Claim("the k best, their parts", 3, "k 1, 2, 3 and all; large logits", found("value")),
        Claim("gradients to the logits", 1, "of weights and of probabilities", found("gradient")),
        Claim("equal logits", 1, "the smaller number first", found("equal")),
        Claim("any set, left alone", 1, "0 and 1 tokens", found("sets")),
    ),
    hints=TOP_K_HINTS,
)
GSHARD = Exercise(
    name="gshard_gate",
    reference=libs.gshard_gate,
    measure=_measure_gshard,
    worlds=(),
    claims=(
        Claim("the second now and then", 4, "-1 and 0 where it is not taken", found("value")),
        Claim("gradients to the logits", 1, "of weights and of probabilities", found("gradient")),
        Claim("equal logits", 1, "always taken", found("equal")),
        Claim("any set, left alone", 1, "0 and 1 tokens", found("sets")),
    ),
    hints=GSHARD_HINTS,
)
EXERCISE = Bundle("gates", (SWITCH, TOP_K, GSHARD))
