"""Lab 2, section 9, bonus: zb_h1(p, m), 1F1B with every backward in two halves and the second put
off.

    idle time of a rank  (p-1)(F + I - W) where m >= p and W is the shortest, in place of 1F1B's
                         (p-1)(F + I + W)
    kept                 min(m, p) micro-batches with F done and W not, 1F1B's peak on rank 0

Any lists that manage both are right: W may stand anywhere.
"""

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab2 import hints, schedules
from lib.check.lab2.on_ranks import gradients
from lib.check.lab2.schedules import CASES, CASES_SAY, each
from lib.check.pure import all_seen
from lib.pipeline.schedules import zb_h1
from lib.pipeline.simulate import kept, simulate

TIMES = ({"F": 1, "I": 1, "W": 1}, {"F": 3, "I": 4, "W": 2})


def _kept(schedule, p, m):
    for i, actions in enumerate(schedule):
        at, got = schedules.most([live + waiting for live, waiting in kept(actions)])
        if got > min(m, p):
            text = (
                f"rank {i} keeps {got} micro-batches after {actions[at]} (each until its W), at "
                f"most {min(m, p)}"
            )
            return Problem("kept", f"{text}\n{schedules.row(schedule, i, actions[at])}")
    return None


def _idle(schedule, p, m):
    for times in TIMES:
        F, I, W = times.values()
        got, want = simulate(schedule, times).makespan - m * (F + I + W), (p - 1) * (F + I - W)
        if m >= p and got > want:
            text = (
                f"each rank is idle for {got}, expected (p-1)(F+I-W) = {want}, for F = {F}, I = "
                f"{I}, W = {W}"
            )
            return Problem("idle", f"{text}\n{schedules.drawn(schedule, times)}".rstrip())
    return None


EXERCISE = Exercise(
    name="zb_h1", reference=zb_h1, measure=schedules.measure(zb_h1), worlds=(),
    leaves_out=schedules.LEAVES_OUT,
    bonus=True,
    claims=(
        claim("every action once, on its rank", 1, f"F, I, W; {CASES_SAY}", schedules.once("FIW")),
        claim("needs before it, no deadlock", 1, "on every rank and between them",
              each(CASES, schedules.runs_through)),
        claim("no more kept than in 1F1B", 2, "min(m, p), F done and W not", each(CASES, _kept)),
        claim("idle for (p-1)(F+I-W)", 3, "simulated, m >= p: 1, 1, 1 and 3, 4, 2",
              each(CASES, _idle)),
        claim("the whole batch's gradients", 1, "executed on 2 and 4 ranks",
              gradients([(2, 3), (4, 8), (4, 2)])),
    ),
    hints=(
        *hints.FORM,
        Hint("fewer micro-batches than ranks", hints.few_microbatches,
             "right as long as m >= p. With fewer, neither the warmup nor the number of W delayed "
             "can be more than m."),
        hints.NOT_ITS_STAGE,
        *hints.NUMBERS,
        hints.HALVES_ONLY,
        hints.NO_BACKWARD,
        Hint("W left out",
             lambda p: p.kind == "missing"
             and all(action.kind == "W" for action in p.facts["missing"]),
             "what is delayed must still be done: when the last I has run, rank i has i W left."),
        Hint("a micro-batch dropped", s.kind("missing"),
             "every rank runs F, I and W for all m micro-batches."),
        hints.TWICE,
        Hint("backward first",
             lambda p: p.kind == "order"
             and (hints.begins_backward(p) or p.facts["action"].kind == "I"),
             "I reads what F kept: the list of a rank begins with a forward, and a steady step is "
             "F, then I."),
        hints.W_FIRST,
        Hint("not 1F1B's warmup", s.kind("deadlock"),
             "leave out the W: what remains must be 1F1B, with a warmup of p-1-i forwards on rank "
             "i."),
        Hint("all forwards first", lambda p: p.kind == "kept" and all_seen(hints.forwards_first)(p),
             "that is GPipe with split backwards: as m grows, so does the memory."),
        Hint("all W at the end", lambda p: p.kind == "kept" and all_seen(hints.weights_last)(p),
             "a micro-batch is kept until its W. Rank i puts off i of them, not all."),
        Hint("too much kept", s.kind("kept"),
             "rank i has p-i micro-batches between F and I, so it can delay i W: p together."),
        Hint("W at once", lambda p: p.kind == "idle" and all_seen(hints.weights_at_once)(p),
             "a W right after its I is 1F1B: the previous rank waits for your next I. Let rank i "
             "put its W off by i micro-batches."),
        Hint("W in the way", s.kind("idle"),
             "at the end the ranks wait for I after I. There the later ranks should have W left to "
             "do: rank i puts off i of them until then."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
