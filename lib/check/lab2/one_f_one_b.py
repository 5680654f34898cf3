"""Lab 2, section 4: one_f_one_b(p, m), warmup, steady, cooldown.

    rank i   p-1-i forwards | one forward, one backward, ... | the backwards that are left

A list that keeps to min(m, p-i) micro-batches in flight and to GPipe's bubble is 1F1B, but for the
names of the micro-batches: rank p-1 may keep one and never be idle, so it runs F B F B ...; for
rank p-2 the time that leaves its forwards and backwards is then fixed too, and so on up to rank 0.
"""

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab2 import hints, schedules
from lib.check.lab2.hints import same
from lib.check.lab2.on_ranks import gradients
from lib.check.lab2.schedules import CASES, CASES_SAY, each
from lib.check.pure import all_seen
from lib.pipeline.schedules import one_f_one_b, relay
from lib.pipeline.simulate import kept


def _in_flight(schedule, p, m):
    for i, actions in enumerate(schedule):
        at, got = schedules.most([live for live, _ in kept(actions)])
        if got > min(m, p - i):
            text = (
                f"rank {i} has {got} micro-batches in flight after {actions[at]}, at most min(m, "
                f"p-i) = {min(m, p - i)}"
            )
            text += f"\n{schedules.row(schedule, i, actions[at])}"
            return Problem("in flight", text)
    return None


def _ahead(ahead):
    """Fits if in all cases every rank i runs ahead(p, m, i) forwards before its first backward."""
    return all_seen(
        lambda schedule, p, m: _leads(schedule) == [min(m, ahead(p, m, i)) for i in range(p)]
    )


def _leads(schedule):
    """[forwards before the first backward, of rank 0, 1, ...]"""
    return [
        next(at for at, action in enumerate(actions) if action.kind == "B") for actions in schedule
    ]


def _alike(schedule, p, m):
    return len(set(_leads(schedule))) == 1


def _newest_first(problem):
    """Does some rank take back the micro-batch that it sent off last, while others
    are still out?"""
    for actions in problem.facts["seen"][problem.facts["case"]]:
        out = []
        for action in actions:
            if action.kind == "F":
                out.append(action.microbatch)
            elif len(out) > 1 and out[-1] == action.microbatch:
                return True
            else:
                out.remove(action.microbatch)
    return False


EXERCISE = Exercise(
    name="one_f_one_b", reference=one_f_one_b, measure=schedules.measure(one_f_one_b), worlds=(),
    leaves_out=schedules.LEAVES_OUT,
    claims=(
        claim("every action once, on its rank", 3, CASES_SAY, schedules.once("FB")),
        claim("needs before it, no deadlock", 3, "on every rank and between them",
              each(CASES, schedules.runs_through)),
        claim("at most min(m, p-i) in flight", 7, "at stage i: F done and B not",
              each(CASES, _in_flight)),
        claim("bubble (p-1)/(m+p-1)", 5, "simulated: B = 2F, B = F", each(CASES, schedules.bubble)),
        claim("the whole batch's gradients", 2, "executed on 2 and 4 ranks",
              gradients([(2, 3), (4, 8), (4, 2)])),
    ),
    hints=(
        *hints.FORM,
        Hint("fewer micro-batches than ranks", hints.few_microbatches,
             "right as long as m >= p. With fewer the warmup of rank i is min(p-1-i, m) forwards, "
             "there are only m."),
        hints.NOT_ITS_STAGE,
        *hints.NUMBERS,
        hints.WHOLE_BACKWARD,
        hints.NO_BACKWARD,
        Hint("no cooldown",
             lambda p: p.kind == "missing"
             and all(action.kind == "B" for action in p.facts["missing"]),
             "after the last forward as many backwards are left as the warmup has forwards: they "
             "are the cooldown."),
        Hint("a micro-batch dropped", s.kind("missing"),
             "warmup of w forwards, then m - w pairs, then w backwards: count the pairs."),
        hints.TWICE,
        Hint("backward first", s.kind("order"),
             "each steady step is forward, then backward, in this order: on the last rank, which "
             "has no warmup, the backward reads what the forward just kept."),
        Hint("newest first", lambda p: p.kind in ("deadlock", "bubble") and _newest_first(p),
             "first in, first out: the micro-batch whose forward ran first comes back first."),
        Hint("the warmup grows down the pipeline", s.kind("deadlock"),
             "rank i+1 waits for forwards that rank i runs only after its backward. A rank runs "
             "one forward ahead for each rank behind it: p-1-i on rank i, none on the last."),
        Hint("that is GPipe", lambda p: p.kind == "in flight" and _ahead(lambda p, m, i: m)(p),
             "all forwards first is GPipe. After the warmup every forward is followed by a "
             "backward."),
        Hint("one too many", lambda p: p.kind == "in flight" and _ahead(lambda p, m,
            i: p - i + 1)(p),
             "the warmup is p-1-i forwards on rank i, not p-i: the first steady step brings one "
             "more."),
        Hint("alike on all ranks", lambda p: p.kind == "in flight" and all_seen(_alike)(p),
             "the warmup is the same on all ranks. It shrinks down the pipeline: p-1-i forwards on "
             "rank i, 0 to p-1."),
        Hint("too far ahead", s.kind("in flight"),
             "count what a rank holds: +1 at each F, -1 at each B. Rank i may hold p-i, as many as "
             "there are ranks from it to the end."),
        Hint("the relay", lambda p: p.kind == "bubble" and all_seen(lambda lists, p,
            m: same(lists, relay(p, m)))(p),
             "without a warmup every rank waits until its micro-batch is back: that is the relay."),
        Hint("one too few", lambda p: p.kind == "bubble" and _ahead(lambda p, m,
            i: max(1, p - 1 - i))(p),
             "the warmup is p-1-i forwards on rank i, and the first steady step brings one more "
             "before the first backward."),
        Hint("a rank left waiting", s.kind("bubble"),
             "each rank must hold p-i micro-batches before its first backward, and bring in a new "
             "one after each: fewer leave the ranks behind it without work."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
