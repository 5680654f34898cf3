"""Answers to Lab 2's puzzle: wrong ones, each with the hint that it must get, and right ones."""

from as_an_answer import as_an_answer
from lab2.slips import flat, slips

from lib import pipeline
from lib.pipeline import Action, shortest

WRITTEN = {  # of level 1, 2, 3
    2: ["0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1I0 1W0 1F1 1I1 1F2 1W1 1I2 1F3 1I3 1W2 1W3"],
    3: ["0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4",
        "1F0 1F1 1F2 1I0 1W0 1I1 1F3 1W1 1F4 1I2 1I3 1W2 1I4 1W3 1W4",
        "2F0 2I0 2F1 2I1 2W0 2F2 2I2 2W1 2F3 2I3 2F4 2I4 2W2 2W3 2W4"],
    4: ["0F0 0F1 0F2 0F3 0F4 0I0 0W0 0F5 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5",
        "1F0 1F1 1F2 1F3 1I0 1W0 1I1 1F4 1W1 1F5 1I2 1I3 1W2 1W3 1I4 1I5 1W4 1W5",
        "2F0 2F1 2I0 2F2 2I1 2F3 2W0 2W1 2I2 2F4 2I3 2F5 2I4 2I5 2W2 2W3 2W4 2W5",
        "3F0 3I0 3F1 3I1 3W0 3F2 3I2 3W1 3F3 3I3 3W2 3F4 3I4 3F5 3I5 3W3 3W4 3W5"],
}  # fmt: skip


def written(p, m):
    return [[pipeline.parse(text) for text in line.split()] for line in WRITTEN[p]]


def of_a_puzzle(answer):
    """answer(p, m) as answer(puzzle)."""
    of = lambda level: answer(level.p, level.m)
    of.__name__ = answer.__name__
    return of


def split_1f1b(level):
    """I and W, one behind the other, in place of B: half the way."""
    split = lambda a: [a._replace(kind=kind) for kind in ("IW" if a.kind == "B" else "F")]
    return [flat(map(split, actions)) for actions in pipeline.one_f_one_b(level.p, level.m)]


only_written = of_a_puzzle(written)
search = as_an_answer(shortest.fastest)


def exchanged(name, p, rank, place):
    """All written, but two neighbours in one list of one level the other way round."""

    def answer(level):
        lists = only_written(level)
        if level.p == p:
            lists[rank][place : place + 2] = lists[rank][place : place + 2][::-1]
        return lists

    answer.__name__ = name
    return answer


def calls_libs(level):
    return shortest.fastest(level)


def relay(level):
    """A micro-batch at a time."""
    return [[Action(i, kind, j) for j in range(level.m) for kind in "FIW"] for i in range(level.p)]


def weights_last_but_for_the_cap(level):
    """1F1B's order of F and I, every W as late as the cap lets it."""
    schedule = []
    for i, actions in enumerate(pipeline.one_f_one_b(level.p, level.m)):
        done, late, holds = [], [], 0
        for action in actions:
            if action.kind == "F":
                if holds == level.cap[i]:
                    done.append(late.pop(0))
                    holds -= 1
                done.append(action)
                holds += 1
            else:
                done.append(action._replace(kind="I"))
                late.append(action._replace(kind="W"))
        schedule.append(done + late)
    return schedule


def ahead_with_w_at_once(level):
    """As far ahead as the cap goes, then I, W, F in turn."""
    schedule = []
    for i, cap in enumerate(level.cap):
        forwards = [Action(i, "F", j) for j in range(level.m)]
        turns = [
            [Action(i, "I", j), Action(i, "W", j), *forwards[j + cap : j + cap + 1]]
            for j in range(level.m)
        ]
        schedule.append(forwards[:cap] + flat(turns))
    return schedule


def by_rules(level):
    """What is ready, I before F before W, F as far ahead as the cap goes: it does
    for level 1 alone."""
    schedule, end, free = [[] for _ in level.cap], {}, [0] * level.p

    def begins(action, now):
        i, kind, j = action
        needs = [
            need._replace(kind=kind) if need.stage != i else need
            for need in pipeline.dependencies_of(action, level.p)
        ]
        needs += [Action(i, "W", j - level.cap[i])] * (kind == "F" and j >= level.cap[i])
        return all(
            end.get(need, now + 1) + level.message * (need.stage != i) <= now for need in needs
        )

    for now in range(level.of_1f1b):
        for i, actions in enumerate(schedule):
            if free[i] <= now:
                following = [
                    Action(i, kind, sum(a.kind == kind for a in actions)) for kind in "IFW"
                ]
                ready = [
                    action
                    for action in following
                    if action.microbatch < level.m and begins(action, now)
                ]
                for action in ready[:1]:
                    actions.append(action)
                    end[action] = free[i] = now + level.times[action.kind][i]
    return schedule


def rank_0_waits_for_w(level):
    """Rank 0 finishes a micro-batch before the next; rank 1 wants all of them first."""
    return [
        [Action(0, kind, j) for j in range(level.m) for kind in "FIW"],
        *[
            [Action(i, kind, j) for kind in "FIW" for j in range(level.m)]
            for i in range(1, level.p)
        ],
    ]


def no_w(level):
    return [[a for a in actions if a.kind != "W"] for actions in only_written(level)]


def drops_the_last(level):
    return [[a for a in actions if a.microbatch < level.m - 1] for actions in only_written(level)]


def whole_backwards(level):
    return pipeline.one_f_one_b(level.p, level.m)


def zb_h1(level):
    """Right for the caps of the first two levels."""
    return pipeline.zb_h1(level.p, level.m)


def forgets_the_cap(level):
    """The shortest where each rank may keep everything."""
    return search(level._replace(cap=(level.m,) * level.p, best=None))


def makes_it_easier(level):
    level.times["W"] = (1,) * level.p
    return only_written(level)


WRONG = {
    **{of_a_puzzle(answer): hint for answer,
    hint in slips(written).items() if hint != "right for several ranks only"},
    calls_libs: "called what it builds",
    makes_it_easier: "arguments changed",
    whole_backwards: "a whole backward",
    no_w: "W left out",
    drops_the_last: "some left out",
    rank_0_waits_for_w: "a circle",
    zb_h1: "over the cap",
    forgets_the_cap: "over the cap",
    relay: "not far enough ahead",
    exchanged("not_ahead_on_level_3", 4, 0, 7): "not far enough ahead",
    split_1f1b: "W at once",
    ahead_with_w_at_once: "W at once",
    weights_last_but_for_the_cap: "a wait to fill",
    exchanged("a_w_too_late", 2, 0, 7): "a wait to fill",
    by_rules: "no single move",
    exchanged("the_second_first", 3, 1, 0): "no single move",
    exchanged("an_f_for_an_i", 3, 1, 8): "no single move",
}  # fmt: skip

RIGHT = [only_written, search]
