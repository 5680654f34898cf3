"""Lab 2, section 12, bonus: zb_v(p, m), two stages per rank in a V and every backward in halves.

    rank i has stages      i and 2p-1-i
    idle time of a rank    (p-1) max(I, 2(I-W)) of one stage's, if I >= F >= W and m >= 2p-1
    kept                   2p stages x micro-batches at most, F done and W not

Any lists that manage both are right, in whatever order.
"""

from functools import partial

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab2 import hints, schedules
from lib.check.lab2.on_ranks import gradients
from lib.check.lab2.schedules import each
from lib.check.pure import all_seen
from lib.pipeline.actions import v_shape
from lib.pipeline.schedules import zb_v
from lib.pipeline.simulate import kept, simulate

# p, m; fewer than 2p-1 last
CASES = [(2, 3), (2, 4), (3, 5), (4, 8), (1, 4), (8, 16), (4, 4), (3, 1), (4, 2), (1, 1)]
CASES_SAY = "F, I, W; p = 1, 2, 3, 4, 8; m = 1 to 16"
TIMES = ({"F": 1, "I": 1, "W": 1}, {"F": 3, "I": 4, "W": 2})


def _kept(schedule, p, m):
    for i, actions in enumerate(schedule):
        at, got = schedules.most([live + waiting for live, waiting in kept(actions)])
        if got > 2 * p:
            text = (
                f"rank {i} keeps {got} micro-batches x stages after {actions[at]} (until W), at "
                f"most 2p = {2 * p}"
            )
            return Problem("kept", f"{text}\n{schedules.row(schedule, i, actions[at])}")
    return None


def _idle(schedule, p, m):
    for times in TIMES:
        F, I, W = times.values()
        got, want = (
            simulate(schedule, times).makespan - 2 * m * (F + I + W),
            (p - 1) * max(I, 2 * (I - W)),
        )
        if m >= 2 * p - 1 and got > want:
            text = (
                f"each rank is idle for {got}, expected (p-1) max(I, 2(I-W)) = {want}, for F = "
                f"{F}, I = {I}, W = {W}"
            )
            return Problem("idle", f"{text}\n{schedules.drawn(schedule, times)}".rstrip())
    return None


def _fills_too_little(schedule, p, m):
    """Does rank 0 run fewer than 2p-1 forwards of its first stage before anything else?"""
    upper = [action.stage == 0 and action.kind == "F" for action in schedule[0]]
    return p == 1 or m == 1 or upper.index(False) < min(m, 2 * p - 1)


def _before_its_forward(problem):
    """Does an I stand before the F of the same stage and micro-batch?"""
    action, lists = problem.facts["action"], problem.facts["seen"][problem.facts["case"]]
    its_own = next(actions for actions in lists if action in actions)
    return action.kind == "I" and its_own.index(action) < its_own.index(action._replace(kind="F"))


EXERCISE = Exercise(
    name="zb_v", reference=zb_v, measure=schedules.measure(zb_v, CASES), worlds=(),
    leaves_out=schedules.LEAVES_OUT,
    bonus=True,
    claims=(
        claim("every action once, on its rank", 1, CASES_SAY,
              schedules.once("FIW", CASES, 2, v_shape)),
        claim("needs before it, no deadlock", 1, "on every rank and between them",
              each(CASES, partial(schedules.runs_through, v=2, placement=v_shape))),
        claim("2p kept at most", 2, "stages x micro-batches, F done and W not", each(CASES, _kept)),
        claim("idle (p-1) max(I, 2(I-W))", 3, "simulated, m >= 2p-1: 1, 1, 1 and 3, 4, 2",
              each(CASES, _idle)),
        claim("the whole batch's gradients", 1, "executed on 2 and 4 ranks",
              gradients([(2, 3), (4, 8), (4, 2)], 2, v_shape)),
    ),
    hints=(
        *hints.FORM,
        Hint("fewer than 2p-1 micro-batches",
             lambda p: "case" in p.facts and p.facts["case"][1] < 2 * p.facts["case"][0] - 1,
             "right as long as m >= 2p-1. With fewer, make the lists for 2p-1, and leave out the "
             "micro-batches that are not there."),
        Hint("another rank's stage", s.kind("wrong rank"),
             "the V goes down the ranks and up again: rank i has stages i and 2p-1-i, rank 0 the "
             "first and the last."),
        *hints.NUMBERS,
        hints.HALVES_ONLY,
        hints.NO_BACKWARD,
        Hint("one stage per rank",
             lambda p: p.kind == "missing"
             and {a for a in p.facts["expected"] if a.stage >= p.facts["case"][0]}
             <= p.facts["missing"],
             "each rank has two stages, i and 2p-1-i, and runs F, I and W of both."),
        Hint("W left out",
             lambda p: p.kind == "missing"
             and all(action.kind == "W" for action in p.facts["missing"]),
             "what is delayed must still be done: after the last I come the W that are left, of "
             "both stages."),
        Hint("some left out", s.kind("missing"),
             "every rank runs F, I and W of both its stages for all m micro-batches: 6m actions."),
        hints.TWICE,
        Hint("backward first",
             lambda p: p.kind == "order" and (hints.begins_backward(p) or _before_its_forward(p)),
             "I reads what its own F kept: the list of a rank begins with the forwards of its "
             "upper stage."),
        Hint("the upper gradient first",
             lambda p: p.kind == "order" and p.facts["action"].kind == "I",
             "on the last rank both middle stages live: I of its upper stage waits for I of its "
             "lower one, of the same micro-batch. In the drain they take turns."),
        Hint("the lower stage first", lambda p: p.kind == "order" and p.facts["action"].kind == "F",
             "the last rank has the two stages in the middle: what its upper stage gives, its "
             "lower one takes."),
        hints.W_FIRST,
        Hint("turns that do not fit", s.kind("deadlock"),
             "count on p = 2, m = 3: a micro-batch goes down all upper stages, up all lower ones, "
             "and its gradient down and up again. On rank i 2(p-i)-1 forwards come first, then i "
             "times both stages' in turn."),
        Hint("all forwards first",
             lambda p: p.kind == "kept" and all_seen(partial(hints.forwards_first, v=2))(p),
             "that keeps all 2m: I and W of the lower stage can begin as soon as its first forward "
             "is done."),
        Hint("all W at the end", lambda p: p.kind == "kept" and all_seen(partial(hints.weights_last,
            v=2))(p),
             "a micro-batch is kept until its W. Before the drain every W stands right behind its "
             "I."),
        Hint("too much kept", s.kind("kept"),
             "after the fill, 2p forwards on every rank, a W stands before each further forward."),
        Hint("the fill is too short", lambda p: p.kind == "idle" and all_seen(_fills_too_little)(p),
             "rank i can run 2(p-i)-1 forwards of its upper stage before the first micro-batch "
             "comes up to its lower one: fewer, and the ranks behind it wait."),
        Hint("W at once", lambda p: p.kind == "idle" and all_seen(hints.weights_at_once)(p),
             "at the end the ranks wait for I after I, so there W must wait: on rank i first i "
             "pairs of I, their W last."),
        Hint("W in the way", s.kind("idle"),
             "a rank does a W while another waits for its I, or has no W left when it waits "
             "itself. In the drain of rank i: i times I of both stages, then p-i times I and W of "
             "the upper one, then the W that are left."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
