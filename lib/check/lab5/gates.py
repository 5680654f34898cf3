"""Lab 5, section 2: three gates, switch_gate(logits), top_k_gate(logits, k) and
gshard_gate(logits, uniform)."""

import torch

from lib import moe
from lib.check.causes import hints
from lib.check.exercise import Bundle
from lib.check.left_out import TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw

FIELDS = ("experts", "weights", "probabilities")


def _float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def _logits(n, n_experts, seed=0):
    return 2 * draw(n + seed, n, n_experts)


def _uniform(n):
    """n different numbers in [0, 1), not sorted."""
    return (torch.arange(n, dtype=torch.float64) * 0.6180339887498949 + 0.05) % 1


BY_HAND = "softmax .5 .3 .15 .05 | .1 .2 .3 .4 | .25 .05 .6 .1"
P = _float64([0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.05, 0.6, 0.1])
# adding the same number to all logits of a token changes nothing
LOGITS = P.log() + _float64([0.0], [5.0], [-7.0])
MANY, OTHERS, LARGE = "24 tokens, 5 experts", "24 others, 5 experts", "logits of -2000 to 800"
VALUE = {
    MANY: _logits(24, 5),
    OTHERS: _logits(24, 5, 7),
    LARGE: torch.cat([
        750 + 10 * _logits(3, 5),  # exp of most of them overflows float64
        -750 + 10 * _logits(2, 5),  # exp gives 0 if the maximum of all tokens is subtracted
        _float64([-1000, -900, 0, -950, -2000]),  # all p but one are 0
    ]),
}  # fmt: skip
EQUAL = {
    "8 equal logits": torch.zeros(3, 8, dtype=torch.float64),
    "logits 0 1 1 1 0 1 and 2 2 2 2 2 0": _float64([0, 1, 1, 1, 0, 1], [2, 2, 2, 2, 2, 0]),
}
FEW = {"no tokens": _logits(0, 4), "1 token": _logits(1, 3), "3 tokens, 1 expert": _logits(3, 1)}

# for each gate {name: arguments} of three kinds of cases: values, equal logits, few tokens
SWITCH = tuple({name: (z,) for name, z in of.items()}
               for of in ({BY_HAND: LOGITS} | VALUE, EQUAL, FEW))  # fmt: skip
TOP_K = (
    {
        f"{BY_HAND}; k=2": (LOGITS, 2),
        **{f"{name}; k={k}": (VALUE[name], k) for name, k in ((MANY, 3), (OTHERS, 3), (LARGE, 2))},
        **{f"6 tokens, 4 experts, k={k}": (_logits(6, 4), k) for k in (1, 4)},
    },
    {f"{name}; k={k}": (z, k) for name, z in EQUAL.items() for k in (1, 2, 4)},
    {name: (z, min(2, z.shape[1])) for name, z in FEW.items()},
)
GSHARD = (
    {
        # 2 w_2 is 0.75, 6/7 = 0.857 and 10/17 = 0.588: taken, just not taken, clearly not taken
        f"{BY_HAND}; uniform .74 .86 .9": (LOGITS, _float64(0.74, 0.86, 0.9)),
        **{name: (z, _uniform(len(z))) for name, z in VALUE.items()},
        "a second of probability 0; uniform 0": (_float64([0, -1000, -1000]), _float64(0.0)),
    },
    {name: (z, torch.full((len(z),), 0.999, dtype=torch.float64)) for name, z in EQUAL.items()},
    {"no tokens": (_logits(0, 2), _uniform(0)), "1 token": (_logits(1, 2), _uniform(1))},
)
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


def _gate(name, kinds, first, points, says, equal_says, few_says, excused=()):
    value, equal, few = (here(*of) for of in kinds)
    measure = SideBySide(
        _script({case: args for of in kinds for case, args in of.items()}), getattr(moe, name),
        (*value, *equal, *few), groups=None, excused=FREE | dict(excused),
    )  # fmt: skip
    # with k=1 the weight is 1 whatever the logits are
    learning = [case for case in value if "k=1" not in case.what]
    fields = lambda cases: [(field, cases) for field in FIELDS]
    return measure.exercise(
        (first, points, says, "numbers", *fields(value)),
        ("gradients to the logits", 1, "of weights and of probabilities",
         ("the gradient of logits", learning)),
        ("equal logits", 1, equal_says, *fields(equal)),
        ("any number of tokens, arguments unchanged", 1, few_says),
        hints=hints("lab5", "gates", name), leaves_out=TENSORS,
    )  # fmt: skip


EXERCISE = Bundle(
    "gates",
    (
        _gate("switch_gate", SWITCH, "the best expert, weighted by its probability", 2,
              "3 to 24 tokens; large logits", "the smaller index", "0 and 1 tokens, 1 expert"),
        _gate("top_k_gate", TOP_K, "the k best, weights that add up to 1", 3,
              "k 1, 2, 3 and all; large logits", "the smaller index first",
              "0 and 1 tokens, 1 expert"),
        _gate("gshard_gate", GSHARD, "the second expert where it is sampled", 4,
              "-1 and 0 where it is not used", "always used", "0 and 1 tokens", NEAR),
    ),
)  # fmt: skip
