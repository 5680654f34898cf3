"""Lab 5, section 3: assign_slots(choice, n_experts, C), which (token, expert) pairs get one of the
expert's C slots, and which are dropped."""

from collections import Counter

import torch

from lib import moe
from lib.check.cases import form_of
from lib.check.causes import hints
from lib.check.left_out import TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw
from lib.moe import Choice

FIELDS = ("token", "expert", "slot", "weight")


def _drawn(seed, n, E, k, minus_one=0):
    """Random choices that favour experts with a low index. One of every `minus_one` tokens has -1
    as its last choice; if minus_one is 0, none has."""
    likes = draw(seed, n, E) - 0.5 * torch.arange(E)
    rows = likes.sort(dim=1, descending=True).indices[:, :k].tolist()
    return [
        [*row[:-1], -1] if minus_one and token % minus_one == 1 else row
        for token, row in enumerate(rows)
    ]


SOME = {  # name: the choices of each token, E, C
    "first choices 0 0 0 1 2, second 1 2 1 2 0; C=2": (
        [[0, 1], [0, 2], [0, 1], [1, 2], [2, 0]], 3, 2,
    ),
    "first choices 0 2 1 0 1, second -1 -1 0 2 2; C=3": (
        [[0, -1], [2, -1], [1, 0], [0, 2], [1, 2]], 3, 3,
    ),
    "12 tokens, k=2, E=4, C=4": (_drawn(1, 12, 4, 2), 4, 4),
    "10 tokens, k=3, E=5, C=3": (_drawn(2, 10, 5, 3), 5, 3),
    "9 tokens, k=1, E=3, C=2": (_drawn(3, 9, 3, 1), 3, 2),
    "12 tokens, k=2, some second choices -1, E=4, C=4": (_drawn(4, 12, 4, 2, 3), 4, 4),
    "8 tokens, k=2, some second choices -1, E=6, C=8": (_drawn(5, 8, 6, 2, 2), 6, 8),
    "7 tokens, all to expert 1, E=3, C=4": ([[1]] * 7, 3, 4),
    "3 tokens, k=3, E=2, third choices -1, C=1": ([[1, 0, -1], [1, 0, -1], [0, 1, -1]], 2, 1),
    "4 tokens, k=2, E=3, C=2, a weight of 0": ([[0, 1], [1, 2], [2, 0], [0, 2]], 3, 2),
    # so many experts and slots that a sort key such as 1000 e + slot, or a byte, is ambiguous
    "1200 tokens, k=1, E=300, C=1100": (
        [[200 + t // 24 * (t % 24 == 0)] for t in range(1200)], 300, 1100,
    ),
}  # fmt: skip
NOBODY = {
    "no tokens, E=4, C=0": (torch.empty(0, 2, dtype=torch.int64), 4, 0),
    "2 tokens, all choices -1, E=4, C=2": ([[-1, -1]] * 2, 4, 2),
    "2 tokens, E=2, C=0": ([[0, 1]] * 2, 2, 0),
}
ALL = SOME | NOBODY
CASES = here(*ALL)
FULL, EMPTY = CASES[: len(SOME)], CASES[len(SOME) :]


def _choice(name, experts, E):
    """A Choice of these experts. Its probabilities have nothing to do with its weights, so an
    answer that confuses the two fails."""
    experts = torch.as_tensor(experts)
    n, k = experts.shape
    weights = draw(7, n, k).softmax(-1) if k > 1 else draw(7, n, k).sigmoid()
    if "a weight of 0" in name:
        weights[1, 1] = 0
    return Choice(experts, weights.where(experts >= 0, 0.0), draw(8, n, E).softmax(-1))


def script(make, case, show):
    experts, E, C = ALL[case.what]
    choice = show.give("choice", _choice(case.what, experts, E), learns=case in FULL)
    # before the call, which may change the choice
    asked = [(t, j, e) for j, column in enumerate(choice.experts.t().tolist())
             for t, e in enumerate(column)]  # fmt: skip
    routing = show.run(make, choice, E, C)
    is_one = all(hasattr(routing, field) for field in FIELDS)
    show("a Routing", "" if is_one else f"returned a {form_of(routing)}, expected a Routing")
    if show.wrong("a Routing"):
        return
    show("its columns", _misshapen(routing, choice.weights.dtype))
    if show.wrong("its columns"):
        return
    token, expert, slot, _ = routing
    pairs = list(zip(token.tolist(), expert.tolist(), strict=True))
    kept = Counter(pairs)
    others = sorted(kept.keys() - {(t, e) for t, _, e in asked})
    told = [f"token {t} is sent to expert {e}, which it has not chosen" for t, e in others]
    show("others kept", told[0] if told else "")
    show("kept", [(f"token {t}'s choice {j}, expert {e}", kept[t, e]) for t, j, e in asked])
    of_pairs = dict(zip(pairs, slot.tolist(), strict=True))
    show("the slot", [(f"of token {t}, expert {e}", of_pairs[t, e]) for t, e in sorted(of_pairs)])
    for field in FIELDS:
        show(field, getattr(routing, field))
    yield
    show.backward(routing.weight)


def _misshapen(routing, dtype):
    """A sentence about the first column that has a wrong form, or "". Every column needs as many
    elements as `token`; `weight` needs this dtype, and the others int64."""
    m = len(routing.token) if torch.is_tensor(routing.token) and routing.token.dim() else 0
    for field in FIELDS:
        want = torch.empty(m, dtype=dtype if field == "weight" else torch.int64)
        if form_of(getattr(routing, field)) != form_of(want):
            return f"{field}: expected {form_of(want)}, got {form_of(getattr(routing, field))}"
    return ""


MEASURE = SideBySide(
    script, moe.assign_slots, CASES, groups=None,
    excused={
        "alive": "what is kept until backward is free",
        "graph": "combine multiplies the weights with rows, which are in the graph",
    },
)  # fmt: skip
FORM, KEPT = ("a Routing", "its columns"), ("kept", "others kept")
COLUMNS = ("the slot", "token", "expert", "slot")

EXERCISE = MEASURE.exercise(
    ("who is kept", 7, "k 1, 2, 3; -1; nothing dropped; all to one expert",
     ((*FORM, *KEPT), FULL)),
    ("slots and order", 4, "by expert, then slot; slots by priority", (COLUMNS, FULL)),
    ("the pairs' weights", 3, "and their gradient", (("weight", "choice.weights"), FULL)),
    ("nothing to keep", 1, "no tokens; all choices -1",
     ((*FORM, *KEPT, *COLUMNS, "weight"), EMPTY)),
    ("the choice is unchanged", 1, ""),
    hints=hints("lab5", "assign_slots"), leaves_out=TENSORS,
)  # fmt: skip
