"""Answers to Lab 2's one_f_one_b: wrong ones, each with the hint that it must get,
and right ones."""

from collections import deque

from as_an_answer import as_an_answer
from lab2.slips import in_halves, slips

from lib import pipeline
from lib.pipeline import Action, schedules

one_f_one_b = as_an_answer(schedules.one_f_one_b)


def with_warmup(name, warmup_of):
    """Right but for the number of forwards in the warmup, warmup_of(p, m, i)."""

    def answer(p, m):
        schedule = []
        for i in range(p):
            F, B = ([Action(i, kind, j) for j in range(m)] for kind in "FB")
            warmup = max(0, min(m, warmup_of(p, m, i)))
            pairs = [action for pair in zip(F[warmup:], B, strict=False) for action in pair]
            schedule.append(F[:warmup] + pairs + B[m - warmup :])
        return schedule

    answer.__name__ = name
    return answer


def calls_libs(p, m):
    return pipeline.one_f_one_b(p, m)


def warmup_not_clipped(p, m):
    """Runs on micro-batches m, m+1, ... where the pipeline is longer than the batch."""
    schedule = []
    for i in range(p):
        actions = [Action(i, "F", j) for j in range(p - 1 - i)]
        for j in range(m - (p - 1 - i)):
            actions += [Action(i, "F", p - 1 - i + j), Action(i, "B", j)]
        schedule.append(actions + [Action(i, "B", j) for j in range(max(0, m - (p - 1 - i)), m)])
    return schedule


def pops_too_much(p, m):
    """IndexError where m < p."""
    schedule = []
    for i in range(p):
        forwards = [Action(i, "F", j) for j in range(m)]
        backwards = [Action(i, "B", j) for j in range(m)]
        actions = [forwards.pop(0) for _ in range(p - 1 - i)]
        while forwards:
            actions += [forwards.pop(0), backwards.pop(0)]
        schedule.append(actions + backwards)
    return schedule


def cooldown_counted_by_p(p, m):
    """The last p-1-i backwards, also where there are not so many forwards: some are done
    twice or out of order."""
    schedule = []
    for i in range(p):
        warmup = p - 1 - i
        actions = [Action(i, "F", j) for j in range(min(warmup, m))]
        for j in range(warmup, m):
            actions += [Action(i, "F", j), Action(i, "B", j - warmup)]
        schedule.append(
            actions
            + [Action(i, "B", j) for j in range(m - warmup, m) if j >= 0][: min(warmup, m) - 1]
        )
        if m >= p:
            schedule[-1] = actions + [Action(i, "B", j) for j in range(m - warmup, m)]
    return schedule


def relay_if_short(p, m):
    """Gives up on overlap where m < p."""
    return one_f_one_b(p, m) if m >= p else pipeline.relay(p, m)


def without_cooldown(p, m):
    return [actions[: len(actions) - (p - 1 - i)] for i, actions in enumerate(one_f_one_b(p, m))]


def a_steady_step_too_few(p, m):
    schedule = []
    for i in range(p):
        warmup = min(p - 1 - i, m)
        actions = [Action(i, "F", j) for j in range(warmup)]
        for j in range(m - warmup - 1):
            actions += [Action(i, "F", warmup + j), Action(i, "B", j)]
        schedule.append(actions + [Action(i, "B", j) for j in range(m - warmup - 1, m)])
    return schedule


def one_b_one_f(p, m):
    """Right warmup, but then backward, forward, backward, forward ..."""
    schedule = []
    for i in range(p):
        warmup = min(p - 1 - i, m)
        actions = [Action(i, "F", j) for j in range(warmup)]
        for j in range(m - warmup):
            actions += [Action(i, "B", j), Action(i, "F", warmup + j)]
        schedule.append(actions + [Action(i, "B", j) for j in range(m - warmup, m)])
    return schedule


def newest_first(p, m):
    """A stack instead of a queue."""
    schedule = []
    for i in range(p):
        actions, stack = [], []
        for j in range(m):
            actions.append(Action(i, "F", j))
            stack.append(j)
            if j >= p - 1 - i:
                actions.append(Action(i, "B", stack.pop()))
        schedule.append(actions + [Action(i, "B", j) for j in reversed(stack)])
    return schedule


def gpipe(p, m):
    return pipeline.gpipe(p, m)


def two_forwards_two_backwards(p, m):
    """Right number in flight, but gradients are made to wait in pairs."""
    schedule = []
    for i in range(p):
        F, B = (deque(Action(i, kind, j) for j in range(m)) for kind in "FB")
        actions = [F.popleft() for _ in range(min(m, p - i))]
        while F or B:
            actions += [B.popleft() for _ in range(min(len(B), 2, p - i, len(B) - len(F)))]
            actions += [F.popleft() for _ in range(min(len(F), 2, p - i, p - i - len(B) + len(F)))]
        schedule.append(actions)
    return schedule


WRONG = {
    **slips(one_f_one_b),
    calls_libs: "called what it builds",
    in_halves(one_f_one_b): "halves of a backward",
    warmup_not_clipped: "fewer micro-batches than ranks",
    pops_too_much: "fewer micro-batches than ranks",
    cooldown_counted_by_p: "fewer micro-batches than ranks",
    relay_if_short: "fewer micro-batches than ranks",
    without_cooldown: "no cooldown",
    a_steady_step_too_few: "a micro-batch dropped",
    one_b_one_f: "backward first",
    newest_first: "not in order",
    with_warmup(
        "warmup_the_wrong_way_round", lambda p, m, i: i
    ): "the warmup grows down the pipeline",
    with_warmup(
        "no_warmup_on_the_first_rank", lambda p, m, i: i and p - 1 - i
    ): "the warmup grows down the pipeline",
    gpipe: "that is GPipe",
    with_warmup("one_too_many", lambda p, m, i: p - i): "one too many",
    with_warmup("the_first_ranks_on_all", lambda p, m, i: p - 1): "alike on all ranks",
    with_warmup("one_on_all", lambda p, m, i: 1): "alike on all ranks",
    with_warmup("as_interleaved", lambda p, m, i: 2 * (p - 1 - i)): "too far ahead",
    with_warmup("none", lambda p, m, i: 0): "the relay",
    with_warmup("one_too_few", lambda p, m, i: p - 2 - i): "one too few",
    with_warmup("half_of_it", lambda p, m, i: (p - i) // 2): "a rank left waiting",
    two_forwards_two_backwards: "a rank left waiting",
}


def by_counting(p, m):
    """Whatever is allowed: forward while fewer than p-i are in flight, else backward."""
    schedule = []
    for i in range(p):
        actions, forwards, backwards = [], 0, 0
        while backwards < m:
            if forwards < m and forwards - backwards < p - i:
                actions.append(Action(i, "F", forwards))
                forwards += 1
            else:
                actions.append(Action(i, "B", backwards))
                backwards += 1
        schedule.append(actions)
    return schedule


def by_key(p, m):
    """B of micro-batch j stands right after F of micro-batch j + p-1-i; the last ones at the end,
    in their order."""
    place = lambda action, ahead: (
        action.microbatch + ahead * (action.kind == "B"),
        action.kind == "B",
    )
    return tuple(
        sorted(
            (Action(i, kind, j) for kind in "FB" for j in range(m)),
            key=lambda action: place(action, p - 1 - i),
        )
        for i in range(p)
    )


RIGHT = [one_f_one_b, by_counting, by_key]
