"""Lab 4, section 3: Zero2(zero.Zero1), whose gradients leave during backward.

Two models: Lab 1's small one, with tied, frozen and unused parameters; and a chain whose backward passes a gate behind
each layer, where it is seen what has been sent, and what memory gradients hold.
"""

from dataclasses import replace

import torch.distributed as dist

from lib.buckets import plan_tapered_buckets
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab1.cases import WORLD, Case
from lib.check.lab1.watched import groups_with_wires
from lib.check.lab4.zero2_hints import HINTS, MAY_CALL
from lib.check.lab4.zero2_models import Setup, one_process, values, wrong_parameter
from lib.check.lab4.zero_chain import GATES, LAYERS, ChainSetup
from lib.check.lab4.zero_gates import AtGates
from lib.check.lab4.zero_given import REDUCE_SCATTER, Given
from lib.check.lab4.zero_made import (
    Made,
    as_one_process,
    found,
    listed,
    sent_otherwise,
    take_left,
    wrong_calls,
    wrong_mean,
)
from lib.zero import zero2
from lib.zero.flat import padded_size

NAME = "Zero2"
SETUPS = {
    setup.words: setup
    for setup in (
        ChainSetup("a chain of layers"), ChainSetup("layers named in another order", (0, 1, 2, 4, 3)),
        Setup("SGD", 77), Setup("AdamW", 77), Setup("AdamW", 77, 2),
    )
}  # fmt: skip
CHAIN, TWISTED, SGD, ADAMW, MICROBATCHES = SETUPS
CASES = [
    Case(NAME, tuple(range(WORLD)), CHAIN), Case(NAME, (0, 1, 2), TWISTED), Case(NAME, (0, 1, 2), SGD),
    Case(NAME, tuple(range(WORLD)), ADAMW), Case(NAME, (1, 3), ADAMW), Case(NAME, (2,), ADAMW),
    Case(NAME, (0, 1, 2), MICROBATCHES),
]  # fmt: skip
CAPACITY = {CHAIN: 1, TWISTED: 1}  # bytes: every layer is a flat of its own
SEVERAL = 8 * 40  # of the small model: three flats, two of several parameters


def _section(case, step, part):
    return replace(case, what=f"{case.what}, step {step + 1}, {part}")


def _padded(case):
    """The elements of each flat, in the order in which they leave."""
    parameters = [p for p in SETUPS[case.what].model().parameters() if p.requires_grad]
    buckets = plan_tapered_buckets(parameters, CAPACITY.get(case.what, SEVERAL))
    return [padded_size(sum(p.numel() for p in bucket), case.world_size) for bucket in buckets]


def _measure(fn):
    one = lambda case, groups: _run(case, fn, *groups)
    return in_step(CASES, groups_with_wires, one, wire=dist.new_group())


def _run(case, fn, group, wire):
    """All steps of a case, up to the first that is wrong on any rank."""
    setup, given = SETUPS[case.what], Given(wire)
    record = {"ok": False, "libs": _is_libs(fn), "wire": wire.group_name, "value": None, "steps": []}
    if record["libs"]:
        return record
    given.at_gate = at_gates = AtGates(_padded(case), case.world_size) if case.what == CHAIN else None
    model, made = setup.model(given.pass_gate) if at_gates else setup.model(), Made(setup)
    ways = {"reduce_scatter": given.reduce_scatter, "all_gather": given.all_gather}
    ways["capacity"] = CAPACITY.get(case.what, SEVERAL)
    making = replace(case, what=f"{case.what}, __init__")
    answer = called(making, fn, list(model.parameters()), made, group, **ways)
    record["libs"] = _is_libs(type(answer))
    record["ok"] = not record["libs"]
    for step, expected in enumerate(one_process(setup, setup.model(), case.world_size) if record["ok"] else []):
        value, mean, of_step = _step(case, step, model, made, answer, given, expected)
        record |= {"value": record["value"] or value, "mean": record.get("mean") or mean}
        record["steps"].append(of_step)
        record["ok"] = given.all_right(record["value"] is None)
        if not record["ok"]:
            break
        made.optimizer.zero_grad()
    return record


def _step(case, step, model, made, answer, given, expected):
    """One step: the Problems of its values and of the shards' gradients, or None; and what was seen of it."""
    rank, setup = dist.get_rank(given.wire), SETUPS[case.what]
    where, before = f"{case.where}, step {step + 1}: {case.rank(rank)}", values(model)
    slow, in_backward = case.what == CHAIN and step == 0, []

    def backward_and_average():
        for loss in setup.loss(model, rank, step):
            if slow:
                given.at_gate.begin(model)
            loss.backward()
            in_backward.append(len(given.end_backward()))
            answer.average_gradients()

    given.begin(gates=GATES if slow else 0)
    called(_section(case, step, "backward"), backward_and_average)
    left, average = take_left(model, made), given.end()
    mean, facts = wrong_mean(where, left, made, given, expected.parts), {"has_gradients": made.has_gradients}
    given.begin()
    called(_section(case, step, "step()"), answer.step)
    update = given.end()
    value = wrong_calls(where, [average, update])
    value = value or wrong_parameter(where, rank, setup, step, before, values(model), expected)
    if value:
        flats = setup.microbatches * len(made.shards)
        value.facts |= {
            "case": case,
            "step": step,
            "sent": len(average["calls"]),
            "flats": flats,
            "left": left,
            **facts,
        }
    kept = {name: average[name] for name in ("calls", "stuck", "begun_in_backward")}
    return value, mean, {**kept, "in_backward": in_backward[0], "gates": given.at_gate.problem if slow else None}


def _is_libs(kind):
    return any(c.__module__ == zero2.__name__ for c in getattr(kind, "__mro__", ()))


def _sent(runs):
    for run, case, records in seen(runs, CASES):
        want = [(REDUCE_SCATTER, n) for n in _padded(case)] * SETUPS[case.what].microbatches
        sections = [_section(case, step, "backward").name for step in range(SETUPS[case.what].steps)]
        if case.world_size == 1:
            continue
        if problem := sent_otherwise(run, case, sections, records):
            return problem
        for rank, record in enumerate(records):
            for step, got in enumerate(of_step["calls"] for of_step in record["steps"]):
                if got != want:
                    text = f"{case.where}, step {step + 1}: {case.rank(rank)} called {listed(got)}"
                    return Problem("calls", f"{text}\nexpected {listed(want)}", {"got": got, "want": want})
    return None


def _overlap(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records if case.what in (CHAIN, TWISTED) else []):
            first, where = record["steps"][0], f"{case.where}: {case.rank(rank)}"
            if not first["begun_in_backward"]:
                text = f"{where} had sent nothing when only the first layer's gradient was still missing"
                return Problem("late", text, {"in_backward": 0})
            if first["stuck"]:
                number, passed = first["stuck"]
                text = f"{where}: backward stood still after {passed} of {LAYERS} layers, until reduce-scatter "
                text += f"{number + 1} had ended; expected it to stand still only before a third leaves, for the oldest"
                return Problem("stuck", text, {"number": number, "passed": passed})
            if case.what == TWISTED and (n := min(s["in_backward"] for s in record["steps"])) < LAYERS:
                text = f"{where} had sent {n} of {LAYERS} flats when backward ended. All were complete, but flat 1 "
                return Problem("late", f"{text}before flat 0.", {"in_backward": n})
    return None


def _memory(runs):
    for _, _, records in seen(runs, CASES[:1]):
        if problem := next((r["steps"][0]["gates"] for r in records if r["steps"][0]["gates"]), None):
            return problem
    return found(CASES, "mean")(runs)


EXERCISE = Exercise(
    name=NAME,
    reference=zero2.Zero2,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim(
            "as one process, step by step",
            7,
            "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused",
            as_one_process(NAME, CASES, (CHAIN, TWISTED, SGD, ADAMW)),
        ),
        Claim(
            "micro-batches add up", 2, "average_gradients() after each", as_one_process(NAME, CASES, (MICROBATCHES,))
        ),
        Claim("each flat once, in one order", 3, "padded elements, by the reduce_scatter it was given", _sent),
        Claim("sent while backward runs", 3, "two under way, and backward goes on", _overlap),
        Claim("two lines at most", 3, "bytes of gradients, after each layer of backward", _memory),
    ),
    hints=HINTS,
)
