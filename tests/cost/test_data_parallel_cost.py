"""Step times worked out by hand; the closed formula is what the buckets, one after the
other, come to."""

import pytest

from lib.collectives.cost import COST
from lib.cost.data_parallel import (
    break_even_rows,
    bucket_times,
    bucketed_step,
    overlapped_step,
    ring_time,
    seconds_per_token,
    strong_scaling,
    weak_scaling,
)

# 4 ranks, 8 rows each, 400 bytes in 4 buckets. Forward 8 s, backward 16 s.
# A bucket: 2 * 3 rounds of 25 bytes, 6 (0.1 + 25 * 0.02) = 3.6 s; all four 14.4 s.
N, ROWS, N_BYTES, COMPUTE, LINK, BUCKETS = 4, 8, 400, (1.0, 2.0), (0.1, 0.02), 4
COSTS = (N_BYTES, COMPUTE, LINK, BUCKETS)


def test_a_step_by_hand():
    after = bucketed_step(ROWS, N, *COSTS)
    assert after == pytest.approx((8, 16, 14.4, 38.4))
    assert after.exposed == pytest.approx(14.4) and after.hidden == pytest.approx(0)
    assert after.share == pytest.approx(14.4 / 38.4)
    # Backward is longer: the last bucket, ready with backward's end, sticks out.
    overlapped = overlapped_step(ROWS, N, *COSTS)
    assert overlapped == pytest.approx((8, 16, 14.4, 8 + 16 + 3.6))
    assert overlapped.hidden == pytest.approx(3 / 4)


def test_where_communication_is_longer_it_begins_with_the_first_bucket():
    step = overlapped_step(4, N, *COSTS)  # F = 4, B = 8: the first bucket is ready at 4 + 2
    assert step.seconds == pytest.approx(6 + 14.4)
    assert step.exposed == pytest.approx(8.4) and step.hidden == pytest.approx(6 / 14.4)


def test_one_rank_sends_nothing():
    for step in (bucketed_step, overlapped_step):
        alone = step(ROWS, 1, *COSTS)
        assert (
            alone.seconds == 24
            and alone.communication == alone.exposed == alone.hidden == alone.share == 0
        )


def test_one_bucket_hides_nothing():
    assert overlapped_step(ROWS, N, N_BYTES, COMPUTE, LINK, 1) == bucketed_step(
        ROWS, N, N_BYTES, COMPUTE, LINK, 1
    )


@pytest.mark.parametrize(
    ("rows", "N", "buckets"),
    [(r, N, K) for r in (0.5, 4, 7.2, 40) for N in (2, 3, 1000) for K in (1, 2, 5, 64)],
)
def test_the_formula_is_the_sum_of_the_buckets(rows, N, buckets):
    step = overlapped_step(rows, N, N_BYTES, COMPUTE, LINK, buckets)
    ready = [step.forward + step.backward * (k + 1) / buckets for k in range(buckets)]
    times = bucket_times(ready, [ring_time(N_BYTES / buckets, N, LINK)] * buckets)
    assert step.seconds == pytest.approx(times[-1][1])
    assert step.seconds <= bucketed_step(rows, N, N_BYTES, COMPUTE, LINK, buckets).seconds * (
        1 + 1e-12
    )
    assert 0 <= step.hidden < 1


def test_uneven_buckets_wait_for_each_other_and_for_their_gradients():
    assert bucket_times([1, 2, 10], [3, 1, 2]) == [(1, 4), (4, 5), (10, 12)]


@pytest.mark.parametrize("N", [1, 2, 3, 8, 100])
def test_the_ring_is_that_of_the_collectives(N):
    assert ring_time(1e6, N, (1e-5, 1e-9)) == pytest.approx(COST["ring"].time(1e6, N, 1e-5, 1e-9))


def test_scaling_by_hand():
    # Strong, 32 rows: alone 96 s; on 4 ranks the step from above; on 32 ranks backward is 2 s and
    # each bucket takes 62 (0.1 + 3.125 * 0.02) = 10.075 s, so 1 + 0.5 + 40.3 s: slower than on 4.
    assert strong_scaling(overlapped_step, 32, [1, 4, 32], *COSTS) == pytest.approx(
        [32 / 96, 32 / 27.6, 32 / 41.8]
    )
    assert weak_scaling(overlapped_step, ROWS, [1, 4], *COSTS) == pytest.approx(
        [8 / 24, 4 * 8 / 27.6]
    )
    assert weak_scaling(bucketed_step, ROWS, [1, 4], *COSTS) == pytest.approx(
        [8 / 24, 4 * 8 / 38.4]
    )


def test_at_the_break_even_batch_communication_is_as_long_as_backward():
    rows = break_even_rows(N, *COSTS)
    assert rows == pytest.approx(7.2)  # 14.4 s / 2 s per row
    step = overlapped_step(rows, N, *COSTS)
    assert step.communication == pytest.approx(step.backward) and step.hidden == pytest.approx(
        3 / 4
    )
    assert overlapped_step(0.9 * rows, N, *COSTS).hidden < 3 / 4
    assert overlapped_step(1.1 * rows, N, *COSTS).hidden == pytest.approx(3 / 4)


def test_in_tokens_the_break_even_batch_does_not_know_the_models_size():
    # 400 TFLOP/s over 25 GB/s: 16,000 tokens per rank, of whatever model.
    for parameters in (1e9, 70e9):
        compute = seconds_per_token(parameters, 400e12)
        assert sum(compute) == pytest.approx(6 * parameters / 400e12)
        assert break_even_rows(10**6, 2 * parameters, compute, (0, 1 / 25e9), 8) == pytest.approx(
            16_000, rel=1e-5
        )
