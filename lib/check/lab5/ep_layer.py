"""ExpertParallelMoE on ranks: output, gradients, and what is sent, beside one process that takes the sets one by one.

The class that is given has a `run` of its own; all else is lib's, its exchange too. The all_to_all notes what goes
through it: counts are whole numbers, rows are not.
"""

from functools import partial

import torch

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab1.cases import WORLD
from lib.check.lab3.groups import agreed, measured
from lib.check.lab5.ep_given import MAY_CALL, Given, attempted, found, only_these
from lib.check.lab5.ep_layer_hints import HINTS
from lib.check.lab5.ep_sets import CASES, NAME, SETUPS, D, counts, layer, mistaken, one_process, tokens
from lib.check.lab5.here import Told, first_wrong
from lib.moe import expert_parallel as libs
from lib.moe.expert_parallel import transpose_blocks


def _measure(fn):
    return measured(CASES, partial(_one, fn))


def _one(fn, case, rank, group, wire):
    where, given = f"{case.where}: {case.rank(rank)}", Given(group, wire)
    record = {"calls": given.calls, "wire": wire.group_name, "gradient": None}
    if getattr(fn, "run", None) is libs.ExpertParallelMoE.run:
        problem = Problem("built-in", f"the class has no `run` of its own: it is that of lib's {NAME}")
        return record | {"ok": False, "value": problem}
    (x, dy), made, (sets, whole) = tokens(case, rank), [], one_process(case)
    x.requires_grad_()

    def build_and_run():
        made.append(fn(layer(case), group, given.all_to_all))
        return made[0](x)

    y, problem = attempted(case, "forward", where, given, build_and_run)
    known = lambda: [(words, ys[rank]) for words, ys in _known(case, sets, whole)]
    out = y.detach() if torch.is_tensor(y) else y
    record["value"] = problem or first_wrong([Told(where, "the output", out, sets[rank].y, known)])
    if record["value"]:
        record["value"].facts |= given.facts()
    if agreed(record["value"] is None, wire):
        loss = (y * dy).sum()
        _, problem = attempted(case, "backward", where, given, loss.backward if loss.requires_grad else lambda: None)
        wrong = (first_wrong([told]) for told in _gradients(where, rank, x, made[0], sets))
        record["gradient"] = problem or next(filter(None, wrong), None)
        if record["gradient"]:
            record["gradient"].facts |= {"way": "backward"}
    record["ok"] = record["value"] is None and record["gradient"] is None
    return record


def _known(case, sets, whole):
    """[(a mistake in words, [y of each rank]), ...]"""
    as_it_is = lambda rows, received: rows
    by_received = lambda rows, received: transpose_blocks(rows, received)
    other_way = lambda rows, received: transpose_blocks(rows, received.t())
    give = partial(mistaken, case, sets, whole)
    yield "the rows, sender by sender, cut as if expert by expert", give(there=as_it_is, back=as_it_is)
    yield "the rows, sender by sender, cut as if expert by expert", give(there=as_it_is)
    yield "right at the experts, and sent home expert by expert", give(back=as_it_is)
    yield "reordered by counts of another shape", give(there=other_way, back=by_received)
    yield "reordered by counts of another shape", give(there=other_way)
    yield "reordered by counts of another shape", give(back=by_received)
    yield "the tokens themselves, through no expert", give(experts=lambda experts, rows, load: rows)
    yield "of each rank's first expert alone", give(experts=lambda experts, rows, load: experts[0](rows))


def _gradients(where, rank, x, made, sets):
    mine, N = sets[rank], len(sets)
    through = mine.through_router  # a part of x's gradient that is never sent
    known = lambda: [
        ("what comes through the router alone", through),
        ("divided by the number of ranks", through + (mine.gradients["x"] - through) / N),
        ("multiplied by the number of ranks", through + (mine.gradients["x"] - through) * N),
    ]
    yield Told(where, "the gradient of x", _or_zeros(x, mine.gradients["x"]), mine.gradients["x"], known)
    for name, parameter in made.named_parameters():
        is_expert = name.startswith("experts")
        want = sum(one.gradients[name] for one in sets) if is_expert else mine.gradients[name]
        known = partial(_known_gradients, mine.gradients[name], want, N)
        yield Told(where, f"the gradient of {name}", _or_zeros(parameter, want), want, known)


def _or_zeros(leaf, want):
    """Its gradient; none at all is as good as zeros."""
    return torch.zeros_like(want) if leaf.grad is None and not want.any() else leaf.grad


def _known_gradients(own, want, N):
    return [
        ("zeros", 0 * want),
        ("of this rank's own tokens alone", own),
        ("divided by the number of ranks", want / N),
        ("multiplied by the number of ranks", want * N),
    ]


def _elements(case, rank):
    """Those that leave the rank: counts, and rows there and home, forward and backward."""
    sets, _ = one_process(case)
    each = SETUPS[case.what].each
    there = sets[rank].load.view(-1, each).sum(1)  # (ep,)
    here = counts(case, sets)[rank].sum(1)  # (ep,)
    rows = D * int(there.sum() - there[rank] + here.sum() - here[rank])
    return {"forward": ((case.world_size - 1) * each, rows), "backward": (0, rows)}


EXPERT_PARALLEL_MOE = Exercise(
    name=NAME,
    reference=libs.ExpertParallelMoE,
    measure=_measure,
    worlds=(WORLD,),
    may_call=(*MAY_CALL, "exchange.exchange_counts", "exchange.exchange_rows", "expert_parallel.exchange"),
    claims=(
        Claim("the output of one process", 6, "1, 2, 4 experts a rank, 1 to 4 ranks; drops, none", found(
            CASES, "value")),
        Claim("its gradients", 4, "of x, the router, the experts", found(CASES, "gradient")),
        Claim("each kept pair's row, both ways", 4, "elements; E/ep counts to each other rank", only_these(
            CASES, _elements)),
    ),
    hints=HINTS,
)  # fmt: skip
