"""Answers to Lab 2's interleaved: wrong ones, each with the hint that it must get,
and right ones."""

from as_an_answer import as_an_answer
from lab2.slips import in_halves, slips

from lib import pipeline
from lib.pipeline import Action

interleaved = as_an_answer(pipeline.interleaved)


def refuse(p, m, v):
    if v > 1 and m % p:
        raise ValueError(f"{p} ranks do not divide {m} micro-batches")


def rounds(p, m):
    return [range(first, min(first + p, m)) for first in range(0, m, p)]


def by_rounds(kind, p, m, stages):
    return [
        Action(stage, kind, j) for together in rounds(p, m) for stage in stages for j in together
    ]


def by_stages(kind, p, m, stages):
    return [Action(stage, kind, j) for stage in stages for j in range(m)]


def by_microbatches(kind, p, m, stages):
    return [Action(stage, kind, j) for j in range(m) for stage in stages]


def megatron(p, m, v, i):
    return (v - 1) * p + 2 * (p - 1 - i) if v > 1 else p - 1 - i


def made(
    name, order=by_rounds, warmup_of=megatron, back=True, refusing=refuse, backward_order=None
):
    """Right but for one of: the order of a rank's forwards and backwards, the warmup, the stages'
    order backward."""

    def answer(p, m, v):
        refusing(p, m, v)
        schedule = []
        for i in range(p):
            stages = range(i, v * p, p)
            F = order("F", p, m, stages)
            B = (backward_order or order)("B", p, m, stages[::-1] if back else stages)
            warmup = max(0, min(warmup_of(p, m, v, i), v * m))
            pairs = [action for pair in zip(F[warmup:], B, strict=False) for action in pair]
            schedule.append(F[:warmup] + pairs + B[v * m - warmup :])
        return schedule

    answer.__name__ = name
    return answer


def calls_libs(p, m, v):
    return pipeline.interleaved(p, m, v)


def stages_side_by_side(p, m, v):
    """Rank i has stages iv ... iv+v-1."""
    home = {s: s // v + s % v * p for s in range(v * p)}
    stage_of = {b: a for a, b in home.items()}
    return [
        [a._replace(stage=stage_of[a.stage]) for a in actions] for actions in interleaved(p, m, v)
    ]


def v_ignored(p, m, v):
    refuse(p, m, v)
    return pipeline.one_f_one_b(p, m)


def drops_the_last_round(p, m, v):
    refuse(p, m, v)
    return interleaved(p, max(p, m - p), v)


def drops_the_last_stage(p, m, v):
    return interleaved(p, m, max(1, v - 1))


def one_f_one_b_per_chunk(p, m, v):
    refuse(p, m, v)
    chunks = [
        [
            [a._replace(stage=a.stage + chunk * p) for a in actions]
            for actions in pipeline.one_f_one_b(p, m)
        ]
        for chunk in range(v)
    ]
    return [[action for chunk in chunks for action in chunk[i]] for i in range(p)]


def relay_round_the_ranks(p, m, v):
    """One micro-batch through all stages and back, then the next."""
    refuse(p, m, v)
    return [
        [
            Action(s, kind, j)
            for j in range(m)
            for kind in "FB"
            for s in range(i, v * p, p)[:: 1 if kind == "F" else -1]
        ]
        for i in range(p)
    ]


def rounds_turned_on_odd_ranks(p, m, v):
    """In each round the micro-batches from last to first, on every second rank;
    1F1B as it should be."""
    turn = lambda j: j // p * p + p - 1 - j % p
    return [
        [a._replace(microbatch=turn(a.microbatch)) if i % 2 and v > 1 else a for a in actions]
        for i, actions in enumerate(interleaved(p, m, v))
    ]


def refuses_what_divides(p, m, v):
    if m % p == 0:
        raise ValueError(f"m = {m} is a multiple of p = {p}")
    return interleaved(p, m, v)


def rounds_up(p, m, v):
    """A last round of micro-batches that do not exist."""
    return interleaved(p, -(-m // p) * p if v > 1 else m, v)


def asserts(p, m, v):
    assert v == 1 or m % p == 0, f"p = {p} must divide m = {m}"
    return interleaved(p, m, v)


def warmup_not_clipped(p, m, v):
    """A slice begins at a negative place where the warmup is longer than the list."""
    refuse(p, m, v)
    schedule = []
    for i in range(p):
        stages, warmup = range(i, v * p, p), megatron(p, m, v, i)
        F, B = by_rounds("F", p, m, stages), by_rounds("B", p, m, stages[::-1])
        pairs = [action for pair in zip(F[warmup:], B, strict=False) for action in pair]
        schedule.append(F[:warmup] + pairs + B[v * m - warmup :])
    return schedule


def groups_of_two(p, m, v):
    """Right where p is 2."""
    order = lambda kind, p, m, stages: by_rounds(kind, 2 if v > 1 else p, m, stages)
    return made("", order)(p, m, v)


def refuses_for_every_v(p, m, v):
    if m % p:
        raise ValueError(f"p = {p} must divide m = {m}")
    return interleaved(p, m, v)


def cuts_short_where_v_is_1(p, m, v):
    """Whole rounds alone: the micro-batches of the last one are never run."""
    return interleaved(p, max(p, m // p * p) if v == 1 else m, v)


def without_cooldown(p, m, v):
    """Each list ends with the backward that follows the last forward."""
    last = lambda actions: max(k for k, action in enumerate(actions) if action.kind == "F")
    return [actions[: last(actions) + 2] for actions in interleaved(p, m, v)]


WRONG = {
    **slips(interleaved),
    without_cooldown: "no cooldown",
    calls_libs: "called what it builds",
    refuses_what_divides: "refuses what divides",
    stages_side_by_side: "another rank's stage",
    in_halves(interleaved): "halves of a backward",
    v_ignored: "one stage per rank",
    drops_the_last_stage: "one stage per rank",
    drops_the_last_round: "some left out",
    made("all_m_through_a_stage", by_stages): "all micro-batches through one stage",
    made("warmup_of_1f1b", warmup_of=lambda p, m, v, i: p - 1 - i): "warmup too short",
    made(
        "warmup_of_v_times_1f1b", warmup_of=lambda p, m, v, i: v * (p - 1 - i)
    ): "warmup too short",
    made(
        "warmup_one_too_few", warmup_of=lambda p, m, v, i: megatron(p, m, v, i) - 1
    ): "warmup too short",
    one_f_one_b_per_chunk: "one chunk after another",
    made("backward_from_the_first", back=False): "backward from the first",
    made("one_by_one", by_microbatches): "one micro-batch at a time",
    made(
        "warmup_grows", warmup_of=lambda p, m, v, i: (v - 1) * p + 2 * i
    ): "the warmup grows down the pipeline",
    relay_round_the_ranks: "orders that do not fit",
    rounds_turned_on_odd_ranks: "orders that do not fit",
    made("all_forwards_first", warmup_of=lambda p, m, v, i: v * m): "all forwards first",
    made("all_forwards_first_by_stage", by_stages, lambda p, m, v, i: v * m): "all forwards first",
    made(
        "warmup_one_too_many", warmup_of=lambda p, m, v, i: megatron(p, m, v, i) + 1
    ): "warmup too long",
    made("warmup_alike", warmup_of=lambda p, m, v, i: megatron(p, m, v, 0)): "warmup too long",
    made("does_not_refuse", refusing=lambda p, m, v: None): "no error",
    rounds_up: "no error",
    asserts: "not a ValueError",
    warmup_not_clipped: "longer than the list",
    groups_of_two: "groups of another size",
    refuses_for_every_v: "whole rounds where v is 1",
    cuts_short_where_v_is_1: "whole rounds where v is 1",
    made(
        "twice_the_warmup_where_v_is_1",
        warmup_of=lambda p, m, v, i: (v - 1) * p + 2 * (p - 1 - i),
    ): "1F1B where v is 1",
}


def as_megatron_does(p, m, v):
    """By the number of the step alone: which stage, which micro-batch."""
    refuse(p, m, v)

    def at(kind, i, step):
        group, inside = divmod(step, p * v)
        chunk = inside // p if kind == "F" else v - 1 - inside // p
        return Action(chunk * p + i, kind, group * p + inside % p)

    schedule = []
    for i in range(p):
        warmup = min(v * m, megatron(p, m, v, i))
        actions = [at("F", i, step) for step in range(warmup)]
        for step in range(v * m - warmup):
            actions += [at("F", i, warmup + step), at("B", i, step)]
        schedule.append(actions + [at("B", i, step) for step in range(v * m - warmup, v * m)])
    return schedule


def refuses_without_numbers(p, m, v):
    if v > 1 and m % p:
        raise ValueError("p must divide m")
    return interleaved(p, m, v)


# One forward ahead for each rank behind, as in 1F1B: the same bubble while messages take no time,
# and less is kept.
shorter_warmup = made("shorter_warmup", warmup_of=lambda p, m, v, i: (v - 1) * p + p - 1 - i)

RIGHT = [interleaved, as_megatron_does, shorter_warmup, refuses_without_numbers]
