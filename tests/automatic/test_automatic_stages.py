"""The outer pass: no other stages and submeshes are faster."""

import itertools
import math
import random

import pytest

from lib.hybrid.automatic import Cluster, choose, cut_into_stages, trace
from lib.pipeline import balance, gpipe, one_f_one_b, simulate
from lib.training.model import Block, Shape


def brute_force(costs, n_devices, m):
    """The smallest T over every cut and every choice of submeshes that uses all devices."""
    n_layers, best = len(next(iter(costs.values()))), math.inf
    for p in range(1, n_layers + 1):
        for cuts in itertools.combinations(range(1, n_layers), p - 1):
            bounds = [0, *cuts, n_layers]
            for sizes in itertools.product(costs, repeat=p):
                if sum(sizes) == n_devices:
                    times = [
                        sum(costs[s][i:j])
                        for s, i, j in zip(sizes, bounds, bounds[1:], strict=False)
                    ]
                    best = min(best, sum(times) + (m - 1) * max(times))
    return best


def seconds(found, costs, m):
    times = [
        sum(costs[s][i] for i in layers)
        for s, layers in zip(found.devices, found.layers, strict=True)
    ]
    return sum(times) + (m - 1) * max(times)


def test_no_other_stages_are_faster():
    draw, refused = random.Random(0), 0
    for _ in range(150):
        n_layers, m = draw.randint(1, 6), draw.choice([1, 2, 4, 16])
        sizes = draw.choice([[1], [1, 2], [1, 2, 4], [2, 4], [1, 3]])
        costs = {s: [draw.randint(1, 20) / s**0.8 for _ in range(n_layers)] for s in sizes}
        if draw.random() < 0.3:
            costs[sizes[0]][draw.randrange(n_layers)] = math.inf
        n_devices = draw.randint(1, 6)
        best = brute_force(costs, n_devices, m)
        if best == math.inf:
            refused += 1
            with pytest.raises(
                ValueError, match=f"no stages of {n_layers} layers use all {n_devices} devices"
            ):
                cut_into_stages(costs, n_devices, m)
            continue
        found = cut_into_stages(costs, n_devices, m)
        assert found.seconds == pytest.approx(best, rel=1e-12), (costs, n_devices, m)
        assert seconds(found, costs, m) == pytest.approx(best, rel=1e-12)
        assert sum(found.devices) == n_devices
        assert [i for layers in found.layers for i in layers] == list(range(n_layers))
    assert 5 < refused < 100


def test_gpipe_takes_as_long_and_1f1b_no_longer():
    draw = random.Random(1)
    for _ in range(40):
        costs, m = (
            {1: [draw.randint(1, 9) for _ in range(6)], 2: [draw.randint(1, 6) for _ in range(6)]},
            draw.randint(1, 9),
        )
        found = cut_into_stages(costs, 4, m)
        stages = zip(found.devices, found.layers, strict=True)
        times = [sum(costs[size][i] for i in layers) for size, layers in stages]
        times = {"F": [t / 3 for t in times], "B": [t * 2 / 3 for t in times]}
        lasts = {
            make: simulate(make(len(found.layers), m), times).makespan
            for make in (gpipe, one_f_one_b)
        }
        assert lasts[gpipe] == pytest.approx(found.seconds, rel=1e-12)
        assert lasts[one_f_one_b] <= found.seconds * (1 + 1e-12)


def test_with_one_device_a_stage_and_many_micro_batches_the_pace_is_that_of_balance():
    costs = [2, 2, 2, 1, 1, 1, 1, 4]
    found = cut_into_stages({1: costs}, 3, 1000)
    assert max(sum(costs[i] for i in s) for s in found.layers) == max(
        sum(costs[i] for i in s) for s in balance(costs, 3)
    )


def test_one_micro_batch_wants_no_pipeline_and_many_want_one():
    whole = {1: [4.0] * 4, 2: [2.5] * 4, 4: [1.6] * 4}  # four devices are 2.5 times as fast as one
    one, many = (cut_into_stages(whole, 4, m) for m in (1, 64))
    assert one.devices == [4] and one.seconds == pytest.approx(6.4)
    assert many.devices == [1, 1, 1, 1] and many.seconds == pytest.approx(16 + 63 * 4)


def test_the_inner_pass_fills_its_table():
    shape, cluster = Shape(16, 8, 1, 64, 4), lambda N: Cluster(N, 1e9, 1e9, 1e-5, 1e-9, 4)
    narrow, wide = (
        trace(Block(Shape(16, 8, 1, hidden, 4)), (8, 8, hidden)).operators
        for hidden in (shape.hidden, 128)
    )
    layers = [narrow, narrow, wide, narrow]
    costs = {N: [choose(operators, cluster(N)).seconds for operators in layers] for N in (1, 2, 4)}
    for N in (1, 2):  # more devices never slow a layer down: it can stay whole on each
        assert all(more <= fewer for more, fewer in zip(costs[2 * N], costs[N], strict=True))
    assert cut_into_stages(costs, 4, 8).seconds == pytest.approx(
        brute_force(costs, 4, 8), rel=1e-12
    )


@pytest.mark.parametrize(("costs", "m"), [({1: [1, 2], 2: [1]}, 4), ({1: []}, 4), ({1: [1]}, 0)])
def test_a_table_that_is_none_is_refused(costs, m):
    with pytest.raises(ValueError, match="use one list of layers for every submesh"):
        cut_into_stages(costs, 2, m)
