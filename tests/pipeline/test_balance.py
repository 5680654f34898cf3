"""The cut has the best pace that any cut has, and among those the fewest layers in the
earliest stages."""

import itertools
import random

import pytest

from lib.pipeline import balance


def cuts(n_layers, p):
    """Every cut of n layers into p stages, as sizes."""
    for bars in itertools.combinations(range(1, n_layers), p - 1):
        yield [j - i for i, j in itertools.pairwise([0, *bars, n_layers])]


def pace(costs, sizes):
    layers = iter(costs)
    return max(sum(itertools.islice(layers, size)) for size in sizes)


def test_equals_trying_every_cut():
    random.seed(0)
    for n_layers in range(1, 9):
        for p in range(1, n_layers + 1):
            for most in (1, 3, 100):
                # quarters add up exactly
                costs = [random.randint(0, most) / 4 for _ in range(n_layers)]
                stages = balance(costs, p)
                assert [layer for stage in stages for layer in stage] == list(range(n_layers))
                best = min(pace(costs, sizes) for sizes in cuts(n_layers, p))
                # earliest shortest
                expected = min(sizes for sizes in cuts(n_layers, p) if pace(costs, sizes) == best)
                assert [len(stage) for stage in stages] == expected, (costs, p)


def test_the_worked_example():
    assert balance([2, 2, 2, 1, 1, 1, 1, 4], 3) == [range(2), range(2, 6), range(6, 8)]


def test_equal_layers_that_do_not_divide_leave_the_first_stages_shorter():
    """They keep most micro-batches, see 1F1B."""
    assert [len(stage) for stage in balance([1] * 10, 4)] == [1, 3, 3, 3]


def test_an_embedding_and_a_head_take_the_place_of_layers():
    assert [len(stage) for stage in balance([3, *[1] * 12, 5], 4)] == [3, 5, 5, 1]


def test_sums_that_round_still_find_a_cut():
    random.seed(1)
    for _ in range(200):
        costs = [random.random() for _ in range(9)]
        sizes = [len(stage) for stage in balance(costs, 4)]
        assert pace(costs, sizes) == pytest.approx(
            min(pace(costs, s) for s in cuts(9, 4)), rel=1e-12
        )


@pytest.mark.parametrize("p", [0, 4])
def test_stages_without_a_layer_are_refused(p):
    with pytest.raises(ValueError, match=f"3 layers into {p} stages: use 1 to 3 stages"):
        balance([1, 1, 1], p)


def test_no_layers_and_one_layer_are_said_as_such():
    with pytest.raises(ValueError, match="there are no layers to split into 1 stages"):
        balance([], 1)
    with pytest.raises(ValueError, match="1 layer into 0 stages: use 1 stage,"):
        balance([42], 0)
