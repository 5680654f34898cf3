"""Lab 4, section 2: Zero1(parameters, make_optimizer, group, reduce_scatter, all_gather), a rank's shard of the update.

What make_optimizer is given is the rank's shard, whatever the answer calls it: its size, its gradient and the
optimizer's state are looked at there. Parameters are those of one process on the whole batch.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab1.cases import WORLD, Case
from lib.check.lab1.watched import groups_with_wires
from lib.check.lab4.zero1_hints import HINTS, MAY_CALL
from lib.check.lab4.zero_given import ALL_GATHER, REDUCE_SCATTER, Given
from lib.check.lab4.zero_made import (
    Made,
    as_one_process,
    found,
    listed,
    sent_otherwise,
    take_left,
    wrong_calls,
    wrong_mean,
    wrong_state,
)
from lib.check.lab4.zero_models import Setup, one_process, values, wrong_parameter
from lib.zero import zero1
from lib.zero.flat import padded_size

NAME = "Zero1"
SETUPS = {
    setup.words: setup for setup in (Setup("SGD", 72), Setup("SGD", 77), Setup("AdamW", 77), Setup("AdamW", 77, 2))
}
DIVIDES, SGD, ADAMW, MICROBATCHES = SETUPS
CASES = [
    Case(NAME, (0, 1, 2), DIVIDES), Case(NAME, (0, 1, 2), SGD), Case(NAME, tuple(range(WORLD)), ADAMW),
    Case(NAME, (1, 3), ADAMW), Case(NAME, (2,), ADAMW), Case(NAME, (0, 1, 2), MICROBATCHES),
]  # fmt: skip
AVERAGE, STEP = "average_gradients()", "step()"


def _section(case, step, part):
    return replace(case, what=f"{case.what}, step {step + 1}, {part}")


def _measure(fn):
    one = lambda case, groups: _run(case, fn, *groups)
    return in_step(CASES, groups_with_wires, one, wire=dist.new_group())


def _run(case, fn, group, wire):
    """All steps of a case, up to the first that is wrong on any rank."""
    setup, given = SETUPS[case.what], Given(wire)
    record = {"ok": False, "libs": _is_libs(fn), "wire": wire.group_name, "value": None, "calls": []}
    if record["libs"]:
        return record
    model, made = setup.model(), Made(setup)
    ways = {"reduce_scatter": given.reduce_scatter, "all_gather": given.all_gather}
    making = replace(case, what=f"{case.what}, __init__")
    answer = called(making, fn, list(model.parameters()), made, group, **ways)
    record["libs"] = _is_libs(type(answer))
    record["ok"] = not record["libs"]
    for step, expected in enumerate(one_process(setup, setup.model(), case.world_size) if record["ok"] else []):
        seen_here = _step(case, step, model, made, answer, given, expected)
        record["calls"].append(seen_here.pop("calls"))
        record |= {kind: record.get(kind) or problem for kind, problem in seen_here.items()}
        record["ok"] = given.all_right(record["value"] is None)
        if not record["ok"]:
            break
        made.optimizer.zero_grad()
    return record


def _step(case, step, model, made, answer, given, expected):
    """One step: its calls; and of its values, the shards' gradients and the state, the Problem or None."""
    rank, setup, N = dist.get_rank(given.wire), SETUPS[case.what], case.world_size
    where, before = f"{case.where}, step {step + 1}: {case.rank(rank)}", values(model)

    def backward_and_average():
        for loss in setup.loss(model, rank, step):
            loss.backward()
        answer.average_gradients()

    given.begin()
    called(_section(case, step, AVERAGE), backward_and_average)
    left, average = take_left(model, made), given.end()
    mean = wrong_mean(where, left, made, given, expected.parts)
    shards, has_gradients = [shard.detach().clone() for shard in made.shards], made.has_gradients
    given.begin()
    called(_section(case, step, STEP), answer.step)
    update = given.end()
    after = [shard.detach() for shard in made.shards]
    value = wrong_calls(where, [average, update])
    value = value or wrong_parameter(where, rank, setup, step, before, values(model), expected)
    if value:
        value.facts |= {
            "case": case, "made": made.count, "has_gradients": has_gradients,
            "moved": not all(map(torch.equal, shards, after)),
            "gathers": len(given.gathered),
            "gathers_new": any(torch.equal(gathered, shard) for gathered in given.gathered for shard in after),
            "reduces": REDUCE_SCATTER in [name for name, _ in average["calls"]],
        }  # fmt: skip
    state = wrong_state(where, made, padded_size(setup.parameters, N), N)
    calls = {AVERAGE: average["calls"], STEP: update["calls"]}
    return {"value": value, "mean": mean, "state": state, "calls": calls}


def _is_libs(kind):
    return any(c.__module__ in (zero1.__name__, "lib.zero.zero2") for c in getattr(kind, "__mro__", ()))


def _sent(runs):
    for run, case, records in seen(runs, CASES):
        N, padded = case.world_size, padded_size(SETUPS[case.what].parameters, case.world_size)
        if N == 1:
            continue
        want = {AVERAGE: [(REDUCE_SCATTER, padded)], STEP: [(ALL_GATHER, padded // N)]}
        sections = [_section(case, step, part).name for step in range(SETUPS[case.what].steps) for part in want]
        if problem := sent_otherwise(run, case, sections, records):
            return problem
        for rank, record in enumerate(records):
            for step, calls in enumerate(record["calls"]):
                for part in want:
                    if calls[part] != want[part]:
                        text = f"{case.where}, step {step + 1}, {part}: {case.rank(rank)} called {listed(calls[part])}"
                        facts = {"got": calls[part], "part": part, "padded": padded}
                        return Problem("calls", f"{text}\nexpected {listed(want[part])}", facts)
    return None


EXERCISE = Exercise(
    name=NAME,
    reference=zero1.Zero1,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim(
            "as one process, step by step",
            10,
            "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused",
            as_one_process(NAME, CASES, (DIVIDES, SGD, ADAMW)),
        ),
        Claim("micro-batches add up", 2, "two of them, then one step", as_one_process(NAME, CASES, (MICROBATCHES,))),
        Claim(
            "1/N of the optimizer's state",
            5,
            "padded/N elements, and AdamW's two moments of them",
            found(CASES, "state"),
        ),
        Claim("the mean in the shard", 3, "in its .grad; the parameters' gradients are gone", found(CASES, "mean")),
        Claim("one message each way", 4, "padded elements each, by those it was given", _sent),
    ),
    hints=HINTS,
)
