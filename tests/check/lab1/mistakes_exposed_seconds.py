"""Known mistakes of exposed_seconds, each named after its cause."""

import torch
from mistakes import Mistake, edit


def _union(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def _length(intervals):
    return sum(end - start for start, end in intervals)


def _both(some, others):
    return sum(
        max(0.0, min(end, until) - max(start, since))
        for start, end in some
        for since, until in others
    )


def _of_each_message(compute, messages):
    return _length(messages) - _both(messages, _union(compute))


def _hidden_by_each(compute, messages):
    return _length(_union(messages)) - _both(_union(messages), compute)


def _hidden_by_each_at_most(compute, messages):
    return sum(max(0.0, _length([one]) - _both([one], compute)) for one in _union(messages))


def _lengths(compute, messages):
    return max(0.0, _length(_union(messages)) - _length(_union(compute)))


def _after_the_last(compute, messages):
    return max(
        0.0, max((e for _, e in messages), default=0.0) - max((e for _, e in compute), default=0.0)
    )


def _hull(compute, messages):
    whole = (
        [(min(start for start, _ in compute), max(end for _, end in compute))] if compute else []
    )
    return _length(_union(messages)) - _both(_union(messages), whole)


def _share(compute, messages):
    total = _length(_union(messages))
    return (total - _both(_union(messages), _union(compute))) / total if total else 0.0


def _merged_to_the_last_end(compute, messages):
    def union(intervals):
        merged = []
        for start, end in sorted(intervals):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = end
            else:
                merged.append([start, end])
        return merged

    return _length(union(messages)) - _both(union(messages), union(compute))


def _exposed(compute, messages):
    return _length(_union(messages)) - _both(_union(messages), _union(compute))


def _short_gaps_closed(compute, messages):
    return _exposed([(start, end + 1e-3) for start, end in _union(compute)], messages)


def _in_float32(compute, messages):
    short = lambda intervals: torch.tensor(intervals).reshape(-1, 2).tolist()
    return _exposed(short(compute), short(messages))


MISTAKES = (
    Mistake("what is hidden", edit("under_way[1] and not under_way[0]",
        "under_way[1] and under_way[0]")),
    Mistake("what is idle", edit("under_way[1] and not under_way[0]", "not under_way[0]")),
    Mistake("compute alone", edit("under_way[1] and not under_way[0]",
        "under_way[0] and not under_way[1]")),
    Mistake("all messages", edit("under_way[1] and not under_way[0]", "under_way[1]")),
    Mistake("each message by itself", _of_each_message),
    Mistake("hidden by each", _hidden_by_each),
    Mistake("hidden by each", _hidden_by_each_at_most),
    Mistake("lengths alone", _lengths),
    Mistake("what is after the last compute", _after_the_last),
    Mistake("gaps taken for compute", _hull),
    Mistake("a share", _share),
    Mistake("the end of the later one", _merged_to_the_last_end),
    Mistake("one at a time", edit("under_way[what] += by", "under_way[what] = by > 0")),
    Mistake("not sorted", edit("sorted(edges)", "edges")),
    Mistake("begun at 0", edit("((start, 1)", "((max(0.0, start), 1)").then("(end, -1)",
        "(max(0.0, end), -1)")),
    Mistake("rounded", _short_gaps_closed),
    Mistake("rounded", _in_float32),
    Mistake("rounded", edit("((start, 1)", "((round(start, 3), 1)").then("(end, -1)",
        "(round(end, 3), -1)")),
    Mistake("rounded", edit("exposed += time - before",
        "exposed += int((time - before) * 1e6) / 1e6")),
)  # fmt: skip
