"""Lab 2, section 5: WeightStash(weights), for_forward(j), for_backward(j), update(change), on PipeDream's ranks.

version      what for_forward and for_backward give, by its numbers
memory       all versions that there are at a time: p-i at stage i
"""

import torch.distributed as dist

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab2.stash_hints import HINTS
from lib.check.lab2.stash_runs import CASES, SAY, WORLD, run
from lib.pipeline import stash
from lib.pipeline.links import connect

MAY_CALL = ("framework._measure_all",)  # PipeDream's own messages: no line of the student's is above them


def _measure(fn):
    def one(case, links):
        if any(c.__module__ == stash.__name__ for c in getattr(fn, "__mro__", ())):
            return {"ok": False, "libs": True}
        record = called(case, run, case, fn, links)
        return {"ok": record["problem"] is None, "libs": False, **record}

    return in_step(CASES, lambda cases: {case: connect([case.members]) for case in cases}, one, wire=dist.new_group())


def _version(*kinds):
    """The claim: no problem of these kinds on any stage; else the one of the first stage that has one."""

    def judge(runs):
        for _, _, records in seen(runs, CASES):
            if any(record["libs"] for record in records):
                return Problem("built-in", "the answer is lib's stash, or a child of it")
            first = next((record["problem"] for record in records if record["problem"]), None)
            if first and first.kind in kinds:
                return first
        return None

    return judge


def _memory(runs):
    for _, case, records in seen(runs, CASES):
        for i, record in enumerate(records):
            most, left = max(held for held, _ in record["held"]), record["held"][-1][0]
            if most > case.p - i or left != 1:
                when = next((done for held, done in record["held"] if held > case.p - i), "")
                text = f"{case.name}, stage {i}: "
                text += f"more than p-i = {case.p - i} versions of its weights after {when}; " if when else ""
                text += f"at most there were {most:g}, and when all was done {left:g}"
                return Problem("versions", text, {"left": left})
    return None


def _in_place(runs):
    for _, case, records in seen(runs, CASES):
        if records[-1]["moved"]:
            text = f"{case.name}, stage {case.p - 1}, the last: after an update its weights are elsewhere in memory"
            return Problem("moved", text)
    return None


EXERCISE = Exercise(
    name="WeightStash",
    reference=stash.WeightStash,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim(
            "forward reads the newest",
            5,
            f"on PipeDream's ranks, {SAY}",
            _version("built-in", "forward", "base", "calls"),
        ),
        Claim(
            "backward reads its forward's",
            7,
            "gradients and weights of one process, to 1e-12",
            _version("backward", "numbers"),
        ),
        Claim("p-i versions at stage i", 4, "at most, at any time; one when all is done", _memory),
        Claim("the last stage copies nothing", 2, "its weights change in place", _in_place),
    ),
    hints=HINTS,
)
