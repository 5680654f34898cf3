"""Paced halves of a layer, and paced attention: their formulas, and times that follow them."""

import numpy as np
import pytest

from lib.measuring import half_layer, paced_attention


def test_the_link_makes_sending_k_times_as_long_as_computing():
    # at tp = 2 each rank sends 2 (tp-1)/tp times the tensor in each of two all-reduces
    seconds = 2 * 2 * 1 / 2 * 4 * half_layer.ELEMENTS / half_layer.bytes_per_second(0.5)
    assert seconds / (half_layer.COMPUTE / 2) == pytest.approx(0.5)


def test_medians_stand_next_to_the_formula():
    found = {"one rank": np.array([0.2, 0.3, 0.9]), ("a", 2): np.ones(3), ("a", 4): np.ones(3)}
    measured, formula = half_layer.against_formula(found, {"a": 1.0})
    assert measured == {"a": ((1, 2, 4), [0.3, 1.0, 1.0])}
    assert formula["a"][1] == pytest.approx([half_layer.COMPUTE] * 3)


def test_the_ring_hides_its_messages_where_they_are_shorter():
    alone = paced_attention.CP * paced_attention.BLOCK
    assert paced_attention.predicted("ring", 8, 0.5) == pytest.approx(alone)
    assert paced_attention.predicted("ring", 8, 3.0) > alone
    assert paced_attention.predicted("ring", 1, 3.0) == pytest.approx(alone)
    for method in ("gathered", "Ulysses"):
        assert paced_attention.predicted(method, 1, 0.5) > alone


@pytest.mark.slow
def test_every_side_is_timed_in_every_round():
    sides = {"one rank": (1e12, 1, False), "two": (1e6, 2, False), "overlap": (1e6, 2, True)}
    found = half_layer.half_layers(sides, rounds=2)
    assert {side: len(seconds) for side, seconds in found.items()} == dict.fromkeys(sides, 2)
    assert np.median(found["overlap"]) < np.median(found["two"])
    cases = [(method, 1) for method in paced_attention.METHODS]
    times = paced_attention.forwards(cases, 1.0, rounds=2)
    assert all((t >= paced_attention.CP * paced_attention.BLOCK).all() for t in times.values())
