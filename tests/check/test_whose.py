"""What a verdict says of a wrong tensor: which elements, on which ranks, and whose part it is."""

import torch

from lib.check import whose
from lib.check.exercise import Problem
from lib.check.tensors import draw

X = [draw(rank, 2, 3, 8) for rank in range(4)]
TOTAL = sum(X)
KEY = "y", 1, ""


def told(gots, wants, parts=X):
    """The sentences where rank r shows gots[r], should show wants[r], and is given parts[r]."""
    records = []
    for got, want, part in zip(gots, wants, parts, strict=True):
        problem = Problem("value", "", {"name": "y", "key": KEY, "values": whose.kept(got, want)})
        wrong = {} if torch.equal(got, want) else {"y": problem}
        record = {"wrong": wrong, "wants": {KEY: want}, "parts": {"x": part}, "names": {"y"}}
        records.append(record)
    first = next(record["wrong"]["y"] for record in records if record["wrong"])
    return whose.told(first, records)


def test_a_sum_without_a_rank():
    text, facts = told([TOTAL - X[2]] * 4, [TOTAL] * 4)
    assert text == "On rank 0 it is the sum without rank 2." and facts["lacks"] == [2]


def test_a_sum_of_one_part_alone():
    text, _ = told(X, [TOTAL] * 4)
    assert text == "On rank 0 it is this rank's own part of x, to which nothing was added."


def test_a_shard_of_a_sum():
    shards = TOTAL.chunk(4, 2)
    text, _ = told([a - b for a, b in zip(shards, X[3].chunk(4, 2), strict=True)], shards)
    assert text == "On rank 0 it is the sum without rank 3."


def test_another_ranks_part():
    shards = TOTAL.chunk(4, 2)
    text, facts = told([shards[0]] * 4, shards)
    assert text == (
        "It is right on rank 0, but wrong on the others.\nRank 1 has what rank 0 should have."
    )
    assert facts == {"right_on": [0], "instead": 0}


def test_parts_in_another_order():
    joined, mixed = torch.cat(X, 1), torch.cat([X[1], X[0], X[2], X[2]], 1)
    text, _ = told([mixed] * 4, [joined] * 4)
    assert text == "The ranks' parts are in the order 1, 0, 2, 2, and nothing comes from rank 3."


def test_where_it_is_wrong():
    changed = TOTAL.clone()
    changed[..., 2:4] += 1
    parts = [torch.zeros(5)] * 4  # the values do not come of these
    text, _ = told([changed] * 4, [TOTAL] * 4, parts)
    assert text == "All wrong elements are in [:, :, 2:4], the second of 4 equal parts."


def test_where_it_is_right():
    changed = TOTAL + 1
    changed[..., 6:] -= 1
    text, _ = told([changed] * 4, [TOTAL] * 4, [torch.zeros(5)] * 4)
    assert text == "The right elements are all in [:, :, 6:8], the fourth of 4 equal parts."


def test_nothing_is_said_of_what_is_wrong_everywhere():
    assert told([TOTAL.sin()] * 4, [TOTAL] * 4) == ("", {})
    assert told([torch.full_like(TOTAL, torch.nan)] * 4, [TOTAL] * 4) == ("", {})


def test_a_rank_that_shows_nothing_is_not_right():
    wrong = Problem("value", "", {"name": "y", "key": KEY, "values": whose.kept(X[0], TOTAL)})
    records = [{"wrong": {"y": wrong}, "names": {"y"}}, *[{"wrong": {}, "names": set()}] * 3]
    text, facts = whose.told(wrong, records)
    assert "right on" not in text and "right_on" not in facts
