"""Lab 5, section 3: keep(choice, n_experts, C), who gets one of an expert's C slots, and who is dropped."""

import torch

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import form_of
from lib.check.lab5.here import Told, answered, changed, draw, explained, first_wrong, found, slope
from lib.check.lab5.keep_hints import HINTS
from lib.check.lab5.keep_known import PAIRS, give_out, known_weights, orders, slots, weights_of
from lib.moe import Choice, keep

FIELDS = ("token", "expert", "slot", "weight")


def _drawn(seed, n, E, k, minus_one=0):
    """Experts that are drawn, the low numbers more often; of every `minus_one` tokens one without its last choice."""
    likes = draw(seed, n, E) - 0.5 * torch.arange(E)
    rows = likes.sort(dim=1, descending=True).indices[:, :k].tolist()
    return [[*row[:-1], -1] if minus_one and token % minus_one == 1 else row for token, row in enumerate(rows)]


BY_HAND = [[0, 1], [0, 2], [0, 1], [1, 2], [2, 0]]
LIMITED = {
    "first choices 0 0 0 1 2, second 1 2 1 2 0; C=2": (BY_HAND, 3, 2),
    "first choices 0 2 1 0 1, second -1 -1 0 2 2; C=3": ([[0, -1], [2, -1], [1, 0], [0, 2], [1, 2]], 3, 3),
    "12 tokens, k=2, E=4, C=4": (_drawn(1, 12, 4, 2), 4, 4),
    "10 tokens, k=3, E=5, C=3": (_drawn(2, 10, 5, 3), 5, 3),
    "9 tokens, k=1, E=3, C=2": (_drawn(3, 9, 3, 1), 3, 2),
    "12 tokens, k=2, some second choices -1, E=4, C=4": (_drawn(4, 12, 4, 2, 3), 4, 4),
    "8 tokens, k=2, some second choices -1, E=6, C=8": (_drawn(5, 8, 6, 2, 2), 6, 8),
    "7 tokens, all to expert 1, E=3, C=4": ([[1]] * 7, 3, 4),
}
NOBODY = {
    "no tokens, E=4, C=0": (torch.empty(0, 2, dtype=torch.int64), 4, 0),
    "2 tokens, all choices -1, E=4, C=2": ([[-1, -1]] * 2, 4, 2),
}


def _choice(experts, E):
    """Weights of each token that add up to 1, and probabilities that are others."""
    experts = torch.as_tensor(experts)
    weights = draw(7, *experts.shape).softmax(-1) if experts.shape[1] > 1 else draw(7, *experts.shape).sigmoid()
    return Choice(experts, weights.where(experts >= 0, 0.0), draw(8, len(experts), E).softmax(-1))


def _measure(fn):
    seen = _judged(fn, LIMITED, {})
    seen["nobody"] = next(filter(None, _judged(fn, NOBODY, seen).values()), None)
    return seen


def _judged(fn, cases, seen):
    choices = {where: _choice(experts, E) for where, (experts, E, _) in cases.items()}
    claims = dict.fromkeys(("pairs", "order", "weights", "touched"))
    leaves, routings = {}, {}
    for where, choice in choices.items():
        leaves[where] = choice.weights.clone().requires_grad_()
        given = Choice(choice.experts.clone(), leaves[where].clone(), choice.probabilities.clone())
        routings[where] = routing = answered(keep, fn, where, given, *cases[where][1:])
        claims["pairs"] = routing if isinstance(routing, Problem) else _form(where, routing)
        if claims["pairs"]:
            return claims
        claims["touched"] = claims["touched"] or changed(where, given._asdict(), choice._asdict())
    kept = {where: give_out(choice.experts.tolist(), choice.weights.tolist(), *cases[where][1:])
            for where, choice in choices.items()}  # fmt: skip
    claims["pairs"] = _who(cases, choices, routings, kept)
    if claims["pairs"] is None:
        claims["order"] = _slots(routings, kept) or _order(routings, kept)
    if not claims["pairs"] and not claims["order"]:
        claims["weights"] = _weights(choices, leaves, routings, kept)
    return claims


def _form(where, routing):
    if not all(hasattr(routing, field) for field in FIELDS):
        words = f"{len(routing)} values" if type(routing) in (tuple, list) else form_of(routing)
        return Problem("no routing", f"{where}: expected a Routing, got {words}")
    m = len(routing.token) if torch.is_tensor(routing.token) and routing.token.dim() else 0
    for field in FIELDS:
        got, dtype = getattr(routing, field), torch.float64 if field == "weight" else torch.int64
        if not torch.is_tensor(got) or got.shape != (m,) or got.dtype != dtype:
            text = f"{where}: {field}: expected {form_of(torch.empty(m, dtype=dtype))}, got {form_of(got)}"
            return Problem("form", text, {"what": field, "got": got})
    return None


def _who(cases, choices, routings, kept):
    """Are the right pairs (token, expert) kept, whatever their order?"""
    wrong, texts = [], []
    for where, routing in routings.items():
        got = sorted(zip(routing.token.tolist(), routing.expert.tolist(), strict=True))
        if got == sorted((pair.token, pair.expert) for pair in kept[where]):
            continue
        args = choices[where].experts.tolist(), choices[where].weights.tolist(), *cases[where][1:]
        known = [(words, sorted((p.token, p.expert) for p in mistake(*args))) for words, mistake in PAIRS]
        known.append(("token and expert swapped", sorted((p.expert, p.token) for p in kept[where])))
        wrong.append((got, known))
        texts.append(f"{where}: {_first_astray(got, kept[where], args[0])}")
    if not wrong:
        return None
    words = explained(wrong, lambda a, b: a == b)
    told = f"\nSo it would be with {words}." if words else ""
    return Problem("pairs", texts[0] + told, {"is": words})


def _first_astray(got, kept, experts):
    """The first pair that is missing, or should not be there."""
    in_line = sorted(kept, key=lambda pair: (pair.place, pair.token))
    want = [(pair.token, pair.expert) for pair in in_line]
    twice = next((pair for pair in got if got.count(pair) > 1), None)
    missing = next((pair for pair in in_line if (pair.token, pair.expert) not in got), None)
    if twice:
        return f"token {twice[0]} and expert {twice[1]} are kept {got.count(twice)} times, expected once at most"
    if missing:
        which = f"token {missing.token}'s choice {missing.place}, expert {missing.expert}"
        return f"{which}: expected to be kept, in slot {missing.slot}; got none"
    token, expert = next(pair for pair in got if pair not in want)
    where = f"token {token}, expert {expert}: expected to be dropped, got a slot"
    if not 0 <= token < len(experts) or expert not in experts[token]:
        return f"{where}. That token has not chosen that expert"
    if expert < 0:
        return f"{where}. -1 is nobody"
    before = ", ".join(str(pair.token) for pair in kept if pair.expert == expert)
    return f"{where}. All C are given to tokens {before}"


def _slots(routings, kept):
    """In the order of the routing that was got, which is judged afterwards."""
    tolds = []
    for where, routing in routings.items():
        slot_of = {(pair.token, pair.expert): i for i, pair in enumerate(kept[where])}
        at = [slot_of[pair] for pair in zip(routing.token.tolist(), routing.expert.tolist(), strict=True)]
        sort = lambda numbers, at=at: torch.tensor([numbers[i] for i in at], dtype=torch.int64)
        known = lambda sort=sort, kept=kept[where]: [(words, sort(numbers)) for words, numbers in slots(kept)]
        tolds.append(Told(where, "slot", routing.slot, sort([pair.slot for pair in kept[where]]), known))
    return first_wrong(tolds)


def _order(routings, kept):
    order = lambda pairs: torch.tensor([pair[:2] for pair in pairs], dtype=torch.int64).view(-1, 2)
    return first_wrong(
        Told(
            where, "the pairs (token, expert)", torch.stack([routing.token, routing.expert], 1), order(kept[where]),
            lambda pairs=kept[where]: [(words, order(other)) for words, other in orders(pairs)],
        )
        for where, routing in routings.items()
    )  # fmt: skip


def _weights(choices, leaves, routings, kept):
    tolds = [Told(w, "weight", r.weight, weights_of(kept[w], choices[w].weights), known_weights(kept[w], choices[w]))
             for w, r in routings.items()]  # fmt: skip
    problem = first_wrong(tolds)
    for where, routing in routings.items():
        if problem or not kept[where]:
            return problem
        factors = draw(9, len(kept[where]))
        got = slope(where, "the weights", routing.weight, leaves[where], factors)
        if isinstance(got, Problem):
            return got
        want = torch.zeros_like(got)
        for pair, factor in zip(kept[where], factors, strict=True):
            want[pair.token, pair.place] = factor
        problem = first_wrong([Told(where, "the gradient of choice.weights", got, want)])
    return problem


EXERCISE = Exercise(
    name="keep",
    reference=keep,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("who is kept", 7, "k 1, 2, 3; -1; nobody dropped; all to one expert", found("pairs")),
        Claim("slots and order", 4, "by expert, then slot; slots by priority", found("order")),
        Claim("the pairs' weights", 3, "and their gradient", found("weights")),
        Claim("nobody to keep", 1, "no tokens; all choices -1", found("nobody")),
        Claim("the choice left alone", 1, "", found("touched")),
    ),
    hints=HINTS,
)
