"""The checks of Lab 0's collectives: lib's own functions fulfil their claims, and a check
is one or two launches."""

import pytest
import torch
import torch.distributed as dist
from as_an_answer import as_an_answer
from sweeps import first_quick

from lib import launch
from lib.check.cases import Case, part, total
from lib.check.exercises import EXERCISES
from lib.check.explain import read_sum
from lib.check.framework import evaluate
from lib.collectives import p2p, ring

NAMES = (
    "broadcast", "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "all_to_all",
    "hierarchical_all_reduce",
)  # fmt: skip


@pytest.mark.parametrize("name", first_quick(NAMES))  # `validate` judges all of them
def test_libs_function_fulfils_the_claims_in_at_most_two_launches(name, monkeypatch):
    exercise, launches, capture = EXERCISES[name], [], launch.capture

    def counted(*args, **kwargs):
        launches.append(kwargs["nproc"])
        return capture(*args, **kwargs)

    monkeypatch.setattr(launch, "capture", counted)
    outcome = evaluate(exercise, as_an_answer(exercise.reference))
    assert outcome.passed, "\n".join(outcome.lines)
    assert 1 <= len(launches) <= 2


def test_points_are_those_of_the_lab():
    assert {name: EXERCISES[name].points for name in NAMES if not EXERCISES[name].bonus} == {
        "ring_reduce_scatter": 16, "ring_all_gather": 10, "ring_all_reduce": 10,
    }  # fmt: skip
    bonus = {name: EXERCISES[name].points for name in NAMES if EXERCISES[name].bonus}
    assert bonus == {"broadcast": 12, "all_to_all": 8, "hierarchical_all_reduce": 12}


FOUR = Case((0, 1, 2, 3), 8, torch.float32)  # chunks of 2 elements


def chunk_2(change):
    """The sum of four ranks, right but for elements 4 and 5."""
    whole = total(4, 8, torch.float32)
    whole[4:6] = change(whole[4:6])
    return read_sum(FOUR, 2, whole)[0].splitlines()


def gave(rank):
    return part(rank, 8, torch.float32)[4:6]


@pytest.mark.parametrize(
    ("change", "got", "words"),
    [
        (lambda x: x - gave(1), "405.0", "405.0 is the sum without rank 1's 20.0."),
        (lambda x: x - gave(1) - gave(3), "85.0",
         "85.0 is the sum without rank 1's 20.0 and rank 3's 320.0."),
        (lambda x: x + gave(1), "445.0", "445.0 is the sum with rank 1's 20.0 counted twice."),
        (lambda x: x + gave(1) - gave(0), "440.0",
         "440.0 is the sum without rank 0's 5.0, and with rank 1's 20.0 counted twice."),
        (lambda x: gave(2), "80.0", "80.0 is rank 2's own value, to which nothing was added."),
        (lambda x: gave(0), "5.0", "5.0 is rank 0's value alone."),
        (lambda x: x * 3, "1275.0", "1275.0 = 3 x expected."),
        (lambda x: x * 4, "1700.0", "1700.0 = 4 x expected."),
        (lambda x: x / 4, "106.25", "106.25 = expected / 4, but a sum is not divided."),
        (lambda x: total(4, 8, torch.float32)[:2], "85.0",
         "85.0 belongs to chunk 0 of the finished sum."),
        (lambda x: x * 0, "0.0", "Nothing was ever written to this element."),
    ],
)  # fmt: skip
def test_a_wrong_sum_tells_whose_part_is_missing(change, got, words):
    assert chunk_2(change) == [
        f"4 ranks, size 8, float32: rank 2, element 4: expected 425.0, got {got}",
        words,
    ]


def test_a_remainder_left_out_is_seen_as_one():
    case, whole = Case((0, 1), 7, torch.int64), total(2, 7, torch.int64)
    whole[6] = part(0, 7, torch.int64)[6]
    text, facts = read_sum(case, 0, whole)
    assert text.splitlines()[-1] == "Only the last element is wrong, and 7 is not a multiple of 2."
    assert facts["own"] and facts["tail"]


def test_a_hang_is_told_for_the_ranks_of_its_case_alone():
    """On three ranks rank 2 returns at once. Ranks 3 to 7 have no part in that, and rank 2
    waits for nothing."""

    right = as_an_answer(ring.ring_reduce_scatter)

    def leaves_early(tensor, group=None):
        if dist.get_world_size(group) == 2:
            return right(tensor, group)
        if dist.get_rank(group) == 2:
            return tensor
        return p2p.send_recv(tensor, 1 - dist.get_rank(group), 2, group)

    text = "\n".join(evaluate(EXERCISES["ring_reduce_scatter"], leaves_early).lines)
    assert (
        "3 ranks, size 6, float64: deadlock: rank 2 returned while others still wait for it" in text
    )
    assert "rank 0 waits in recv from rank 2" in text and "rank 1 waits in recv from rank 2" in text
    assert "all_reduce" not in text and not any(f"rank {rank} " in text for rank in range(3, 8))
