"""Answers to Lab 2's zb_h1: wrong ones, each with the hint that it must get, and right ones."""

from as_an_answer import as_an_answer
from lab2.slips import slips

from lib import pipeline
from lib.pipeline import Action, schedules

zb_h1 = as_an_answer(schedules.zb_h1)


def made(name, delay_of=lambda p, m, i: i, warmup_of=lambda p, m, i: p - 1 - i, step="FIW"):
    """Right but for one of: how many W rank i puts off, its warmup, the order in a steady step."""

    def answer(p, m):
        schedule = []
        for i in range(p):
            warmup, delay = min(warmup_of(p, m, i), m), max(0, delay_of(p, m, i))
            actions = [Action(i, "F", j) for j in range(warmup)]
            for j in range(m):
                now = {"F": warmup + j, "I": j, "W": j - delay}
                actions += [Action(i, kind, now[kind]) for kind in step if 0 <= now[kind] < m]
            schedule.append(actions + [Action(i, "W", j) for j in range(max(0, m - delay), m)])
        return schedule

    answer.__name__ = name
    return answer


def calls_libs(p, m):
    return pipeline.zb_h1(p, m)


def one_f_one_b(p, m):
    return pipeline.one_f_one_b(p, m)


def delay_not_clipped(p, m):
    """Ends with W of micro-batches m-i ... m-1, also where m-i is negative."""
    schedule = []
    for i in range(p):
        actions = [a for a in zb_h1(p, m)[i] if a.kind != "W" or a.microbatch < m - i]
        schedule.append(actions + [Action(i, "W", j) for j in range(m - i, m)])
    return schedule


def newest_w_first(p, m):
    """The W that are left come from a stack."""
    lists = zb_h1(p, m)
    return [
        actions[: len(actions) - min(i, m)] + actions[len(actions) - min(i, m) :][::-1]
        for i, actions in enumerate(lists)
    ]


def leaves_w_undone(p, m):
    return [actions[: len(actions) - min(i, m)] for i, actions in enumerate(zb_h1(p, m))]


def no_w_at_all(p, m):
    return [[action for action in actions if action.kind != "W"] for actions in zb_h1(p, m)]


def drops_the_last(p, m):
    return [[action for action in actions if action.microbatch < m - 1] for actions in zb_h1(p, m)]


WRONG = {
    **slips(zb_h1),
    calls_libs: "called what it builds",
    delay_not_clipped: "fewer micro-batches than ranks",
    one_f_one_b: "a whole backward",
    leaves_w_undone: "W left out",
    no_w_at_all: "W left out",
    drops_the_last: "a micro-batch dropped",
    made("w_first", lambda p, m, i: 0, step="FWI"): "W before its I",
    made("i_first", step="IFW"): "backward first",
    made("warmup_grows", warmup_of=lambda p, m, i: i): "not 1F1B's warmup",
    made("as_gpipe", warmup_of=lambda p, m, i: m): "all kept at once",
    made("all_at_the_end", lambda p, m, i: m): "all kept at once",
    made("delayed_by_one_more", lambda p, m, i: i + 1): "too much kept",
    made("delayed_the_wrong_way_round", lambda p, m, i: p - 1 - i): "too much kept",
    made("delayed_alike", lambda p, m, i: p - 1): "too much kept",
    made("a_longer_warmup", warmup_of=lambda p, m, i: 2 * (p - 1 - i)): "too much kept",
    newest_w_first: "not in order",
    made("at_once", lambda p, m, i: 0): "W at once",
    made("delayed_by_one_less", lambda p, m, i: i - 1): "W in the way",
}

# The W before the next F in place of after the next I: less is kept for a while, and nobody waits
# longer.
with_another_step = made("with_another_step", warmup_of=lambda p, m, i: p - i, step="IWF")


def of_1f1b(p, m):
    """Takes 1F1B's lists and splits each B; a queue holds the W that are delayed."""
    schedule = []
    for i, whole in enumerate(pipeline.one_f_one_b(p, m)):
        actions, waiting = [], []
        for stage, kind, j in whole:
            actions.append(Action(stage, "F" if kind == "F" else "I", j))
            if kind == "B":
                waiting.append(Action(stage, "W", j))
                if len(waiting) > i:
                    actions.append(waiting.pop(0))
        schedule.append((*actions, *waiting))
    return schedule


RIGHT = [zb_h1, with_another_step, of_1f1b]
