"""Lab 5, section 4: auxiliary_loss(probabilities, first_choices), which grows if many tokens choose
the same expert."""

import torch

from lib import moe
from lib.check.causes import hints
from lib.check.left_out import TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw

TENTHS = torch.tensor(
    [[5, 3, 2], [6, 3, 1], [4, 4, 2], [7, 1, 2], [2, 6, 2], [5, 4, 1], [1, 2, 7], [8, 1, 1]]
)


def _softmax(n, E):
    return draw(n + E, n, E).softmax(-1)


# With 1, 2, 8 or 16 tokens f is exact even in float32, which torch uses to divide integers.
SETS = {  # name -> probabilities, first choices; None: the most probable
    "8 tokens, 3 experts, f = 5/8 2/8 1/8": (TENTHS.double() / 10, None),
    "16 tokens, 5 experts, the best is chosen": (_softmax(16, 5), None),
    "16 tokens, 4 experts, a bias chooses too": (_softmax(16, 4), [0, 1, 3, 1, 2, 3, 3, 0] * 2),
    "16 tokens, 4 experts, chosen otherwise": (
        _softmax(16, 4).flip(0), [3, 3, 2, 3, 0, 1, 3, 2] * 2,
    ),
    "1 token, 4 experts": (_softmax(1, 4), [2]),
    "2 tokens, 1 expert": (_softmax(2, 1), [0, 0]),
    "8 tokens, 5 experts, nobody chooses 3 and 4": (_softmax(8, 5), [0, 1, 2, 1, 0, 0, 2, 1]),
    "8 tokens, 4 experts, all choose 0": (_softmax(8, 4), [0] * 8),
    "no tokens, 4 experts": (torch.empty(0, 4, dtype=torch.float64), []),
}  # fmt: skip
CASES = here(*SETS)
SOME, NO_TOKENS = CASES[:-1], CASES[-1]


def script(make, case, show):
    p, first = SETS[case.what]
    first = p.argmax(-1) if first is None else torch.tensor(first, dtype=torch.int64)
    p = show.give("probabilities", p, learns=len(p) > 0)
    loss = show.run(make, p, show.give("first_choices", first))
    # without tokens the loss may also be a plain number, or a tensor of any dtype
    is_number = case == NO_TOKENS and torch.is_tensor(loss) and loss.numel() == 1
    show("the loss", loss.item() if is_number else loss)
    yield
    show.backward(loss)


MEASURE = SideBySide(
    script, moe.auxiliary_loss, CASES, groups=None,
    excused={
        "alive": "what is kept until backward is free",
        "graph": "it is added to a loss that has a graph",
        "storage": "one number, which is computed",
        "bfloat16": "torch divides whole numbers, such as counts, in float32",
    },
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("E times the sum of f P", 6, "1, 3, 4, 5 experts; some that no token chose",
     ("the loss", SOME)),
    ("the gradient", 4, "E f_e / n of every token's p_e: through P alone",
     ("probabilities", SOME)),
    ("no tokens", 1, "0", ("the loss", [NO_TOKENS])),
    ("arguments unchanged", 1, ""),
    hints=hints("lab5", "auxiliary_loss"), leaves_out=TENSORS,
)  # fmt: skip
