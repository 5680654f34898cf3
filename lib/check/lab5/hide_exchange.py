"""Lab 5, section 12, bonus: start_exchange, and the class OverlappedMoE, an order of start, compute
and wait.

The two are judged apart: the class starts with lib's start_exchange. Its output and its gradients
are compared with one process that has all experts and the shared one; what would be hidden is read
off a clock (later.py), not measured.
"""

from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from lib import backend, moe
from lib.check import symptoms as s
from lib.check.attempt import attempted
from lib.check.cases import Setting, draw, groups_and_control, in_step
from lib.check.claims import claim, each, noted, off
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.lab5.exchange_tokens import WAYS, WORLD, as_many, section
from lib.check.lab5.later import Starter, Takes
from lib.check.lab5.start_exchange import START_EXCHANGE
from lib.check.traffic import only_calls
from lib.moe import Choice, overlapped, top_k_gate

ENOUGH = 0.8  # of the exchanges' time, hidden

D = 4
TWO_EACH, DROPS, NOBODY, ONE_TOKEN, TWICE, EVEN, NESTED = (
    "2 experts a rank", "drops, a rank without tokens", "no tokens", "one token",
    "two calls, then backward", "as many rows for all", "x of (1, n, D)",
)  # fmt: skip
TOKENS = {  # of rank 0, 1, 2, 3 of the group, for each call
    TWO_EACH: ((6, 3, 4, 7),), DROPS: ((5, 8, 0, 11),), NOBODY: ((0, 0, 0, 0),),
    ONE_TOKEN: ((1, 1, 1, 1),),
    TWICE: ((5, 3, 4, 6), (2, 7, 0, 3)), EVEN: ((16, 16, 16, 16),), NESTED: ((6, 3, 4, 7),),
}  # fmt: skip
ALL = tuple(range(WORLD))
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        ((0, 1), TWO_EACH), (ALL, TWO_EACH), (ALL, DROPS), ((1, 3), TWO_EACH), ((2,), TWO_EACH),
        (ALL, ONE_TOKEN),
        (ALL, NOBODY), (ALL, TWICE), ((0, 1), EVEN), (ALL, EVEN), ((0, 1), NESTED),
    )
)  # fmt: skip


def _even_gate(logits):
    """Token t to expert t modulo E, with its probability: every expert gets as many
    rows of each half."""
    p = logits.softmax(-1)
    experts = (torch.arange(len(p), device=p.device) % p.shape[1]).unsqueeze(1)
    return Choice(experts, p.gather(1, experts), p)


class _Expert(nn.Module):
    """tanh(x w) on the rows, which takes the clock a second a row; note(what, way) is called."""

    def __init__(self, seed, what, watch=None):
        super().__init__()
        self.w = nn.Parameter(0.4 * draw(seed, D, D))
        self.what, self.watch = what, watch

    def __deepcopy__(self, memo):
        """The watch is this rank's, and stays."""
        copy = _Expert(0, self.what, self.watch)
        copy.w = nn.Parameter(self.w.detach().clone())
        return copy

    def forward(self, x):
        y = torch.tanh(x @ self.w)
        return Takes.apply(y, self.watch.clock, lambda way: None) if self.watch else y


def _parts(case, watch=None):
    """(the mixture, the shared expert), alike on all ranks."""
    E = 2 * case.world_size
    gate = _even_gate if case.what == EVEN else partial(top_k_gate, k=2)
    factor = 0.8 if case.what == DROPS else 4.0
    whole = moe.MoE(D, [_Expert(10 + e, f"expert {e}", watch) for e in range(E)], gate, factor).to(
        torch.float64
    )
    whole.router.weight.data = 0.4 * draw(1, E, D)
    return whole.to(backend.device()), _Expert(5, "shared", watch)


def _tokens(case, rank):
    """[(x, dy) of each call]: (n, D) or, NESTED, (1, n, D)"""
    sets = [numbers[rank] for numbers in TOKENS[case.what]]
    shapes = [(1, n, D) if case.what == NESTED else (n, D) for n in sets]
    return [
        (0.6 * draw(100 + 10 * i + rank, *of), draw(200 + 10 * i + rank, *of))
        for i, of in enumerate(shapes)
    ]


def _one_process(case):
    """([[(y, gradient of x, rows for each expert) of each call] of rank 0, ...], {name: gradient of
    all}, by rank)"""
    (whole, shared), ranks, of_ranks = _parts(case), [], []
    leaves = dict(whole.named_parameters()) | {
        f"shared.{name}": p for name, p in shared.named_parameters()
    }
    for rank in range(case.world_size):
        found, before = [], {name: torch.zeros_like(p) for name, p in leaves.items()}
        for x, dy in _tokens(case, rank):
            y = whole(x.requires_grad_()) + shared(x)
            slopes = torch.autograd.grad((y * dy).sum(), [x, *leaves.values()], allow_unused=True)
            before = {
                n: b + (0 if g is None else g)
                for (n, b), g in zip(before.items(), slopes[1:], strict=True)
            }
            found.append((y.detach(), slopes[0], whole.last.load))
        ranks.append(found)
        of_ranks.append(before)
    return ranks, of_ranks


def _measure(fn):
    return in_step(CASES, groups_and_control, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, groups):
    group, control = groups
    rank = case.members.index(dist.get_rank())
    where, recorder = f"{case.name}: {case.rank(rank)}", Recorder(control, allowed=[case.members])
    starter = Starter()
    record = {"gradient": None, "hidden": {}, "left": 0} | recorder.record()
    if getattr(fn, "forward", None) in (
        overlapped.OverlappedMoE.forward,
        overlapped.SharedMoE.forward,
    ):
        problem = Problem(
            "built-in", f"the class has no `forward` of its own: it is that of lib's {fn.__name__}"
        )
        return record | {"ok": False, "value": problem}
    calls, made, (sets, _) = _tokens(case, rank), [], _one_process(case)
    watch = SimpleNamespace(clock=starter.clock)

    def forward():
        whole, shared = _parts(case, watch)
        made.append(fn(whole, shared, group, recorder.all_to_all, starter.start))
        return [made[0](x.requires_grad_()) for x, _ in calls]

    def run(way, fn):
        recorder.begin(way)
        starter.clock.phase = way
        return attempted(recorder, section(case, way), f"{where}, {way}", fn)

    ys, problem = run("forward", forward)
    wrong = (
        off(f"{where}: the output", y, one[0])
        for y, one in zip(ys or [], sets[rank], strict=problem is None)
    )
    record["value"] = problem = problem or next(filter(None, wrong), None)
    if problem:
        problem.facts |= {
            "way": "forward",
            "calls": len(recorder.calls),
            "swapped": _swapped(ys, sets[rank]),
        }
    record["left"], forward_calls = starter.under_way, recorder.calls
    if recorder.agreed(problem is None):
        backward = lambda: [
            (y * dy).sum().backward()
            for y, (_, dy) in zip(ys, calls, strict=True)
            if y.requires_grad
        ]
        _, problem = run("backward", backward)
        wrong = _wrong_gradients(case, where, rank, [x for x, _ in calls], made[0])
        record["gradient"] = problem = problem or next(wrong, None)
        if problem:
            problem.facts |= {"way": "backward"}
        recorder.calls = forward_calls + recorder.calls
        record["hidden"] = {way: starter.clock.hidden(way) for way in WAYS}
        record["exchanges"] = {
            way: sum(its == way for its, *_ in starter.clock.messages) for way in WAYS
        }
    return (
        record | recorder.record() | {"ok": record["value"] is None and record["gradient"] is None}
    )


def _swapped(ys, sets):
    """Are the halves right, in each other's place?"""
    if not ys or not all(
        torch.is_tensor(y) and y.shape == one[0].shape for y, one in zip(ys, sets, strict=True)
    ):
        return False
    at = [(y.shape[-2] + 1) // 2 for y in ys]
    turned = [
        torch.cat([y[..., i:, :], y[..., :i, :]], -2) for (y, *_), i in zip(sets, at, strict=True)
    ]
    pairs = zip(ys, turned, strict=True)
    return all(off("", y, want) is None for y, want in pairs)


def _wrong_gradients(case, where, rank, xs, made):
    """The Problem of each wrong gradient; facts: gradient, name, zeros where it is none."""
    sets, of_ranks = _one_process(case)
    leaves = []
    for name, parameter in made.named_parameters():
        those = of_ranks if name.startswith("experts") else [of_ranks[rank]]
        leaves.append((name, parameter, sum(one[name] for one in those)))
    leaves += [("x", x, one[1]) for x, one in zip(xs, sets[rank], strict=True)]
    for name, leaf, want in leaves:
        got = torch.zeros_like(want) if leaf.grad is None and not want.any() else leaf.grad
        if problem := off(f"{where}: the gradient of {name}", got, want):
            problem.facts |= {"gradient": True, "name": name, "none": got is None or not got.any()}
            yield problem


def _elements(case, rank, way):
    """Those that leave the rank: twice the counts, for each half has its own, and the rows
    of a SharedMoE."""
    sets, rows = _one_process(case)[0], 0
    for number in range(len(sets[0])):
        # (from, to)
        leaves = torch.stack([calls[number][2] for calls in sets]).view(len(sets), -1, 2).sum(2)
        rows += D * int(leaves[rank].sum() + leaves[:, rank].sum() - 2 * leaves[rank, rank])
    return (len(sets[0]) * (case.world_size - 1) * 4 if way == "forward" else 0), rows


def _hidden(case, rank, record, way):
    if case.what != EVEN:
        return None
    where = f"{case.name}: {case.rank(rank)}, {way}"
    facts = {
        "case": case,
        "way": way,
        "exchanges": record["exchanges"][way],
        "share": record["hidden"][way],
    }
    if record["exchanges"][way] < 2:
        return Problem(
            "not hidden",
            f"{where}: {facts['exchanges']} exchanges were started",
            facts,
            [way, facts["exchanges"]],
        )
    if record["hidden"][way] < ENOUGH - 1e-9:
        text = (
            f"{where}: {record['hidden'][way]:.0%} of the exchanges lies beside computation, "
            f"expected {ENOUGH:.0%}"
        )
        return Problem("not hidden", text, facts, [way, round(record["hidden"][way], 3)])
    return None


def _left(case, rank, record):
    text = f"{case.name}: {case.rank(rank)}: {record['left']} exchanges were never waited for"
    return Problem("left", text, {"case": case}) if record["left"] else None


def _share(test, way=None):
    return lambda p: p.kind == "not hidden" and test(p.facts) and way in (None, p.facts["way"])


OVERLAPPED_MOE = Exercise(
    name="OverlappedMoE", reference=moe.OverlappedMoE, measure=_measure, worlds=(WORLD,),
    bonus=True,
    may_call=(
        *MAY_CALL, "overlapped.halves", "overlapped.start_dispatch", "overlapped.start_combine",
        "overlapped.experts",
        "overlapped.start_exchange", "overlapped.<lambda>", "later.wait", "expert_parallel.run",
        "overlapped.forward",
        "exchange.exchange_counts", "exchange.exchange_tokens", "expert_parallel.exchange",
    ),
    leaves_out={
        "generators": "no argument is an iterator",
        "returned": "a sum, a tensor of its own",
        "memory": "it makes the rows that travel, and keeps none",
        "attributes": "the constructor is lib's; `forward` alone is the answer's",
    },
    claims=(
        claim("the output of the plain layer", 1, "1 to 4 ranks; drops, one token, none",
              noted(CASES, "value", CASES[:-1]), each(CASES[:-1], _left)),
        claim("its gradients", 1, "of x, router, experts, shared", noted(CASES, "gradient")),
        claim("hidden in forward", 1, f"{ENOUGH:.0%} of the exchanges beside computation",
              each(CASES, partial(_hidden, way="forward"))),
        claim("hidden in backward", 1, "the same", each(CASES, partial(_hidden, way="backward"))),
        claim("the same rows", 1, "elements; counts of both halves",
              noted(CASES, "value"), only_calls(CASES, None, WAYS, section),
              as_many(CASES, _elements)),
    ),
    hints=(
        s.CALLED_LIB.saying(
            "write `forward` of your class from halves, start_dispatch, experts, start_combine and "
            "shared."),
        Hint("nothing returned",
             lambda p: p.kind in ("form", "unreadable") and p.fact("got") in (None,
             "None") and not p.fact("gradient"),
             "`forward` must end with a `return` of (..., D)."),
        s.NARROW,
        Hint("halves in each other's place", s.fact("swapped"),
             "the first half's tokens come first: torch.cat([a's, b's])."),
        Hint("never waited for", s.kind("left"),
             "every start_... returns a wait, which is to be called once."),
        Hint("the whole at once", _share(lambda f: f["exchanges"] < 4),
             "less than the four exchanges of two halves were started: dispatch and combine of A "
             "and of B."),
        Hint("one after the other", _share(lambda f: f["share"] < 0.01),
             "nothing is computed between a start and its wait. Start both dispatches "
             "before anything is computed, and call a wait when its tokens are needed, not "
             "sooner."),
        Hint("the shared expert after the wait", _share(lambda f: f["share"] < ENOUGH),
             "during each of the four exchanges there is something to compute: during dispatch A "
             "the shared expert of A, during dispatch B A's experts, during combine A B's experts, "
             "during combine B the shared expert of B."),
        Hint("a rank without rows", s.either(s.hung, s.kind("clash")),
             "every rank starts and waits for the same four exchanges in the same order, one "
             "without tokens, too."),
        Hint("gradients stop", s.both(s.fact("gradient"), s.fact("none")),
             "somewhere on the way the graph is cut: no detach(), no no_grad()."),
        Hint("another gradient", s.fact("gradient"),
             "the output was right; it is made of all parts, each once."),
        Hint("more than the rows", s.kind("elements"),
             "each half is dispatched and combined once. halves sends the counts of both."),
        Hint("another shape", s.in_case(CASES, lambda case: case.what == NESTED, *s.SHAPES),
             "x is (..., D), here (1, n, D), and so is the result: halves(x.flatten(0, -2)), and "
             "view_as(x) at the end."),
        Hint("another result", s.kind(*s.SHAPES),
             "y = shared(x) + the mixture: of each half shared(half.tokens) and what its "
             "start_combine's wait returns, joined, in the shape of x."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("hide_exchange", (START_EXCHANGE, OVERLAPPED_MOE), bonus=True)
