"""Lab 5, section 2: three gates, switch_gate(logits), top_k_gate(logits, k) and
gshard_gate(logits, uniform)."""

import torch

from lib import moe
from lib.check import symptoms as s
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.left_out import TENSORS
from lib.check.pure import ONCE
from lib.check.tensors import Calls, draw, gradients, kept, left_alone, new, values

FIELDS = ("experts", "weights", "probabilities")
P = torch.tensor(
    [[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.05, 0.6, 0.1]], dtype=torch.float64
)
BY_HAND = "softmax .5 .3 .15 .05 | .1 .2 .3 .4 | .25 .05 .6 .1"
# a shift of all logits of a token changes nothing
LOGITS = P.log() + torch.tensor([[0.0], [5.0], [-7.0]])
MANY, OTHERS = "24 tokens, 5 experts", "24 others, 5 experts"
SINGLE = "6 tokens, 4 experts, float32"
LARGE = "logits of 700 to 800"
LARGE_LOGITS = 750 + 20 * draw(0, 4, 5)  # their exp is beyond float64
EQUAL = {
    "8 equal logits": torch.zeros(3, 8, dtype=torch.float64),
    "logits 0 1 1 1 0 1 and 2 2 2 2 2 0": torch.tensor(
        [[0.0, 1, 1, 1, 0, 1], [2, 2, 2, 2, 2, 0]], dtype=torch.float64
    ),
}


def _logits(n, n_experts, seed=0):
    return 2 * draw(n + seed, n, n_experts)


def _uniform(n):
    """Numbers in [0, 1), in a scrambled order."""
    return (torch.arange(n, dtype=torch.float64) * 0.6180339887498949 + 0.05) % 1


VALUE = {
    MANY: _logits(24, 5),
    OTHERS: _logits(24, 5, 7),
    LARGE: LARGE_LOGITS,
    SINGLE: _logits(6, 4).float(),
}
SETS = {"no tokens": _logits(0, 4), "1 token": _logits(1, 3), "3 tokens, 1 expert": _logits(3, 1)}

# name of the gate -> {claim: {case: arguments}}
CASES = {
    "switch_gate": {
        "value": {name: {"logits": logits} for name, logits in ({BY_HAND: LOGITS} | VALUE).items()},
        "equal": {name: {"logits": logits} for name, logits in EQUAL.items()},
        "sets": {name: {"logits": logits} for name, logits in SETS.items()},
    },
    "top_k_gate": {
        "value": {
            f"{BY_HAND}; k=2": {"logits": LOGITS, "k": 2},
            MANY: {"logits": VALUE[MANY], "k": 3},
            OTHERS: {"logits": VALUE[OTHERS], "k": 3},
            f"{LARGE}; k=2": {"logits": LARGE_LOGITS, "k": 2},
            "6 tokens, 4 experts, k=1": {"logits": _logits(6, 4), "k": 1},
            "6 tokens, 4 experts, k=4": {"logits": _logits(6, 4), "k": 4},
            f"{SINGLE}; k=3": {"logits": VALUE[SINGLE], "k": 3},
        },
        "equal": {f"{name}; k={k}": {"logits": logits, "k": k} for name,
        logits in EQUAL.items() for k in (1, 2, 4)},
        "sets": {
            name: {"logits": logits, "k": min(2, logits.shape[1])} for name, logits in SETS.items()
        },
    },
    "gshard_gate": {
        "value": {
            # 2 w_2 is 0.75, 6/7 = 0.857 and 10/17 = 0.588: taken, just not taken, and not at all
            f"{BY_HAND}; uniform .74 .86 .9": {
                "logits": LOGITS, "uniform": torch.tensor([0.74, 0.86, 0.9], dtype=torch.float64),
            },
            **{name: {"logits": logits, "uniform": _uniform(len(logits))} for name,
            logits in VALUE.items()},
            "a second of probability 0; uniform 0": {
                "logits": torch.tensor([[0.0, -1000, -1000]], dtype=torch.float64),
                "uniform": torch.zeros(1).double(),
            },
        },
        "equal": {
            name: {"logits": logits, "uniform": torch.full((len(logits),), 0.999,
                dtype=torch.float64)}
            for name, logits in EQUAL.items()
        },
        "sets": {
            name: {"logits": _logits(n, 2), "uniform": _uniform(n)} for name,
            n in (("no tokens", 0), ("1 token", 1))
        },
    },
}  # fmt: skip
CALLS = {
    name: Calls(
        getattr(moe, name),
        {c: a for of in cases.values() for c, a in of.items()},
        ("logits",),
        "Choice",
        FIELDS,
        may_leave_graph="combine multiplies them with rows, which are in the graph",
    )
    for name, cases in CASES.items()
}


def _measure_gshard(fn):
    return CALLS["gshard_gate"](fn) | {
        "random": _draws_itself(fn, *CASES["gshard_gate"]["value"][MANY].values())
    }


def _draws_itself(fn, logits, uniform):
    """Does the answer depend on torch's random numbers?"""
    experts = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 1):
            torch.manual_seed(seed)
            try:
                experts.append(fn(logits.clone(), uniform.clone()).experts.tolist())
            except Exception:
                return False  # which the other cases tell
    return experts[0] != experts[1]


@without_ranks
def _its_own_numbers(records):
    if not records["random"]:
        return None
    return Problem(
        "random",
        f"{MANY}: called twice with the same numbers, it takes other experts each time",
        {},
    )


def _about(what):
    return lambda p: p.kind in ("value", "form", "returned") and p.fact("what") == what


COMMON = (
    s.CALLED_LIB.saying("write it with softmax, best and gather."),
    ONCE,
    Hint("no Choice", s.both(s.kind("returned"), lambda p: p.fact("what") not in FIELDS),
         "the function must end with return Choice(experts, weights, p)."),
    Hint("experts are no numbers", s.kind("form", what="experts", floats=True),
         "experts are indices, int64, and weights are floats: Choice(experts, weights, "
         "probabilities)."),
    Hint("another dtype",
         lambda p: p.kind == "form" and p.fact("dtype") and p.fact("what") != "experts",
         "weights and probabilities have the dtype of the logits, which the experts' outputs have, "
         "too."),
    Hint("exp of large logits", s.kind("value", nan=True),
         "exp(750) overflows, and infinity / infinity is nan. logits.softmax(-1) subtracts the "
         "largest logit first."),
    Hint("a set of no tokens", lambda p: p.fact("case") == "no tokens" and p.kind in s.SHAPES,
         "a rank may have no tokens. Use tensor operations: torch.stack of an empty list and the "
         "maximum of an empty tensor raise an error."),
    Hint("equal logits",
         lambda p: p.kind == "value" and str(p.fact("case")).startswith(tuple(EQUAL)),
         "topk and an unstable sort promise no order among equals. top_k_indices(logits, k) takes "
         "the smaller index first."),
    s.NARROW,
    Hint("no gradient", s.kind("no graph"),
         "the router learns through weights and probabilities alone: no detach, no item, no "
         "torch.no_grad, no new tensor made of their numbers."),
    Hint("another gradient", s.kind("value", gradient=True),
         "the values are right, but the gradient is not. Did you detach something, or add a term "
         "whose value cancels?"),
    Hint("other probabilities", _about("probabilities"),
         "probabilities are logits.softmax(-1), (n, E), as they are."),
    Hint("in place", s.either(s.kind("input"), s.refused("in place")),
         "in-place operations (-=, x[...] = ...) change a tensor that the caller, or backward, "
         "still needs as it was. Make new ones: where, masked_fill."),
    s.NOT_KEPT, s.SHARED,
)  # fmt: skip
SWITCH_HINTS = (
    Hint("no dimension of choices", s.kind("form", shape=True, dims=1),
         "one choice per token is (n, 1): top_k_indices(logits, 1), or argmax with keepdim."),
    *COMMON,
    Hint("another choice", s.kind("value", "form"),
         "p = logits.softmax(-1); the expert is the best, the weight is its p: p.gather(1, "
         "experts)."),
)  # fmt: skip
TOP_K_HINTS = (
    *COMMON,
    Hint("not k of them", s.kind("form", what="experts"),
         "experts and weights are (n, k), for any k: top_k_indices(logits, k)."),
    Hint("another choice", s.kind("value", "form"),
         "p = logits.softmax(-1); the k best; w_i = g_i / (g_1 + ... + g_k), g their p."),
)  # fmt: skip
GSHARD_HINTS = (
    Hint("numbers of its own", s.kind("random"),
         "use the numbers in `uniform`. They belong to the tokens, so that several ranks and a "
         "single process sample the same experts."),
    *COMMON,
    Hint("another choice", s.kind("value", "form"),
         "top_k_gate(logits, 2); then expert -1 and weight 0 in column 1 where uniform >= 2 * w_2. "
         "Column 0 stays."),
)  # fmt: skip


def _part(name, first, points, says, equal_says, sets_says, hints, judges=(), measure=None):
    calls, cases = CALLS[name], CASES[name]
    # of one, 1 says nothing to the router
    learning = [case for case in cases["value"] if "k=1" not in case]
    everywhere = list(calls.cases)
    return Exercise(
        name=name, reference=getattr(moe, name), measure=measure or calls, worlds=(),
        leaves_out=TENSORS,
        claims=(
            claim(first, points, says, *judges, values(calls, cases["value"])),
            claim("gradients to the logits", 1, "of weights and of probabilities",
                  gradients(calls, learning)),
            claim("equal logits", 1, equal_says, values(calls, cases["equal"])),
            claim("any number of tokens, arguments unchanged", 1, sets_says,
                  values(calls, cases["sets"]), left_alone(everywhere), new(everywhere),
                  kept(everywhere)),
        ),
        hints=(*hints, *s.ANYWHERE),
    )  # fmt: skip


EXERCISE = Bundle(
    "gates",
    (
        _part("switch_gate", "the best expert, weighted by its probability", 2,
              "3, 4 and 24 tokens; large logits",
              "the smaller index", "0 and 1 tokens, 1 expert", SWITCH_HINTS),
        _part("top_k_gate", "the k best, weights that add up to 1", 3,
              "k 1, 2, 3 and all; large logits", "the smaller index first",
              "0 and 1 tokens, 1 expert", TOP_K_HINTS),
        _part("gshard_gate", "the second expert where it is sampled", 4,
              "-1 and 0 where it is not used", "always used", "0 and 1 tokens", GSHARD_HINTS,
              (_its_own_numbers,), _measure_gshard),
    ),
)  # fmt: skip
