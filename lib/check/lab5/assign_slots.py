"""Lab 5, section 3: assign_slots(choice, n_experts, C), which (token, expert) pairs get one of the
expert's C slots, and which are dropped."""

from typing import NamedTuple

import torch

from lib import moe
from lib.check import symptoms as s
from lib.check.cases import form_of
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import TENSORS
from lib.check.pure import ONCE
from lib.check.tensors import Calls, draw, gradients, kept, left_alone, new, once, values
from lib.moe import Choice

FIELDS = ("token", "expert", "slot", "weight")


def _drawn(seed, n, E, k, minus_one=0):
    """Experts that are drawn, the low numbers more often; of every `minus_one` tokens one without
    its last choice."""
    likes = draw(seed, n, E) - 0.5 * torch.arange(E)
    rows = likes.sort(dim=1, descending=True).indices[:, :k].tolist()
    return [
        [*row[:-1], -1] if minus_one and token % minus_one == 1 else row
        for token, row in enumerate(rows)
    ]


BY_HAND = [[0, 1], [0, 2], [0, 1], [1, 2], [2, 0]]
SOME = {
    "first choices 0 0 0 1 2, second 1 2 1 2 0; C=2": (BY_HAND, 3, 2),
    "first choices 0 2 1 0 1, second -1 -1 0 2 2; C=3": (
        [[0, -1], [2, -1], [1, 0], [0, 2], [1, 2]],
        3,
        3,
    ),
    "12 tokens, k=2, E=4, C=4": (_drawn(1, 12, 4, 2), 4, 4),
    "10 tokens, k=3, E=5, C=3": (_drawn(2, 10, 5, 3), 5, 3),
    "9 tokens, k=1, E=3, C=2": (_drawn(3, 9, 3, 1), 3, 2),
    "12 tokens, k=2, some second choices -1, E=4, C=4": (_drawn(4, 12, 4, 2, 3), 4, 4),
    "8 tokens, k=2, some second choices -1, E=6, C=8": (_drawn(5, 8, 6, 2, 2), 6, 8),
    "7 tokens, all to expert 1, E=3, C=4": ([[1]] * 7, 3, 4),
    "3 tokens, k=3, E=2, third choices -1, C=1": ([[1, 0, -1], [1, 0, -1], [0, 1, -1]], 2, 1),
    "4 tokens, k=2, E=3, C=2, a weight of 0": ([[0, 1], [1, 2], [2, 0], [0, 2]], 3, 2),
    "5 tokens, k=2, E=3, C=2, float32": ([[2, 1], [2, 0], [1, 2], [2, 1], [0, 1]], 3, 2),
}
NOBODY = {
    "no tokens, E=4, C=0": (torch.empty(0, 2, dtype=torch.int64), 4, 0),
    "2 tokens, all choices -1, E=4, C=2": ([[-1, -1]] * 2, 4, 2),
    "2 tokens, E=2, C=0": ([[0, 1]] * 2, 2, 0),
}


def _case(name, experts, E, C):
    """Weights of each token that add up to 1, and probabilities that are others."""
    experts = torch.as_tensor(experts)
    weights = (
        draw(7, *experts.shape).softmax(-1)
        if experts.shape[1] > 1
        else draw(7, *experts.shape).sigmoid()
    )
    if "a weight of 0" in name:
        weights[1, 1] = 0
    choice = Choice(experts, weights.where(experts >= 0, 0.0), draw(8, len(experts), E).softmax(-1))
    if "float32" in name:
        choice = choice._replace(
            weights=choice.weights.float(), probabilities=choice.probabilities.float()
        )
    return {"choice": choice, "n_experts": E, "C": C}


CASES = {name: _case(name, *args) for name, args in (SOME | NOBODY).items()}
CALLS = Calls(
    moe.assign_slots,
    CASES,
    ("choice.weights",),
    "Routing",
    FIELDS,
    may_leave_graph="combine multiplies them with rows, which are in the graph",
)


class Pair(NamedTuple):
    token: int
    expert: int
    slot: int
    place: int  # 0: it is the token's first choice


def _right(case):
    """[Pair, ...] in the order of the routing."""
    experts = CASES[case]["choice"].experts.tolist()
    routing = moe.assign_slots(*CASES[case].values())
    columns = zip(*(getattr(routing, field).tolist() for field in FIELDS[:3]), strict=True)
    return [Pair(*pair, experts[pair[0]].index(pair[1])) for pair in columns]


def _got(routing):
    """[(token, expert), ...]"""
    return list(zip(routing.token.tolist(), routing.expert.tolist(), strict=True))


def _form(case, record):
    if record["problem"] or not all(hasattr(record["out"], field) for field in FIELDS):
        return record["problem"] or record["wrong"][0][1]
    routing, dtype = record["out"], CASES[case]["choice"].weights.dtype
    shape = (
        (len(routing.token),) if torch.is_tensor(routing.token) and routing.token.dim() else (0,)
    )
    for field in FIELDS:
        got, want = (
            getattr(routing, field),
            torch.empty(shape, dtype=dtype if field == "weight" else torch.int64),
        )
        if not torch.is_tensor(got) or got.shape != want.shape or got.dtype != want.dtype:
            text = f"{case}: {field}: expected {form_of(want)}, got {form_of(got)}"
            return Problem("form", text, {"case": case, "what": field})
    return None


def _judge(cases, found):
    """A judge: the first that found(case, routing) -> (Problem, sample) finds; the
    trace has all."""

    @without_ranks
    def judge(records):
        if problem := next((p for case in cases if (p := _form(case, records[case]))), None):
            return once(records, problem)
        wrong = [(case, *one) for case in cases if (one := found(case, records[case]["out"]))]
        if not wrong:
            return None
        problem = wrong[0][1]
        problem.trace = [[case, sample] for case, _, sample in wrong]
        return once(records, problem)

    return judge


def _who(case, routing):
    """Are the right pairs (token, expert) kept, whatever their order?"""
    got, right = sorted(_got(routing)), _right(case)
    if got == sorted(pair[:2] for pair in right):
        return None
    text = f"{case}: {_first_astray(got, right, CASES[case]['choice'].experts.tolist())}"
    return Problem("pairs", text, {"case": case}), got


def _slots(case, routing):
    """In the order of the routing that was got, which is judged afterwards."""
    slot_of, got = {pair[:2]: pair.slot for pair in _right(case)}, routing.slot.tolist()
    for pair, slot in zip(_got(routing), got, strict=True):
        if slot != slot_of[pair]:
            text = (
                f"{case}: slot of token {pair[0]}'s pair with expert {pair[1]}: expected "
                f"{slot_of[pair]}, got {slot}"
            )
            return Problem("slot", text, {"case": case}), [_got(routing), got]
    return None


def _order(case, routing):
    got, want = _got(routing), [pair[:2] for pair in _right(case)]
    if got == want:
        return None
    at = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
    text = f"{case}: pair {at}, (token, expert): expected {want[at]}, got {got[at]}"
    return Problem("order", text, {"case": case}), got


def _first_astray(got, kept, experts):
    """The first pair that is missing, or should not be there."""
    in_line = sorted(kept, key=lambda pair: (pair.place, pair.token))
    want = [(pair.token, pair.expert) for pair in in_line]
    twice = next((pair for pair in got if got.count(pair) > 1), None)
    missing = next((pair for pair in in_line if (pair.token, pair.expert) not in got), None)
    if twice:
        return (
            f"token {twice[0]} and expert {twice[1]} are kept {got.count(twice)} times, expected "
            f"once at most"
        )
    if missing:
        which = f"token {missing.token}'s choice {missing.place}, expert {missing.expert}"
        return f"{which}: expected to be kept, in slot {missing.slot}; got none"
    token, expert = next(pair for pair in got if pair not in want)
    where = f"token {token}, expert {expert}: expected to be dropped, got a slot"
    if not 0 <= token < len(experts) or expert not in experts[token]:
        return f"{where}. That token has not chosen that expert"
    if expert < 0:
        return f"{where}. -1 is no expert"
    before = ", ".join(str(pair.token) for pair in kept if pair.expert == expert)
    return f"{where}. All C are given to tokens {before}"


def _all(cases):
    return _judge(cases, _who), _judge(cases, _slots), _judge(cases, _order)


HINTS = (
    s.CALLED_LIB.saying("two loops are enough: over the k choices, and in each over the tokens."),
    ONCE,
    Hint("another k", s.raised("IndexError"),
         "a token has k choices, one, two or three: k = choice.experts.shape[1]."),
    Hint("no Routing", s.kind("returned"),
         "the function must end with return Routing(token, expert, slot, weight)."),
    Hint("nobody to keep", lambda p: p.fact("case") in NOBODY and p.kind in s.SHAPES,
         "m may be 0. torch.tensor([]) is float32 (0,): say dtype=torch.int64, and .view(-1, 4) "
         "for rows of 4."),
    Hint("another form", s.kind("form"),
         "token, expert and slot are int64 (m,); weight is (m,) like choice.weights: "
         "choice.weights[token, j], j the token's first or second or ... choice."),
    s.NARROW,
    Hint("other pairs", s.kind("pairs"),
         "for each of the k choices, for each token: if the expert is not -1 and has given fewer "
         "than C slots, the pair gets the next one."),
    Hint("other slots", s.kind("slot"),
         "a pair's slot is how many slots the expert had given before it."),
    Hint("sorted by something else", s.kind("order"),
         "sort by expert, and within an expert by slot; nothing else."),
    Hint("weights detached", s.kind("no graph"),
         "the router learns through these weights. A number from .item() or .tolist() has no "
         "gradient: index choice.weights with tensors."),
    Hint("not the choice's weights", s.kind("value"),
         "choice.weights[token, j], as they are: dropping changes none of the others."),
    Hint("the choice changed", s.either(s.kind("input"), s.refused("in place")),
         "the caller still needs the choice, for example to count what was dropped. Write into "
         "tensors of your own."),
    s.NOT_KEPT,
    s.SHARED,
    *s.ANYWHERE,
)  # fmt: skip

EXERCISE = Exercise(
    name="assign_slots", reference=moe.assign_slots, measure=CALLS, worlds=(), leaves_out=TENSORS,
    claims=(
        claim("who is kept", 7, "k 1, 2, 3; -1; nothing dropped; all to one expert", _all(SOME)[0]),
        claim("slots and order", 4, "by expert, then slot; slots by priority", *_all(SOME)[1:]),
        claim("the pairs' weights", 3, "and their gradient", values(CALLS, SOME),
              gradients(CALLS, SOME)),
        claim("nothing to keep", 1, "no tokens; all choices -1", *_all(NOBODY),
              values(CALLS, NOBODY)),
        claim("the choice is unchanged", 1, "", left_alone(CASES), new(CASES), kept(CASES)),
    ),
    hints=HINTS,
)  # fmt: skip
