"""Muon over ranks: one process's numbers, torch's own step, owners near the optimum, and
every byte counted."""

import functools
import itertools
from collections import Counter
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from replicas import gpt_batch, gpt_loss, share
from zero_cases import GROUPS, SHAPE, adamw

from lib import launch, ledger
from lib.check.lab4 import owners as check_owners
from lib.training import model
from lib.zero import Muon, Zero1, muon, newton_schulz, owners

STEPS = 10
MATRICES = [(8, 8), (4, 8), (32, 8), (8, 32)]


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Newton-Schulz --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 6), (5, 9), (9, 5), (1, 7), (3, 1)], ids=str)
def test_singular_values_come_near_one_and_singular_vectors_stay(shape):
    U, S, V = torch.linalg.svd(draw(1, *shape), full_matrices=False)
    S = torch.linspace(1, 0.05, len(S), dtype=torch.float64)
    found = U.T @ newton_schulz(U @ torch.diag(S) @ V) @ V.T
    assert (found - torch.diag(found.diagonal())).abs().max() < 1e-12
    assert found.diagonal().min() > 0.6 and found.diagonal().max() < 1.3


def test_each_singular_value_goes_through_the_quintic():
    a, b, c = muon.COEFFICIENTS
    U, S, V = torch.linalg.svd(draw(2, 4, 6), full_matrices=False)
    want = S / S.norm()
    for _ in range(muon.STEPS):
        want = a * want + b * want**3 + c * want**5
    assert torch.allclose(
        newton_schulz(U @ torch.diag(S) @ V), U @ torch.diag(want) @ V, atol=1e-12, rtol=0
    )


def test_the_scale_of_a_gradient_is_forgotten_and_zeros_stay_zeros():
    G = draw(3, 5, 7)
    assert torch.allclose(newton_schulz(1000 * G), newton_schulz(G), atol=1e-12, rtol=0)
    assert not newton_schulz(torch.zeros(3, 4)).any()


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)], ids=str)
def test_cost_counts_the_multiplications(shape, monkeypatch):
    counted = []

    def product(a, b):
        counted.append(a.shape[0] * a.shape[1] * b.shape[1])

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in (torch.Tensor.matmul, torch.Tensor.__matmul__):
                product(*args)
            if func is torch.addmm:
                product(*args[1:])
            return func(*args, **(kwargs or {}))

    with Counting():
        newton_schulz(draw(4, *shape))
    assert sum(counted) == muon.cost(shape)


# --- torch's --------------------------------------------------------------------------------------

theirs = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")


def steps_of_theirs(shapes, seeds, **settings):
    matrices = [torch.nn.Parameter(draw(i, *shape)) for i, shape in enumerate(shapes)]
    optimizer = torch.optim.Muon(matrices, **settings)
    for seed in seeds:
        for i, p in enumerate(matrices):
            p.grad = draw(100 + 10 * seed + i, *p.shape)
        optimizer.step()
    return [p.detach() for p in matrices]


def steps_of_ours(shapes, seeds, dtype=None, **settings):
    matrices, kept = [draw(i, *shape) for i, shape in enumerate(shapes)], {}
    for seed in seeds:
        for i, p in enumerate(matrices):
            momentum = kept.setdefault(i, torch.zeros_like(p))
            muon.update(p, draw(100 + 10 * seed + i, *p.shape), momentum, dtype=dtype, **settings)
    return matrices


@theirs
def test_a_step_is_torch_s_with_its_products_in_float64(monkeypatch):
    # theirs would round there: by the one, or from 2.15 the other
    to, rounds = (
        torch.Tensor.to,
        {"dtype": torch.bfloat16},
    )
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    kept = lambda self, *args, **named: (
        self.clone() if rounds.items() <= named.items() else to(self, *args, **named)
    )
    monkeypatch.setattr(torch.Tensor, "to", kept)
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    pairs = zip(
        steps_of_ours(MATRICES, range(3), **settings),
        steps_of_theirs(MATRICES, range(3), **settings),
        strict=True,
    )
    assert max((a - b).abs().max().item() for a, b in pairs) < 1e-12


@theirs
def test_a_step_is_torch_s_in_bfloat16(monkeypatch):
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.0}
    ours = steps_of_ours(MATRICES, range(1), dtype=torch.bfloat16, **settings)
    for a, b, p in zip(
        ours, steps_of_theirs(MATRICES, range(1), **settings), MATRICES, strict=True
    ):
        assert (a - b).abs().max() <= 0.02 * 2 * 2**-7 * max(1, p[0] / p[1]) ** 0.5


# --- owners ---------------------------------------------------------------------------------------


def best_possible(costs, N):
    """The least that the most loaded of N ranks can have: by search over how many of each
    cost a rank takes."""
    counts = Counter(costs)
    kinds = sorted(counts, reverse=True)
    lowest = max(max(costs, default=0), -(-sum(costs) // N))
    sums = sorted(
        {sum(c * k for c, k in zip(kinds, taken, strict=True)) for taken in _some(kinds, counts)}
    )

    for most in (s for s in sums if s >= lowest):

        @functools.cache
        def fits(left, ranks, most=most):
            if not any(left):
                return True
            if ranks == 0 or sum(c * k for c, k in zip(kinds, left, strict=True)) > ranks * most:
                return False
            return any(
                fits(tuple(a - b for a, b in zip(left, taken, strict=True)), ranks - 1)
                for taken in maximal(kinds, left, most)
            )

        if fits(tuple(counts[kind] for kind in kinds), N):
            return most
    raise AssertionError("one rank can take all")


def _some(kinds, counts):
    return itertools.product(*(range(counts[kind] + 1) for kind in kinds))


def maximal(kinds, left, room):
    """What one rank can take so that no more fits beside it: a rank that takes less never helps."""
    if len(kinds) == 1:
        yield (min(left[0], room // kinds[0]),)
        return
    for k in range(min(left[0], room // kinds[0]), -1, -1):
        for rest in maximal(kinds[1:], left[1:], room - k * kinds[0]):
            used = k * kinds[0] + sum(c * r for c, r in zip(kinds[1:], rest, strict=True))
            if k == left[0] or room - used < kinds[0]:
                yield (k, *rest)


def load(costs, owner, N):
    return max(sum(c for c, o in zip(costs, owner, strict=True) if o == rank) for rank in range(N))


def of_a_gpt(hidden, layers, width=4, kv=1.0):
    """Costs of the matrices of a GPT, in the order of the model."""
    shapes = [(hidden, hidden), *[(int(kv * hidden), hidden)] * 2, (hidden, hidden)]
    shapes += [(int(width * hidden), hidden), (hidden, int(width * hidden))]
    return [muon.cost(shape) for shape in shapes] * layers


def test_the_search_for_the_best_finds_it():
    assert best_possible([7, 6, 5, 4, 3], 2) == 13
    assert (
        best_possible([3, 3, 2, 2, 2], 2)
        == 6
        < load([3, 3, 2, 2, 2], owners([3, 3, 2, 2, 2], 2), 2)
    )
    assert best_possible([5], 3) == 5


@pytest.mark.parametrize("layers", [2, 4, 12, 24])
@pytest.mark.parametrize("gpt", [{}, {"kv": 0.25}, {"width": 3.5, "kv": 0.25}], ids=str)
def test_owners_are_within_5_percent_of_the_best_possible_for_a_gpt(layers, gpt):
    costs = of_a_gpt(1024, layers, **gpt)
    for N in (1, 2, 3, 4, 6, 8, 16):
        got, best = load(costs, owners(costs, N), N), best_possible(costs, N)
        assert best <= got <= 1.05 * best, (N, got / best)


def test_what_the_check_compares_with_is_the_best_possible():
    for name, (costs, N) in check_owners.SIZES.items():
        assert load(costs, owners(costs, N), N) == best_possible(list(costs), N), name


def test_owners_of_nothing_and_of_less_than_a_rank_each():
    assert owners([], 3) == [] and sorted(owners([1, 5], 3)) == [0, 1]


# --- on ranks -------------------------------------------------------------------------------------


def build():
    net = model.GPT(SHAPE).double()
    matrices = [p for p in net.blocks.parameters() if p.dim() == 2]
    return net, matrices, [p for p in net.parameters() if all(p is not m for m in matrices)]


class Training(NamedTuple):
    """What a rank of one group saw."""

    steps: list  # [{name: parameter} after each step]
    momentum: int  # elements of it on this rank
    psi: int  # elements of all matrices
    owner: list


class Seen(NamedTuple):
    """What a rank saw."""

    trained: dict  # {members of a group: Training}
    refusals: list


def on_ranks(group):
    rank, N = dist.get_rank(group), dist.get_world_size(group)
    net, matrices, others = build()
    steps, rest, seen = (
        Muon(matrices, weight_decay=0.1, group=group),
        Zero1(others, adamw, group),
        [],
    )
    for step in range(STEPS):
        gpt_loss(net, share(gpt_batch(step), rank, N)).backward()
        rest.average_gradients()
        rest.step()
        rest.zero_grad()
        ledger.mark(f"{N} ranks, step {step}")
        steps.step()
        ledger.mark("")
        seen.append({name: p.detach().clone() for name, p in net.named_parameters()})
        assert all(p.grad is None for p in net.parameters())
    kept, psi = (sum(m.numel() for m in some) for some in (steps.momenta.values(), matrices))
    return Training(seen, kept, psi, steps.owner)


def one_process():
    net, matrices, others = build()
    kept, optimizer, seen = {m: torch.zeros_like(m) for m in matrices}, adamw(others), []
    for step in range(STEPS):
        net.zero_grad()
        gpt_loss(net, gpt_batch(step)).backward()
        optimizer.step()
        for matrix in matrices:
            muon.update(matrix, matrix.grad, kept[matrix], 0.02, 0.95, 0.1)
        seen.append({name: p.detach().clone() for name, p in net.named_parameters()})
    return seen


def refusals():
    seen = []
    for matrices, settings in (
        ([torch.zeros(3)], {}),
        ([torch.zeros(2, 2)], {"owner": [7]}),
        ([], {"owner": [0]}),
    ):
        try:
            Muon(matrices, **settings)
        except ValueError as error:
            seen.append(str(error))
    return seen


def everything():
    group_of = {m: dist.new_group(m) if len(m) < dist.get_world_size() else None for m in GROUPS}
    mine = {m: on_ranks(group) for m, group in group_of.items() if dist.get_rank() in m}
    return Seen(mine, refusals())


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=600)


@pytest.mark.parametrize("members", GROUPS, ids=str)
def test_one_step_and_ten_are_one_process_s(results, members):
    want = one_process()
    for member in members:
        seen = results[member].trained[members].steps
        off = [
            max((now[n] - then[n]).abs().max().item() for n in now)
            for now, then in zip(seen, want, strict=True)
        ]
        assert off[0] < 1e-12 and max(off) < 1e-9, off
    assert (
        want[0]["blocks.0.mlp.up.weight"] - want[-1]["blocks.0.mlp.up.weight"]
    ).abs().max() > 0.01


def test_all_ranks_hold_the_same_bits(results):
    for members in GROUPS:
        first, *others = (results[member].trained[members].steps for member in members)
        assert all(
            torch.equal(a[n], b[n])
            for seen in others
            for a, b in zip(first, seen, strict=True)
            for n in a
        )


@pytest.mark.parametrize("members", [m for m in GROUPS if m != (1, 3)], ids=str)
def test_the_bytes_are_the_formula(results, members):
    N, psi = len(members), results[members[0]].trained[members].psi
    sections = [f"{N} ranks, step {step}" for step in range(STEPS)]
    each = 2 * (N - 1) * psi * 8 * (2 if N == 2 else 1)  # two groups of two
    assert [results.ledger.section(name).sent("bytes") for name in sections] == [each] * STEPS


def test_momentum_is_the_owner_s_alone_and_a_share_of_all(results):
    for members in GROUPS:
        each = [results[member].trained[members] for member in members]
        kept, psi = [rank.momentum for rank in each], each[0].psi
        assert sum(kept) == psi and max(kept) < 1.3 * psi / len(members)
        assert len({tuple(rank.owner) for rank in each}) == 1


def test_what_is_no_matrix_and_an_owner_that_is_no_rank_are_refused(results):
    vector, rank, number = results[0].refusals
    assert (
        "(3,)" in vector
        and "AdamW" in vector
        and "[7]" in rank
        and "0 to 3" in rank
        and "0 matrices" in number
    )
