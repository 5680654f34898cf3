"""Shares in proportion to speed: no other whole shares are faster, and the gradient stays that of
the whole batch."""

import itertools
import random

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import launch, ledger
from lib.hybrid.unequal import (
    average_by_share,
    paced_steps,
    seconds_of_step,
    shares,
    stages_by_speed,
    stages_in_any_order,
)
from lib.pipeline import balance

DRAW = random.Random(0)


# --- shares of a batch ----------------------------------------------------------------------------


def every_split(B, N):
    """All lists of N whole numbers, 0 or more, whose sum is B."""
    return [s for s in itertools.product(range(B + 1), repeat=N) if sum(s) == B]


@pytest.mark.parametrize("limited", [False, True])
def test_no_other_whole_shares_are_faster(limited):
    for _ in range(60):
        N, B = DRAW.randint(1, 4), DRAW.randint(0, 9)
        speeds = [DRAW.choice([0.5, 1, 1.5, 2, 3, 7]) for _ in range(N)]
        most = [DRAW.randint(0, 6) for _ in range(N)]
        if not limited:
            most = None
        elif sum(most) < B:
            with pytest.raises(ValueError, match=f"{B} rows, but memory for .* {sum(most)} in all"):
                shares(B, speeds, most)
            continue
        found = shares(B, speeds, most)
        assert sum(found) == B and (
            most is None or all(b <= m for b, m in zip(found, most, strict=True))
        )
        allowed = [
            s
            for s in every_split(B, N)
            if most is None or all(b <= m for b, m in zip(s, most, strict=True))
        ]
        assert seconds_of_step(found, speeds) == min(seconds_of_step(s, speeds) for s in allowed), (
            B,
            speeds,
            most,
        )


def test_the_example_of_the_file():
    assert shares(10, [3, 2, 1]) == [6, 3, 1] and seconds_of_step([6, 3, 1], [3, 2, 1]) == 2
    assert seconds_of_step([4, 3, 3], [3, 2, 1]) == 3


def test_equal_speeds_give_equal_shares_and_whole_proportions_are_met():
    assert shares(10, [1] * 4) == [3, 3, 2, 2]
    assert shares(24, [4, 1, 1]) == [16, 4, 4]
    assert shares(3, [1000, 1]) == [3, 0]  # a rank too slow to help gets nothing


@pytest.mark.parametrize("speeds", [[], [1, 0], [2, -1]])
def test_a_speed_that_is_none_is_refused(speeds):
    with pytest.raises(ValueError, match="one speed above 0"):
        shares(4, speeds)


# --- stages ---------------------------------------------------------------------------------------


def brute_force(costs, speeds, memory, orders):
    """The smallest pace over all cuts and these orders of the devices; inf where none fits."""
    n, p, best = len(costs), len(speeds), float("inf")
    for cuts in itertools.combinations(range(1, n), p - 1):
        bounds = [0, *cuts, n]
        for order in orders:
            times = []
            for stage, (k, i, j) in enumerate(zip(order, bounds, bounds[1:], strict=False)):
                if memory:
                    state, kept, room = memory
                    if sum(state[i:j]) + (p - stage) * sum(kept[i:j]) > room[k]:
                        break
                times.append(sum(costs[i:j]) / speeds[k])
            else:
                best = min(best, max(times))
    return best


@pytest.mark.parametrize("limited", [False, True])
def test_no_other_stages_are_faster(limited):
    fitted = refused = 0
    for _ in range(60):
        n = DRAW.randint(1, 7)
        p = DRAW.randint(1, min(4, n))
        costs, speeds = (
            [DRAW.randint(1, 9) for _ in range(n)],
            [DRAW.choice([1, 2, 4]) for _ in range(p)],
        )
        numbers = lambda low, high, many: [DRAW.randint(low, high) for _ in range(many)]
        memory = (numbers(1, 4, n), numbers(0, 3, n), numbers(6, 30, p)) if limited else None
        for place, orders in (
            (stages_by_speed, [tuple(range(p))]),
            (stages_in_any_order, list(itertools.permutations(range(p)))),
        ):
            best = brute_force(costs, speeds, memory, orders)
            if best == float("inf"):
                refused += 1
                with pytest.raises(
                    ValueError, match=f"{n} layers do not fit on devices with room for"
                ):
                    place(costs, speeds, memory)
                continue
            fitted += 1
            found = place(costs, speeds, memory)
            assert found.pace == pytest.approx(best, abs=1e-12)
            assert [i for layers in found.layers for i in layers] == list(range(n))
            assert sorted(found.devices) == list(range(p)) and tuple(found.devices) in orders
            bounds = [layers[0] for layers in found.layers[1:]]
            times = [
                sum(costs[i] for i in layers) / speeds[k]
                for layers, k in zip(found.layers, found.devices, strict=True)
            ]
            assert max(times) == pytest.approx(best, abs=1e-12), bounds
            if memory:
                state, kept, room = memory
                for stage, (layers, k) in enumerate(zip(found.layers, found.devices, strict=True)):
                    assert sum(state[i] + (p - stage) * kept[i] for i in layers) <= room[k]
    assert fitted > 20 and (refused > 5) == limited


def test_with_equal_speeds_the_pace_is_that_of_balance():
    costs = [2, 2, 2, 1, 1, 1, 1, 4]
    assert (
        stages_by_speed(costs, [1, 1, 1]).pace
        == max(sum(costs[i] for i in s) for s in balance(costs, 3))
        == 5
    )


def test_a_device_with_more_memory_becomes_the_first_stage():
    # a layer needs 4 in the first of three stages, then 3, then 2
    memory = [1] * 6, [1] * 6, [6, 5, 20]
    assert stages_by_speed([1] * 6, [1, 1, 1], memory).layers == [
        range(1),
        range(1, 2),
        range(2, 6),
    ]
    found = stages_in_any_order([1] * 6, [1, 1, 1], memory)
    assert found.devices == [2, 0, 1] and found.pace == 2


def test_more_devices_than_layers_are_refused():
    with pytest.raises(ValueError, match=r"2 layers on devices of speeds .*: use 1 to 2 devices"):
        stages_by_speed([1, 1], [1, 1, 1])


# --- gradients and time, on ranks -----------------------------------------------------------------

SPLITS = [[7, 2, 1, 2], [12, 0, 0, 0], [3, 3, 3, 3], [0, 5, 6, 1]]
PACED, SPEEDS, ROW = [[16, 4, 2, 2], [6, 6, 6, 6]], [8, 2, 1, 1], 0.1  # in seconds: 0.2, then 0.6


def model():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    net[2].bias.requires_grad_(False)
    return net


def batch():
    draw = torch.Generator().manual_seed(2)
    return torch.randn(12, 5, dtype=torch.float64, generator=draw), torch.randint(
        3, (12,), generator=draw
    )


def on_ranks():
    rank, (x, target), gradients = dist.get_rank(), batch(), []
    for i, rows in enumerate(SPLITS):
        net, mine = model(), slice(sum(rows[:rank]), sum(rows[: rank + 1]))
        F.cross_entropy(net(x[mine]), target[mine]).backward()  # nan on a rank without rows
        ledger.mark(f"split {i}")
        average_by_share(net.parameters(), rows[rank] / sum(rows))
        ledger.mark("")
        gradients.append([p.grad for p in net.parameters()])
    return gradients, paced_steps(PACED, SPEEDS, ROW, steps=3)


@pytest.fixture(scope="module")
def results():
    return launch.capture(on_ranks, nproc=4)


def test_the_gradient_is_that_of_the_mean_over_the_whole_batch(results):
    net, (x, target) = model(), batch()
    F.cross_entropy(net(x), target).backward()
    for gradients, _ in results:
        for split in gradients:
            for got, p in zip(split, net.parameters(), strict=True):
                if p.requires_grad:
                    torch.testing.assert_close(got, p.grad, rtol=1e-12, atol=1e-14)
                else:
                    assert got is None


def test_it_sends_one_flat_tensor_and_no_counts(results):
    trained = sum(p.numel() for p in model().parameters() if p.requires_grad)
    for i in range(len(SPLITS)):
        entries = [
            entry for entry in results.ledger.section(f"split {i}").entries if entry.op == "send"
        ]
        assert {entry.dtype for entry in entries} == {"float64"}
        # recursive doubling: the whole, log2 N times
        assert {entry.numel for entry in entries} == {trained}


def test_on_paced_ranks_proportion_reaches_the_ideal_and_equal_shares_wait_for_the_slowest(results):
    ideal = ROW * 24 / sum(SPEEDS)
    assert [ROW * seconds_of_step(rows, SPEEDS) for rows in PACED] == pytest.approx(
        [ideal, 3 * ideal]
    )
    assert shares(24, SPEEDS) == PACED[0]
    fast, slow = (
        min(max(rank[1][0][i][step] for rank in results) for step in range(3)) for i in (0, 1)
    )
    assert fast >= ideal and slow >= 3 * ideal  # a wait never ends early
    assert fast < 0.75 * slow  # side by side: a third, and what a busy machine adds to either
    for _, (_, gradient) in results:
        torch.testing.assert_close(gradient, torch.full_like(gradient, 25 / 2 / len(gradient)))


def test_a_share_that_is_none_is_refused():
    with pytest.raises(
        ValueError, match=r"share is 1\.5: rows of this rank over rows of the batch"
    ):
        average_by_share([], 1.5)
