"""Who holds which positions, and the pairs that this gives each rank to compute: exact numbers."""

import pytest
from parallels import pairs_computed

from lib.tensor_parallel.layouts import contiguous, pairs_seen, rectangle, zigzag

SIZES = [(T, cp) for cp in (1, 2, 3, 4, 8) for T in (16, 17, 23, 48)]


@pytest.mark.parametrize("layout", [contiguous, zigzag])
@pytest.mark.parametrize(("T", "cp"), SIZES)
def test_every_position_is_on_one_rank_in_ascending_order(layout, T, cp):
    ranks = layout(T, cp)
    assert (
        len(ranks) == cp
        and all(ranks)
        and all(positions == sorted(positions) for positions in ranks)
    )
    assert sorted(p for positions in ranks for p in positions) == list(range(T))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= (1 if layout is contiguous else 2)


def test_the_layouts_of_the_docstring():
    assert contiguous(8, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]] and zigzag(8, 2) == [
        [0, 1, 6, 7],
        [2, 3, 4, 5],
    ]
    assert contiguous(7, 3) == [[0, 1, 2], [3, 4], [5, 6]] and zigzag(7, 2) == [
        [0, 1, 6],
        [2, 3, 4, 5],
    ]
    assert [sum(steps) for steps in pairs_seen(contiguous(8, 2))] == [10, 26]
    assert [sum(steps) for steps in pairs_seen(zigzag(8, 2))] == [18, 18]


@pytest.mark.parametrize("cp", [1, 2, 3, 4, 8])
def test_work_per_rank_is_the_formula(cp):
    t, T = 6, 6 * cp
    uneven, even = pairs_seen(contiguous(T, cp)), pairs_seen(zigzag(T, cp))
    for r in range(cp):
        # its own block, half of it and the diagonal; then r full blocks, then nothing
        assert uneven[r] == [t * (t + 1) // 2] + [t * t] * r + [0] * (cp - 1 - r)
        assert even[r] == [t * (t + 1) // 2] + [t * t // 2] * (cp - 1)
        assert sum(even[r]) == T * (T + 1) // (2 * cp)
    assert sum(map(sum, uneven)) == sum(map(sum, even)) == T * (T + 1) // 2
    assert [sum(steps) for steps in pairs_computed(contiguous(T, cp))] == [
        (r + 1) * t * t for r in range(cp)
    ]
    assert [2 * sum(steps) for steps in pairs_computed(zigzag(T, cp))] == [(cp + 1) * t * t] * cp


@pytest.mark.parametrize("layout", [contiguous, zigzag])
@pytest.mark.parametrize(("T", "cp"), SIZES)
def test_rectangles_hold_every_pair_that_is_seen_and_are_as_small_as_can_be(layout, T, cp):
    ranks = layout(T, cp)
    for r, queries in enumerate(ranks):
        for step in range(cp):
            keys = ranks[r - step]
            pairs = [
                (i, j)
                for i, query in enumerate(queries)
                for j, key in enumerate(keys)
                if key <= query
            ]
            a, b = rectangle(queries, keys)
            assert (a, b) == (
                (min(i for i, _ in pairs), 1 + max(j for _, j in pairs))
                if pairs
                else (len(queries), 0)
            )
            assert pairs_seen(ranks)[r][step] == len(pairs)
            # no row of a softmax is empty
            assert all((i, 0) in pairs for i in range(a, len(queries)) if b)


@pytest.mark.parametrize(
    ("layout", "T", "cp", "says"),
    [
        (contiguous, 3, 4, "3 tokens over cp=4 ranks: .* use cp between 1 and 3"),
        (contiguous, 3, 0, "cp=0"),
        (zigzag, 7, 4, "7 tokens in 2cp=8 runs: .* use cp up to 3"),
    ],
)
def test_too_few_tokens_are_refused(layout, T, cp, says):
    with pytest.raises(ValueError, match=says):
        layout(T, cp)
