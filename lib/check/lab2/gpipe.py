"""Lab 2, section 3: gpipe(p, m), all m forwards, then all m backwards.

A pure function: it runs here, and its lists are executed on ranks once they are right. Forwards may
go through the micro-batches in any order that all ranks share, and backwards in any other: neither
makes the pipeline slower.
"""

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab2 import hints, schedules
from lib.check.lab2.hints import same
from lib.check.lab2.on_ranks import gradients
from lib.check.lab2.schedules import CASES, CASES_SAY, each
from lib.check.pure import all_seen
from lib.pipeline.schedules import gpipe, one_f_one_b, relay


def _phases(schedule, p, m):
    for rank, actions in enumerate(schedule):
        early = next((action for action in actions[:m] if action.kind == "B"), None)
        if early:
            text = (
                f"rank {rank} runs {early} before its last "
                f"forward\n{schedules.row(schedule, rank, early)}"
            )
            return Problem("phases", text)
    return None


EXERCISE = Exercise(
    name="gpipe", reference=gpipe, measure=schedules.measure(gpipe), worlds=(),
    leaves_out=schedules.LEAVES_OUT,
    claims=(
        claim("every action once, on its rank", 3, CASES_SAY, schedules.once("FB")),
        claim("needs before it, no deadlock", 3, "on every rank and between them",
              each(CASES, schedules.runs_through)),
        claim("all forwards, then backwards", 6, "on every rank", each(CASES, _phases)),
        claim("bubble (p-1)/(m+p-1)", 2, "simulated: B = 2F, B = F", each(CASES, schedules.bubble)),
        claim("the whole batch's gradients", 2, "executed on 2 and 4 ranks",
              gradients([(2, 3), (4, 8), (4, 2)])),
    ),
    hints=(
        *hints.FORM,
        hints.NOT_ITS_STAGE,
        *hints.NUMBERS,
        hints.WHOLE_BACKWARD,
        hints.NO_BACKWARD,
        Hint("a micro-batch dropped", s.kind("missing"),
             "every rank runs F and B for all m micro-batches, 0 to m-1: range(m)."),
        hints.TWICE,
        Hint("backward first", s.kind("order"),
             "a backward reads what its own forward kept: on every rank the forwards stand first."),
        Hint("a gradient waited for too early", s.kind("deadlock"),
             "a rank that waits for a gradient sends no activations on meanwhile. Let each rank "
             "run all m forwards before its first backward, the last rank too."),
        Hint("one micro-batch at a time",
             lambda p: p.kind == "phases" and all_seen(lambda lists, p,
             m: same(lists, relay(p, m)))(p),
             "that is the relay: one rank works, the others wait. Send the next micro-batch off "
             "before the first is back."),
        Hint("1F1B", lambda p: p.kind == "phases" and all_seen(lambda lists, p,
            m: same(lists, one_f_one_b(p, m)))(p),
             "that is 1F1B, the next section. GPipe has no B before the last F."),
        Hint("backwards between", s.kind("phases"),
             "two loops one after the other on every rank: all m forwards, then all m backwards."),
        Hint("orders that differ", s.kind("bubble"),
             "the ranks go through the micro-batches in different orders, so one waits for what "
             "another does last."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
