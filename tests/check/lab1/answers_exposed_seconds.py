"""Answers to Lab 1's exposed_seconds: wrong ones, each with the hint that it must
get, and right ones."""

import itertools

import numpy as np


def union(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def merged_lists(compute, messages):
    """Right: both unions, and what they share."""
    compute, messages = union(compute), union(messages)
    shared = sum(max(0.0, min(b, d) - max(a, c)) for a, b in messages for c, d in compute)
    return sum(end - start for start, end in messages) - shared


def both_minus_compute(compute, messages):
    """Right: the union of all, without that of compute."""
    length = lambda intervals: sum(end - start for start, end in union(intervals))
    return length([*compute, *messages]) - length(compute)


def pieces(compute, messages):
    """Right: numpy, piece by piece between two ends; a numpy number."""
    ends = np.unique([end for interval in (*compute, *messages) for end in interval])
    middle = (ends[1:] + ends[:-1]) / 2
    inside = lambda intervals: np.any(
        [(a < middle) & (middle < b) for a, b in intervals] or [middle < middle], axis=0
    )
    return np.sum((ends[1:] - ends[:-1])[inside(messages) & ~inside(compute)])


def cut_away(compute, messages):
    """Right: from the messages' union each compute is cut in turn."""
    left = union(messages)
    for start, end in compute:
        left = [
            piece
            for a, b in left
            for piece in ((a, min(b, start)), (max(a, end), b))
            if piece[0] < piece[1]
        ]
    return sum(end - start for start, end in left)


def ends_with_the_newest(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return merged


def shared(some, others):
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in some for c, d in others)


def a_message_ends_with_the_newest(compute, messages):
    messages = ends_with_the_newest(messages)
    return sum(end - start for start, end in messages) - shared(messages, union(compute))


def what_neighbours_share_counts_once(compute, messages):
    """Of three intervals of compute at once, two pairs are neighbours."""
    compute, messages = sorted(compute), union(messages)
    pairs = itertools.pairwise(compute)
    twice = [(max(a, c), min(b, d)) for (a, b), (c, d) in pairs if max(a, c) < min(b, d)]
    length = sum(end - start for start, end in messages)
    return length - shared(messages, compute) + shared(messages, twice)


def returns_nothing(compute, messages):
    print(merged_lists(compute, messages))


def returns_the_pieces(compute, messages):
    return [(a, b) for a, b in union(messages)]


def needs_compute(compute, messages):
    first = compute[0][0] if messages else 0.0
    return merged_lists(compute, messages) + 0 * first


def sorts_the_callers(compute, messages):
    compute.sort()
    messages.sort()
    return merged_lists(compute, messages)


def subtracts_all_compute(compute, messages):
    return sum(end - start for start, end in messages) - sum(end - start for start, end in compute)


def adds_compute(compute, messages):
    length = lambda intervals: sum(end - start for start, end in union(intervals))
    return length([*compute, *messages])


def in_milliseconds(compute, messages):
    return 1e3 * merged_lists(compute, messages)


def in_whole_seconds(compute, messages):
    return round(merged_lists(compute, messages))


def neighbours_as_they_come(compute, messages):
    """Merges with the last one only, in the order given."""
    merged = []
    for start, end in compute:
        if merged and start <= merged[-1][1]:
            merged[-1] = min(start, merged[-1][0]), max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged_lists(merged, messages)


def calls_lib(compute, messages):
    from lib.cost import exposed

    return exposed.exposed_seconds(compute, messages)


def not_written(compute, messages):
    raise NotImplementedError


RIGHT = [merged_lists, both_minus_compute, pieces, cut_away]
WRONG = {
    returns_nothing: "nothing returned",
    returns_the_pieces: "not a number",
    needs_compute: "nothing to look at",
    sorts_the_callers: "arguments changed",
    subtracts_all_compute: "less than nothing",
    adds_compute: "more than all messages",
    in_milliseconds: "more than all messages",
    neighbours_as_they_come: "not sorted",
    in_whole_seconds: "not what nothing hides",
    a_message_ends_with_the_newest: "messages at once",
    what_neighbours_share_counts_once: "compute at once",
    calls_lib: "called what it builds",
    not_written: "not written",
}
