"""Six ways to divide training: counted by hand, and each of them is the best one somewhere."""

import pytest

from lib.cost.strategies import (
    JOB,
    SITUATIONS,
    Cluster,
    Model,
    compared,
    seconds_lost,
    sent_by,
    table_of_bytes,
    waits,
)

WAYS = (
    "data",
    "sharded",
    "tensor",
    "pipeline",
    "tensor inside, data across",
    "tensor inside, pipeline across",
)
# A: 100 bytes; gradients 2,000; state 16,000
MODEL = Model(parameters=1000, layers=8, hidden=10, sequence=5)
SECONDS = 1.0  # of compute on each of 4 GPUs: 6 x 1000 x 12 x 5 / 4 / 90000


def cluster(nodes, per_node, memory=16_000):
    """A message inside a node takes 1 s and 0.01 s per byte, across 2 s and 0.1 s per byte."""
    return Cluster(nodes, per_node, memory, 90_000, (1.0, 0.01), (2.0, 0.1))


def test_two_nodes_of_two_by_hand():
    assert seconds_lost(MODEL, cluster(2, 2), 12) == pytest.approx({
        "data": 6 * (2 + 500 * 0.1),
        "sharded": 12 / 4 * 9 * (2 + 500 * 0.1),  # for each of a GPU's three sequences
        "tensor": 4 * 8 * 12 * 6 * (2 + 25 * 0.1),
        "pipeline": 24 * (2 + 100 * 0.1) + 3 / 12 * SECONDS,
        "tensor inside, data across": 4 * 8 * 6 * 2 * (1 + 50 * 0.01) + 2 * (2 + 500 * 0.1),
        "tensor inside, pipeline across":
            4 * 4 * 12 * 2 * (1 + 50 * 0.01) + 24 * (2 + 100 * 0.1) + 1 / 12 * SECONDS,
    })  # fmt: skip


def test_one_gpu_waits_for_nobody():
    assert seconds_lost(MODEL, cluster(1, 1), 1) == dict.fromkeys(WAYS, 0)


@pytest.mark.parametrize(
    ("nodes", "per_node", "memory", "batch", "left_out"),
    [
        (2, 2, 16_000, 4, ()),
        (2, 2, 15_999, 4, {"data"}),
        (2, 2, 8_000, 4, {"data"}),
        (2, 2, 7_999, 4, {"data", WAYS[4]}),
        (2, 2, 4_000, 4, {"data", WAYS[4]}),
        (2, 2, 3_999, 4, set(WAYS)),
        (2, 2, 16_000, 3, {"data", "sharded"}),  # four copies for three sequences
        (2, 2, 16_000, 1, {"data", "sharded", WAYS[4]}),
        (9, 1, 16_000, 9, {"pipeline", WAYS[5]}),  # nine stages of eight layers
        (8, 1, 16_000, 8, ()),
    ],
)
def test_what_does_not_fit_is_left_out(nodes, per_node, memory, batch, left_out):
    assert set(seconds_lost(MODEL, cluster(nodes, per_node, memory), batch)) == set(WAYS) - set(
        left_out
    )


def test_each_way_is_the_best_in_one_of_the_six_situations():
    best = [
        min(lost, key=lost.get)
        for lost in (seconds_lost(*situation) for situation in SITUATIONS.values())
    ]
    assert sorted(best) == sorted(WAYS)


def test_the_tables_say_what_the_functions_compute():
    table, best = compared(seconds_lost, SITUATIONS)
    assert sorted(best) == sorted(WAYS) and table.endswith(f"best in (f): {best[-1]}")
    backwards = lambda *situation: dict(reversed(seconds_lost(*situation).items()))
    assert compared(backwards, SITUATIONS) == (table, best)  # ties do not depend on the order
    row = next(line for line in table.splitlines() if line.startswith("(b)"))
    assert row.split("sequences")[1].split()[:4] == ["1.65", "s", "-", "0.235"]
    first = waits(seconds_lost, JOB, 134e9).splitlines()[:2]
    assert "6.59 s, which makes 9.7 days" in first[0]
    assert first[1].split() == ["0.73", "s", "with", "pipeline", "10.8", "days"]


def test_bytes_are_counted_once_in_a_step_or_for_each_sequence():
    sent = sent_by(10, 5, 4)  # weights: 2,400 bytes; an activation: 100
    assert [*sent.values()] == [
        (3600, 0), (0, 3 * 1800 / 4), (0, 4 * 150), (3600, 3 * 150), (0, 200), (0, 4 * 150 / 4),
    ]  # fmt: skip
    assert table_of_bytes(12_288, 2048, 8, (8, 512)).count("6,342 MB") == 2
