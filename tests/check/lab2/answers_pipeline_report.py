"""Answers to Lab 2's pipeline_report, beside its MISTAKES: wrong ones, each with its hint, and
right ones."""

from as_an_answer import as_an_answer

from lib.pipeline import balance, interleaved, one_f_one_b, simulate
from lib.pipeline.report import pipeline_report as libs_pipeline_report

pipeline_report = as_an_answer(libs_pipeline_report)


# wrong


def with_others(name, change):
    """The right entries, changed: change(report, costs, p, v, m, stage_gb, rank_mfu)."""
    answer = lambda *case: change(pipeline_report(*case), *case)
    answer.__name__ = name
    return answer


def simulated(schedule_of, stages_of=balance):
    """As it should be, with another schedule or other stages."""

    def answer(costs, p, v, m, stage_gb, rank_mfu):
        forward = [sum(costs[i] for i in stage) for stage in stages_of(costs, p * v)]
        times = {"F": forward, "B": [2 * time for time in forward]}
        step = simulate(schedule_of(p, m, v), times)
        return {
            "pace": 3 * max(sum(forward[rank::p]) for rank in range(p)),
            "bubble": step.bubble,
            "memory": stage_gb * max(step.peak_kept),
            "MFU": rank_mfu * (1 - step.bubble),
        }

    return answer


def all_forwards_first(p, m, v):
    """GPipe's order, with v stages on each rank."""
    schedule = interleaved(p, m, v)
    return [
        [a for a in actions if a.kind == "F"] + [a for a in actions if a.kind == "B"]
        for actions in schedule
    ]


def in_equal_numbers(costs, n):
    """As many items in each stage."""
    size, more = divmod(len(costs), n)
    ends = [0]
    for i in range(n):
        ends.append(ends[-1] + size + (i < more))
    return [range(ends[i], ends[i + 1]) for i in range(n)]


def equal_stages(costs, p, v, m, stage_gb, rank_mfu):
    """Every stage takes the mean."""
    report = pipeline_report(costs, p, v, m, stage_gb, rank_mfu)
    bubble = simulate(interleaved(p, m, v)).bubble
    return report | {"bubble": bubble, "MFU": rank_mfu * (1 - bubble)}


def as_p_stages(costs, p, v, m, stage_gb, rank_mfu):
    """It cuts the row into p stages, and leaves out v."""
    forward = [sum(costs[i] for i in stage) for stage in balance(costs, p)]
    step = simulate(one_f_one_b(p, m), {"F": forward, "B": [2 * time for time in forward]})
    return {
        "pace": 3 * max(forward),
        "bubble": step.bubble,
        "memory": stage_gb * max(step.peak_kept),
        "MFU": rank_mfu * (1 - step.bubble),
    }


def right_once(*case, calls=[]):  # noqa: B006
    calls.append(repr(case))
    report = pipeline_report(*case)
    return report | {"pace": 0.0} if calls.count(calls[-1]) > 1 else report


LATEST = {}


def one_dict_for_all_calls(*case):
    LATEST.update(pipeline_report(*case))
    return LATEST


def per_rank(report, costs, p, v, m, stage_gb, rank_mfu):
    kept = simulate(interleaved(p, m, v)).peak_kept
    return report | {"memory": [stage_gb * n for n in kept]}


def in_percent(report, *_):
    return report | {"bubble": 100 * report["bubble"]}


def in_bytes(report, *_):
    return report | {"memory": 1e9 * report["memory"]}


def rounded(report, *_):
    return {key: round(value, 2) for key, value in report.items()}


def mfu_in_percent(report, *_):
    return report | {"MFU": 100 * report["MFU"]}


def not_written(costs, p, v, m, stage_gb, rank_mfu):
    raise NotImplementedError


WRONG = {
    libs_pipeline_report: "called what it builds",
    with_others("nothing", lambda *_: None): "nothing returned",
    with_others("a_tuple", lambda report, *_: (*report.values(),)): "not a dict",
    with_others("lower_case", lambda report, *_: {key.lower(): x for key, x in report.items()}):
        "not a dict",
    with_others("one_key_short", lambda report, *_: {k: report[k] for k in [*report][:3]}):
        "not a dict",
    with_others("per_rank", per_rank): "one for each rank",
    with_others("as_text", lambda report, *_: report | {"MFU": f"{report['MFU']:.0%}"}):
        "no number",
    with_others("rounded", rounded): "rounded",
    with_others("uses_up_the_costs", lambda report, costs, *_: costs.clear() or report):
        "arguments changed",
    right_once: "used again by a later call",
    one_dict_for_all_calls: "used again by a later call",
    as_p_stages: "another pace",
    simulated(interleaved, in_equal_numbers): "another pace",
    equal_stages: "another bubble",
    with_others("in_percent", in_percent): "another bubble",
    simulated(all_forwards_first): "another bubble",
    with_others("in_bytes", in_bytes): "another memory",
    with_others("mfu_in_percent", mfu_in_percent): "another MFU",
    not_written: "not written",
}  # fmt: skip


# right


def rank_by_rank(costs, p, v, m, stage_gb, rank_mfu):
    """Ranks add up their own stages, and the bubble is their busy time over the makespan."""
    stages = balance(costs, p * v)
    forward, busy = [0.0] * (p * v), [0.0] * p
    for s, stage in enumerate(stages):
        for item in stage:
            forward[s] += costs[item]
        busy[s % p] += forward[s]
    step = simulate(interleaved(p, m, v), {"F": forward, "B": [time + time for time in forward]})
    used = sum(3 * m * time for time in busy) / (p * step.makespan)
    return {"MFU": rank_mfu * used, "bubble": 1 - used, "pace": 3 * max(busy),
            "memory": max(stage_gb * n for n in step.peak_kept)}  # fmt: skip


def with_halves(costs, p, v, m, stage_gb, rank_mfu):
    """By actions: each one's time is looked up, and what is in flight is counted by hand."""
    forward = [sum(costs[i] for i in stage) for stage in balance(costs, p * v)]
    schedule = interleaved(p, m, v)
    step = simulate(schedule, {"F": [*forward], "B": [2.0 * f for f in forward]})
    most = 0
    for actions in schedule:
        live = 0
        for action in actions:
            live += 1 if action.kind == "F" else -1
            most = max(most, live)
    paces = {}
    for stage, time in enumerate(forward):
        paces.setdefault(stage % p, []).append(time)
    return {
        "pace": 3 * max(map(sum, paces.values())),
        "bubble": step.bubble,
        "memory": most * stage_gb,
        "MFU": rank_mfu - rank_mfu * step.bubble,
    }


RIGHT = [pipeline_report, rank_by_rank, with_halves]
