"""Lab 5, section 6: exchange_tokens, routed tokens to the ranks of their experts, and the class
ExpertParallelMoE, which uses it.

The two are judged apart: the class exchanges with lib's exchange_tokens. Its output, its gradients
and what it sends are compared with one process that takes the ranks' sets of tokens one by one,
each with its own capacity.
"""

from functools import cache, partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check import symptoms as s
from lib.check.attempt import attempted
from lib.check.cases import Setting, draw, groups_and_control, in_step
from lib.check.claims import claim, noted, off
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.lab5.exchange_tokens import (
    EXCHANGE_TOKENS,
    WAYS,
    WORLD,
    as_many,
    lists_do_not_fit,
    section,
)
from lib.check.traffic import only_calls
from lib.moe import MoE, switch_gate, top_k_gate
from lib.moe import expert_parallel as libs

D = 4
TOP_2 = partial(top_k_gate, k=2)


class Setup(NamedTuple):
    """A layer of `each` experts a rank, and the tokens of rank 0, 1, 2, 3 of the
    group, for each call."""

    each: int
    gate: object
    factor: float
    calls: tuple[tuple[int, ...], ...]
    router: float = 1.0  # its weights are multiplied by this; 0: every token likes expert 0 best


SETUPS = {
    "1 expert a rank": Setup(1, switch_gate, 1.0, ((5, 3, 4, 6),)),
    "2 experts a rank": Setup(2, TOP_2, 4.0, ((5, 3, 4, 6),)),
    "drops, a rank without tokens": Setup(2, TOP_2, 0.8, ((5, 8, 0, 11),)),
    "6 experts a rank": Setup(
        6, TOP_2, 2.0, ((7, 4, 0, 0),)
    ),  # expert 10 comes after 9, not after 1
    "all tokens to expert 0": Setup(2, switch_gate, 64.0, ((3, 5, 2, 4),), router=0.0),
    "no tokens": Setup(2, switch_gate, 1.0, ((0, 0, 0, 0),)),
    "two calls, then backward": Setup(2, TOP_2, 1.0, ((5, 3, 4, 6), (2, 7, 0, 3))),
}
ONE, TWO, DROPS, SIX, TO_ONE, NOBODY, TWICE = SETUPS
ALL = tuple(range(WORLD))
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        ((0, 1), ONE), ((0, 1), TWO), ((0, 1, 2), TWO), (ALL, ONE), (ALL, DROPS), ((1, 3), SIX),
        ((2,), TWO),
        (ALL, TO_ONE), (ALL, NOBODY), (ALL, TWICE),
    )
)  # fmt: skip


def _layer(case):
    """The whole layer, alike on all ranks."""
    setup = SETUPS[case.what]
    experts = [
        nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, D))
        for _ in range(setup.each * case.world_size)
    ]
    moe = MoE(D, experts, setup.gate, setup.factor).to(backend.device(), torch.float64)
    for i, parameter in enumerate(moe.parameters()):
        parameter.data = 0.4 * draw(i, *parameter.shape)
    moe.router.weight.data *= setup.router
    return moe


def _tokens(case, rank):
    """[(x, dy) of each call], (n, D) each: the loss of a rank is (y * dy).sum()."""
    sets = [numbers[rank] for numbers in SETUPS[case.what].calls]
    return [
        (0.6 * draw(100 + 10 * i + rank, n, D), draw(200 + 10 * i + rank, n, D))
        for i, n in enumerate(sets)
    ]


class Set(NamedTuple):
    """What one process makes of one rank's tokens in one call."""

    load: torch.Tensor  # (E,)  rows for each expert
    y: torch.Tensor  # (n, D)
    gradients: dict  # {name: of this set's loss alone}; "x" too


@cache
def _one_process(case):
    """[[Set of each call] of rank 0, ...]. To be read only."""
    moe, ranks = _layer(case), []
    for rank in range(case.world_size):
        ranks.append([])
        for x, dy in _tokens(case, rank):
            x.requires_grad_()
            y, leaves = moe(x), dict(moe.named_parameters()) | {"x": x}
            found = torch.autograd.grad((y * dy).sum(), list(leaves.values()), allow_unused=True)
            pairs = zip(leaves.items(), found, strict=True)
            gradients = {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}
            ranks[-1].append(Set(moe.last.load, y.detach(), gradients))
    return ranks


def _measure(fn):
    return in_step(CASES, groups_and_control, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, groups):
    group, control = groups
    rank = case.members.index(dist.get_rank())
    where, recorder = f"{case.name}: {case.rank(rank)}", Recorder(control, allowed=[case.members])
    record = {"gradient": None} | recorder.record()
    if getattr(fn, "run", None) is libs.ExpertParallelMoE.run:
        problem = Problem(
            "built-in", f"the class has no `run` of its own: it is that of lib's {fn.__name__}"
        )
        return record | {"ok": False, "value": problem}
    calls, made, mine = _tokens(case, rank), [], _one_process(case)[rank]

    def forward():
        made.append(fn(_layer(case), group, recorder.all_to_all))
        return [made[0](x.requires_grad_()) for x, _ in calls]

    recorder.begin("forward")
    ys, problem = attempted(recorder, section(case, "forward"), f"{where}, forward", forward)
    outputs = zip(ys or [], mine, strict=problem is None)
    wrong = (off(f"{where}: the output", y, one.y) for y, one in outputs)
    record["value"] = problem = problem or next(filter(None, wrong), None)
    if problem:
        exchanges = sum(call.dtype.is_floating_point for call in recorder.calls)
        problem.facts |= {"way": "forward", "calls": len(recorder.calls), "exchanges": exchanges}
    forward_calls = recorder.calls
    if recorder.agreed(problem is None):
        recorder.begin("backward")
        backward = lambda: [
            (y * dy).sum().backward()
            for y, (_, dy) in zip(ys, calls, strict=True)
            if y.requires_grad
        ]
        _, problem = attempted(recorder, section(case, "backward"), f"{where}, backward", backward)
        wrong = _wrong_gradients(case, where, rank, [x for x, _ in calls], made[0])
        record["gradient"] = problem = problem or next(wrong, None)
        if problem:
            problem.facts |= {"way": "backward"}
        recorder.calls = forward_calls + recorder.calls
    return (
        record | recorder.record() | {"ok": record["value"] is None and record["gradient"] is None}
    )


def _wrong_gradients(case, where, rank, xs, made):
    """The Problem of each wrong gradient; facts: gradient, scaled by N, zeros where it is none."""
    sets = _one_process(case)
    leaves = [("x", x, one.gradients["x"]) for x, one in zip(xs, sets[rank], strict=True)]
    for name, parameter in made.named_parameters():
        those = sets if name.startswith("experts") else [sets[rank]]
        leaves.append(
            (name, parameter, sum(one.gradients[name] for calls in those for one in calls))
        )
    for name, leaf, want in leaves:
        got = torch.zeros_like(want) if leaf.grad is None and not want.any() else leaf.grad
        if problem := off(f"{where}: the gradient of {name}", got, want):
            none, N = got is None or not got.any(), case.world_size
            scaled = not none and any(off("", got, want * factor) is None for factor in (N, 1 / N))
            problem.facts |= {"gradient": True, "none": none, "scaled": scaled}
            yield problem


def _elements(case, rank, way):
    """Those that leave the rank: counts, and rows there and home, forward and backward."""
    sets, each, rows = _one_process(case), SETUPS[case.what].each, 0
    for number in range(len(sets[0])):
        # (from, to)
        leaves = (
            torch.stack([calls[number].load for calls in sets]).view(len(sets), -1, each).sum(2)
        )
        rows += D * int(leaves[rank].sum() + leaves[:, rank].sum() - 2 * leaves[rank, rank])
    return (len(sets[0]) * (case.world_size - 1) * each if way == "forward" else 0), rows


def _in_forward(p):
    return lists_do_not_fit(p) and p.fact("way") == "forward"


EXPERT_PARALLEL_MOE = Exercise(
    name="ExpertParallelMoE", reference=libs.ExpertParallelMoE, measure=_measure, worlds=(WORLD,),
    may_call=(*MAY_CALL, "exchange.exchange_counts", "exchange.exchange_tokens",
    "expert_parallel.exchange"),
    leaves_out={
        "generators": "no argument is an iterator",
        "returned": "what `run` returns goes to lib's combine, which makes a new tensor",
        "memory": "it makes the rows that travel, and keeps none",
        "attributes": "the constructor is lib's; `run` alone is the answer's",
    },
    claims=(
        claim("the output of one process", 6, "1, 2, 4 experts a rank, 1 to 4 ranks; drops, none",
              noted(CASES, "value")),
        claim("its gradients", 4, "of x, the router, the experts", noted(CASES, "gradient")),
        claim("each kept pair's row, both ways", 4, "elements; E/ep counts to each other rank",
              only_calls(CASES, None, WAYS, section), as_many(CASES, _elements)),
    ),
    hints=(
        s.CALLED_LIB.saying("write `run` of your class from what its docstring lists, without "
                            "super().run."),
        s.NO_GROUP.saying("without a group all_to_all takes every rank there is. Pass "
                          "self.group on."),
        Hint("nothing returned", s.both(s.kind("unreadable"), s.refused("None")),
             "`run` must end with a `return` of the tokens that came back."),
        s.NARROW,
        Hint("counts not exchanged",
             lambda p: _in_forward(p) and p.facts["calls"] == p.facts["exchanges"] == 1,
             "how many tokens come from each rank is known to the others only: first "
             "moe.exchange_counts(load, self.group, self.all_to_all)."),
        Hint("home by the same lists", lambda p: _in_forward(p) and p.facts["exchanges"] == 2,
             "on the way back the two lists are swapped: what was received is sent, "
             "self.exchange(routed_tokens, receive_counts, send_counts)."),
        Hint("another rank's counts", _in_forward,
             "to rank j go the tokens for its experts, j E/ep to (j+1) E/ep - 1: "
             "load.view_as(received).sum(1). From rank i come received[i].sum()."),
        Hint("a rank without rows", s.either(s.hung, s.kind("clash")),
             "every rank calls exchange_counts once and exchange twice, also one that has no "
             "tokens or gets none: the others wait for it, in backward too."),
        Hint("not sent home", lambda p: p.fact("exchanges") == 1 and p.kind in ("value", "form",
            "unreadable"),
             "what `run` returns goes to `combine`, which needs the m tokens that this rank sent: "
             "exchange them back."),
        Hint("rows of other experts", s.both(s.kind("raised"), s.refused("shape")),
             "run_experts needs how many tokens each expert here gets from all ranks, "
             "received.sum(0), (E/ep,): not what this rank sends."),
        Hint("a call under way", s.both(s.fact("way", "backward"),
            s.in_case(CASES, lambda case: case.what == TWICE)),
             "one call was right; of two the backward takes the other's counts. Each call keeps "
             "its own, in ctx."),
        Hint("gradients stop", s.both(s.fact("gradient"), s.fact("none")),
             "somewhere on the way the graph is cut: no detach(), no no_grad(). self.exchange has "
             "a backward, all_to_all has none."),
        Hint("gradient scaled", s.fact("scaled"),
             "backward of the exchange has brought each expert the gradients of all ranks' tokens, "
             "added up. Dividing is the business of reduce_gradients."),
        Hint("another gradient", s.fact("gradient"),
             "rows that are copied, reordered and exchanged need nothing more."),
        s.NOT_GIVEN.saying(
            "the layer's constructor is given what sends: self.all_to_all, which self.exchange "
            "takes by itself, and exchange_counts if you pass it on."),
        Hint("more than rows and counts", s.kind("elements"),
             "each is sent once: E/ep counts to each other rank, and the token of each kept pair "
             "whose expert is on another rank, to it and back, unpadded."),
        Hint("another result", s.kind(*s.SHAPES),
             "exchange counts; exchange tokens; sort by expert; experts; sort by sender; exchange "
             "back. What `run` returns has the order of the tokens that it was given."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("expert_parallel", (EXCHANGE_TOKENS, EXPERT_PARALLEL_MOE))
