"""Lab 5, section 2: three gates, switch_gate(logits), top_k_gate(logits, k) and
gshard_gate(logits, uniform)."""

import torch

from lib import moe
from lib.check import symptoms as s
from lib.check.causes import another, hints, of_name
from lib.check.exercise import Bundle, Exercise
from lib.check.left_out import TENSORS
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw

FIELDS = ("experts", "weights", "probabilities")
P = torch.tensor(
    [[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.05, 0.6, 0.1]], dtype=torch.float64
)
BY_HAND = "softmax .5 .3 .15 .05 | .1 .2 .3 .4 | .25 .05 .6 .1"
# a shift of all logits of a token changes nothing
LOGITS = P.log() + torch.tensor([[0.0], [5.0], [-7.0]])
MANY, OTHERS, LARGE = "24 tokens, 5 experts", "24 others, 5 experts", "logits of 700 to 800"
NO_TOKENS = "no tokens"


def _logits(n, n_experts, seed=0):
    return 2 * draw(n + seed, n, n_experts)


def _uniform(n):
    """Numbers in [0, 1), in a scrambled order."""
    return (torch.arange(n, dtype=torch.float64) * 0.6180339887498949 + 0.05) % 1


VALUE = {
    MANY: _logits(24, 5),
    OTHERS: _logits(24, 5, 7),
    LARGE: 750 + 10 * _logits(4, 5),  # their exp is beyond float64
}
EQUAL = {
    "8 equal logits": torch.zeros(3, 8, dtype=torch.float64),
    "logits 0 1 1 1 0 1 and 2 2 2 2 2 0": torch.tensor(
        [[0.0, 1, 1, 1, 0, 1], [2, 2, 2, 2, 2, 0]], dtype=torch.float64
    ),
}
SETS = {NO_TOKENS: _logits(0, 4), "1 token": _logits(1, 3), "3 tokens, 1 expert": _logits(3, 1)}

# name of the gate -> the cases of values, of equal logits, and of few tokens: {name: arguments}
SWITCH = tuple({name: (z,) for name, z in of.items()} for of in ({BY_HAND: LOGITS} | VALUE, EQUAL,
                                                               SETS))  # fmt: skip
TOP_K = (
    {
        f"{BY_HAND}; k=2": (LOGITS, 2),
        MANY: (VALUE[MANY], 3),
        OTHERS: (VALUE[OTHERS], 3),
        f"{LARGE}; k=2": (VALUE[LARGE], 2),
        "6 tokens, 4 experts, k=1": (_logits(6, 4), 1),
        "6 tokens, 4 experts, k=4": (_logits(6, 4), 4),
    },
    {f"{name}; k={k}": (z, k) for name, z in EQUAL.items() for k in (1, 2, 4)},
    {name: (z, min(2, z.shape[1])) for name, z in SETS.items()},
)
GSHARD = (
    {
        # 2 w_2 is 0.75, 6/7 = 0.857 and 10/17 = 0.588: taken, just not taken, and not at all
        f"{BY_HAND}; uniform .74 .86 .9": (
            LOGITS, torch.tensor([0.74, 0.86, 0.9], dtype=torch.float64),
        ),
        **{name: (z, _uniform(len(z))) for name, z in VALUE.items()},
        "a second of probability 0; uniform 0": (
            torch.tensor([[0.0, -1000, -1000]], dtype=torch.float64), torch.zeros(1).double(),
        ),
    },
    {name: (z, torch.full((len(z),), 0.999, dtype=torch.float64)) for name, z in EQUAL.items()},
    {NO_TOKENS: (_logits(0, 2), _uniform(0)), "1 token": (_logits(1, 2), _uniform(1))},
)  # fmt: skip
FREE = {
    "alive": "what is kept until backward is free",
    "graph": "combine multiplies weights of nothing, or of 1, with rows, which are in the graph",
}
NEAR = {"bfloat16": "rounding takes 2 w_2 to the other side of uniform"}


def _script(given):
    def script(make, case, show):
        logits, *more = given[case.what]
        logits = show.give("logits", logits, learns=len(logits) > 0)
        more = [show.give("uniform", one) if torch.is_tensor(one) else one for one in more]
        before = torch.get_rng_state()
        choice = show.run(make, logits, *more)
        moved = not torch.equal(before, torch.get_rng_state())
        show("numbers", "it draws random numbers of its own" if moved else "")
        for field in FIELDS:
            show(field, getattr(choice, field, None))
        yield
        if not show.wrong(*FIELDS):
            weighted = (
                one * draw(seed, *one.shape).to(one.dtype) for seed, one in enumerate(choice[1:])
            )
            show.backward(sum(one.sum() for one in weighted))

    return script


COMMON = {
    "no_Choice": lambda p: p.kind == "returned" and p.fact("name") in FIELDS,
    "experts_are_no_numbers": s.both(s.kind("form", floats=True), of_name("experts")),
    "exp_of_large_logits": s.kind("value", nan=True),
    "a_set_of_no_tokens": lambda p: (
        p.kind in s.SHAPES and getattr(p.fact("case"), "what", "") == NO_TOKENS
    ),
    "equal_logits": lambda p: (
        p.kind == "value" and getattr(p.fact("case"), "what", "").startswith(tuple(EQUAL))
    ),
    "in_place": s.either(of_name("arguments"), s.refused("in place")),
}


def _part(name, first, points, says, equal_says, sets_says, kinds, excused=(), **predicates):
    cases = tuple(here(*of) for of in kinds)
    value, equal, sets = cases
    every = (*value, *equal, *sets)
    measure = SideBySide(
        _script({name: args for of in kinds for name, args in of.items()}), getattr(moe, name),
        every, groups=None, excused=FREE | dict(excused),
    )  # fmt: skip
    # of one, 1 says nothing to the router
    learning = [case for case in value if "k=1" not in case.what]
    fields = lambda cases: [(field, cases) for field in FIELDS]
    return Exercise(
        name=name, reference=getattr(moe, name), measure=measure, worlds=(), leaves_out=TENSORS,
        claims=claims(
            measure,
            (first, points, says, "numbers", *fields(value)),
            ("gradients to the logits", 1, "of weights and of probabilities",
             ("the gradient of logits", learning)),
            ("equal logits", 1, equal_says, *fields(equal)),
            ("any number of tokens, arguments unchanged", 1, sets_says),
        ),
        hints=hints(
            "lab5", name, **predicates, **COMMON,
            another_gradient=another(every, "the gradient of"),
            other_probabilities=another(every, "probabilities"),
            another_choice=another(every, "experts", "weights"),
        ),
    )  # fmt: skip


EXERCISE = Bundle(
    "gates",
    (
        _part("switch_gate", "the best expert, weighted by its probability", 2,
              "3, 4 and 24 tokens; large logits",
              "the smaller index", "0 and 1 tokens, 1 expert", SWITCH,
              no_dimension_of_choices=s.kind("form", shape=True, dims=1)),
        _part("top_k_gate", "the k best, weights that add up to 1", 3,
              "k 1, 2, 3 and all; large logits", "the smaller index first",
              "0 and 1 tokens, 1 expert", TOP_K,
              not_k_of_them=s.both(s.kind("form", shape=True), of_name("experts"))),
        _part("gshard_gate", "the second expert where it is sampled", 4,
              "-1 and 0 where it is not used", "always used", "0 and 1 tokens", GSHARD, NEAR,
              numbers_of_its_own=of_name("numbers")),
    ),
)  # fmt: skip
