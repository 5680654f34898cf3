"""Lab 3, section 6: gather_sequence(x, group, all_gather, reduce_scatter), G,
scatter_sequence(x, group, all_gather, reduce_scatter), S,
and sum_gradients(parameters, group, all_reduce).

    G  x_r (B, T/N, D)  y (B, T, D)      S  x_r (B, T, D), partial  y_r (B, T/N, D)

Both x and the gradient of y differ from rank to rank.
"""

from functools import partial

import torch
from torch import nn

from lib.check.cases import Setting
from lib.check.exercise import Bundle
from lib.check.lab3 import groups as g
from lib.check.probes import STRIDED
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.tensor_parallel import sequence

SHAPES = (2, 3, 2), (3, 2, 4)  # B, T/N, D: the first call, the second of two
CASES = (*map(Setting, g.GROUPS[:-1]), Setting(g.ALL, what=g.AT_ONCE), Setting(g.GROUPS[-1]))
MEMORY = {"memory": "all that is sent is counted, and nothing else makes anything large"}


def mapping(has_all, make, case, groups, show):
    """has_all: True for S, where x has all tokens and y has those of this rank; False for G, where
    it is the other way round."""
    losses, odd = [], []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        B, part, D = SHAPES[bool(of)]
        before, after = (part * N, part) if has_all else (part, part * N)
        seed = 100 * N + 10 * rank + 5 * bool(of) + case.again
        x = show.give(f"x{of}", draw(seed, B, before, D), learns=True)
        ways = (g.contiguous_only(way, odd) for way in (show.all_gather, show.reduce_scatter))
        y = show.run(make, x, group, *ways)
        show("y", y)
        if show.wrong("y"):
            return
        losses.append((y * draw(seed + 1000, B, after, D).to(y.dtype)).sum())
    yield
    show.begin("backward")
    show.backward(*losses)
    # if x itself is strided, an answer may send it unchanged
    show("contiguous", odd[0] if odd and show.variant != STRIDED else "")


SIZES = {"weight": (4, 3), "frozen": (2,), "bias": (5,), "unused": (3,)}
TRAINED = [name for name in SIZES if name != "frozen"]


def sums(make, case, group, show):
    """weight has a gradient on every rank, bias only on even ranks, and unused on no rank. In the
    second step, rank 0 has no gradients of trained parameters, the weight's gradient on the other
    ranks is a transposed tensor, and the frozen parameter has a gradient, as if it had been trained
    before. In the third step the parameters come from an iterator."""
    rank, ones = show.place, partial(torch.ones, dtype=torch.float64)
    model = {name: nn.Parameter((1 + rank) * ones(size)) for name, size in SIZES.items()}
    model["frozen"].requires_grad_(False)
    for step in range(3):
        idle = TRAINED if (step, rank) == (1, 0) else ["unused", "bias"] if rank % 2 else ["unused"]
        for name in TRAINED:
            found = draw(100 * step + 10 * rank + len(name), *SIZES[name])
            found = found.T.contiguous().T if step == 1 and found.dim() > 1 else found
            model[name].grad = None if name in idle else found
        model["frozen"].grad = ones(2) if step == 1 else None
        with show.during(f"step {step + 1}") as run:
            once = iter(model.values())
            run(make, once if step == 2 else [*model.values()], group, show.all_reduce)
        show("the parameters", model.items())
        show("the gradient", [(name, model[name].grad) for name in TRAINED])
        show("the frozen gradient", model["frozen"].grad)
        if show.wrong("the parameters", "the gradient", "the frozen gradient"):
            return


def exercise(reference, has_all, *rows):
    measure = g.measure(
        partial(mapping, has_all), reference, CASES,
        excused={"alive": "what is kept until backward is free",
                 "storage": "where N is 1, x itself is the result"},
    )  # fmt: skip
    empty = {"empty rank": "every rank has as many elements as the others"}
    rows = *rows, ("x left alone", 1, "", "arguments")
    leaves_out = g.FUNCTION | MEMORY | empty
    return g.exercise(measure, ("sequence_mappings",), *rows, leaves_out=leaves_out)


GATHER_SEQUENCE = exercise(
    sequence.gather_sequence, False,
    ("all tokens, in rank order", 2, f"{g.GROUPS_SAY}; 2 sequences", "y"),
    ("backward sums this rank's", 3, "gradients differ from rank to rank",
     "x", "x, the pair", "graph"),
    ("one all-gather, one reduce-scatter", 1, "forward, backward; nothing else",
     "contiguous", g.CALLS),
)  # fmt: skip
SCATTER_SEQUENCE = exercise(
    sequence.scatter_sequence, True,
    ("the sum, this rank's tokens", 2, f"{g.GROUPS_SAY}; 2 sequences", "y"),
    ("backward gathers", 2, "every token's gradient on every rank", "x", "x, the pair", "graph"),
    ("one reduce-scatter, one all-gather", 1, "forward, backward; nothing else",
     "contiguous", g.CALLS),
)  # fmt: skip
SUM_GRADIENTS = g.exercise(
    SideBySide(
        sums, sequence.sum_gradients, tuple(map(Setting, g.GROUPS)),
        excused={"once more": "three steps follow each other",
                 "two at once": "it returns when it is done"}
        | dict.fromkeys(("strided", "float32", "bfloat16"), "it is given parameters"),
    ),
    (),
    ("the sum in every .grad", 3, f"{g.GROUPS_SAY}; unused, frozen ones; 3 steps",
     "the parameters", "the gradient", "the frozen gradient"),
    ("one all-reduce", 1, "of one flat buffer of them all", g.CALLS),
    ("parameters left alone", 1, "only .grad changes", "arguments"),
    leaves_out=MEMORY | {
        "under way": "it has no backward, and returns when it is done",
        "returned": "it returns nothing: the gradients are in .grad",
    },
)  # fmt: skip
EXERCISE = Bundle("sequence", (GATHER_SEQUENCE, SCATTER_SEQUENCE, SUM_GRADIENTS))
