"""Answers to Lab 2's zb_v: wrong ones, each with the hint that it must get, and right ones."""

from collections import Counter

from as_an_answer import as_an_answer
from lab2.slips import slips

from lib import pipeline
from lib.pipeline import Action, schedules

zb_v = as_an_answer(schedules.zb_v)


def made(
    name,
    fill=lambda p, i: 2 * (p - i) - 1,
    steady="aF aI aW bF bI bW",
    drain=None,
    least=None,
    both="bF aF",
):
    """Right but for one of: the forwards of the fill, a steady step, the drain, the list for few
    micro-batches."""

    def answer(p, m):
        schedule, n = [], (least or (lambda p, m: max(m, 2 * p - 1)))(p, m)
        for i in range(p):
            k = max(1, fill(p, i))
            words = (
                ["aF"] * k
                + both.split() * i
                + ["bF", "bI", "bW"] * (p - i)
                + steady.split() * (n - p)
            )
            words += (
                drain(p, i)
                if drain
                else ["aI", "bI"] * i + ["aI", "aW"] * (p - i) + ["bW"] * i + ["aW"] * i
            )
            schedule.append(as_actions(words, p, m, i))
        return schedule

    answer.__name__ = name
    return answer


def as_actions(words, p, m, i):
    """Micro-batches from 0 on for each word; those from m on left out, and what is left
    over put at the end."""
    stage, done, actions = {"a": i, "b": 2 * p - 1 - i}, Counter(), []
    for word in words:
        actions.append(Action(stage[word[0]], word[1], done[word]))
        done[word] += 1
    for word in ("aF", "bF", "aI", "bI", "aW", "bW"):
        actions += [Action(stage[word[0]], word[1], j) for j in range(done[word], m)]
    return [action for action in actions if action.microbatch < m]


def calls_libs(p, m):
    return pipeline.zb_v(p, m)


def in_a_loop(p, m):
    """Stage p+i on rank i."""
    turned = lambda a, i: a._replace(stage=p + i) if a.stage >= p else a
    return [[turned(a, i) for a in actions] for i, actions in enumerate(zb_v(p, m))]


def as_interleaved(p, m):
    return pipeline.interleaved(p, p * max(1, m // p), 2)


def one_stage(p, m):
    return pipeline.zb_h1(p, m)


def whole_backwards(p, m):
    whole = lambda a: a._replace(kind="B" if a.kind == "I" else a.kind)
    return [[whole(a) for a in actions if a.kind != "W"] for actions in zb_v(p, m)]


def without_w_of_the_drain(p, m):
    return [actions[: len(actions) - 2 * i] for i, actions in enumerate(zb_v(p, m))]


def drops_the_last(p, m):
    return [[action for action in actions if action.microbatch < m - 1] for actions in zb_v(p, m)]


def with_phantoms(p, m):
    """For fewer than 2p-1 micro-batches the list for 2p-1, all of it."""
    return zb_v(p, max(m, 2 * p - 1))


def upside_down(p, m):
    """Rank 0 has the two stages in the middle: the V the other way up."""
    return zb_v(p, m)[::-1]


def all_forwards(p, m):
    return [
        [
            Action(stage, kind, j)
            for stage, kind in ((i, "F"), (2 * p - 1 - i, "F"))
            for j in range(m)
        ]
        + [
            Action(stage, kind, j)
            for stage in (2 * p - 1 - i, i)
            for j in range(m)
            for kind in "IW"
        ]
        for i in range(p)
    ]


def all_weights_at_the_end(p, m):
    return [sorted(actions, key=lambda action: action.kind == "W") for actions in zb_v(p, m)]


def weights_one_later(p, m):
    """Every W delayed by one, so that a micro-batch more is kept."""
    schedule = []
    for actions in zb_v(p, m):
        late, waiting = [], []
        for action in actions:
            if action.kind == "W":
                waiting.append(action)
                if len(waiting) > 1:
                    late.append(waiting.pop(0))
            else:
                late.append(action)
        schedule.append(late + waiting)
    return schedule


def weights_at_once(p, m):
    """Each I followed by its W, in the drain too."""
    lists = [[a for a in actions if a.kind != "W"] for actions in zb_v(p, m)]
    both = lambda a: [a, a._replace(kind="W")] if a.kind == "I" else [a]
    return [[one for a in actions for one in both(a)] for actions in lists]


def one_micro_batch_at_a_time(p, m):
    """The relay, in a V: nothing is wrong but the time."""
    return [
        [Action(stage, kind, j) for j in range(m)
         for stage, kind in ((i, "F"), (2 * p - 1 - i, "F"), (2 * p - 1 - i, "I"), (i, "I"),
             (2 * p - 1 - i, "W"),
                             (i, "W"))]
        for i in range(p)
    ]  # fmt: skip


WRONG = {
    **slips(zb_v),
    calls_libs: "called what it builds",
    with_phantoms: "fewer than 2p-1 micro-batches",
    in_a_loop: "another rank's stage",
    upside_down: "another rank's stage",
    as_interleaved: "a whole backward",
    one_stage: "one stage per rank",
    whole_backwards: "a whole backward",
    without_w_of_the_drain: "W left out",
    drops_the_last: "some left out",
    made("w_before_i", steady="aF aW aI bF bW bI"): "W before its I",
    made("lower_first", steady="bF bI bW aF aI aW", both="aF bF"): "the lower stage first",
    made("fills_alike", lambda p, i: 2 * p - 1): "turns that do not fit",
    weights_one_later: "too much kept",
    all_forwards: "all kept at once",
    all_weights_at_the_end: "all kept at once",
    one_micro_batch_at_a_time: "the fill is too short",
    weights_at_once: "W at once",
    made(
        "upper_first", drain=lambda p, i: ["aI", "aW"] * p + ["bI", "bW"] * i
    ): "the upper gradient first",
    made(
        "w_in_the_drain", drain=lambda p, i: ["aI", "bI", "bW"] * i + ["aI", "aW"] * (p - i)
    ): "W in the way",
}


def from_a_queue(p, m):
    """The drain's W from a queue, the lower stage's first; lists as tuples."""
    schedule = []
    for i, actions in enumerate(zb_v(p, m)):
        last = len(actions) - 2 * min(i, m)
        rest = (
            sorted(actions[last:], key=lambda a: (a.microbatch, -a.stage))
            if m >= 2 * p - 1
            else actions[last:]
        )
        schedule.append((*actions[:last], *rest))
    return schedule


by_words = made("by_words")

RIGHT = [zb_v, by_words, from_a_queue]
