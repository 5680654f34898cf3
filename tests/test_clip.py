"""One norm for all gradients, wherever their pieces lie; the factor is torch's."""

import pytest
import torch
import torch.distributed as dist

from lib import launch, ledger
from lib.training.clip import clip_gradients, scale_gradients, squared_norm

SIZES = [(7, 3), (5,), (11,)]  # not multiples of 4


def parameters(dtype=torch.float64, scale=1.0):
    """Three, with gradients, the same on every rank."""
    generator = torch.Generator("cpu").manual_seed(0)
    made = []
    for size in SIZES:
        parameter = torch.nn.Parameter(torch.zeros(size, dtype=dtype))
        parameter.grad = (scale * torch.randn(size, generator=generator, dtype=torch.float64)).to(
            dtype
        )
        made.append(parameter)
    return made


def pieces_of(whole, rank, world_size):
    """This rank's piece of each, as a shard with a gradient."""
    pieces = []
    for parameter in whole:
        piece = torch.zeros_like(
            parameter.grad.flatten().tensor_split(world_size)[rank]
        ).requires_grad_()
        piece.grad = parameter.grad.flatten().tensor_split(world_size)[rank].clone()
        pieces.append(piece)
    return pieces


def everything():
    rank, seen = dist.get_rank(), {}
    rows = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    columns = [dist.new_group(members) for members in ([0, 2], [1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]

    for max_norm in (0.1, 1000.0):
        whole, shards = parameters(), pieces_of(parameters(), rank, 4)
        ledger.mark(f"clip {max_norm}")
        norm = clip_gradients(shards, max_norm, [None])
        ledger.mark("")
        expected = torch.nn.utils.clip_grad_norm_(whole, max_norm)
        right = pieces_of(whole, rank, 4)
        seen[max_norm] = (
            norm,
            expected,
            max(off(a.grad, b.grad) for a, b in zip(shards, right, strict=True)),
        )

    # The first split over row and column, the second over the column only and replicated in the
    # row.
    first, second, third = parameters()
    split = pieces_of([first], rank, 4)
    replicated = pieces_of([second, third], dist.get_rank(column), 2)
    norm = (squared_norm(split, [row, column]) + squared_norm(replicated, [column])).sqrt()
    scale_gradients([*split, *replicated], norm, 0.1)
    right = parameters()
    expected = torch.nn.utils.clip_grad_norm_(right, 0.1)
    want = [*pieces_of(right[:1], rank, 4), *pieces_of(right[1:], dist.get_rank(column), 2)]
    furthest = max(off(a.grad, b.grad) for a, b in zip([*split, *replicated], want, strict=True))
    seen["two groups"] = norm, expected, furthest

    frozen = torch.nn.Parameter(torch.zeros(3))
    seen["no gradient"] = clip_gradients([frozen, *pieces_of(parameters(), rank, 4)], 1.0, [None])
    nothing_here = [frozen] if rank else parameters()
    seen["one rank has all"] = clip_gradients(nothing_here, 1.0, [None])
    return seen


def off(got, want):
    return ((got - want).abs().max() / want.abs().max()).item() if want.numel() else 0.0


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, nproc=4, backend="gloo", timeout=600)


@pytest.mark.parametrize("case", [0.1, 1000.0, "two groups"])
def test_the_norm_and_the_clipped_gradients_are_torch_s_on_the_whole(results, case):
    for seen in results:
        norm, expected, furthest = seen[case]
        assert norm.item() == pytest.approx(expected.item(), rel=1e-14) and furthest < 1e-14


def test_a_piece_without_gradient_counts_as_zeros_and_so_does_a_rank_without_pieces(results):
    whole = torch.nn.utils.get_total_norm([p.grad for p in parameters()]).item()
    for seen in results:
        assert (
            seen["no gradient"].item()
            == seen["one rank has all"].item()
            == pytest.approx(whole, rel=1e-14)
        )


def test_one_number_is_all_reduced_per_group(results):
    for max_norm in (0.1, 1000.0):
        log = results.ledger.section(f"clip {max_norm}")
        assert {entry.numel for entry in log.entries} == {1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_squares_of_16_bit_gradients_neither_overflow_nor_vanish(dtype):
    for scale in (1000.0, 1e-4):
        norm = squared_norm(parameters(dtype, scale)).sqrt()
        exact = torch.linalg.vector_norm(
            torch.cat([p.grad.double().flatten() for p in parameters(dtype, scale)])
        )
        assert norm.item() == pytest.approx(exact.item(), rel=1e-6)


def test_a_max_norm_that_is_no_length_is_refused():
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(
            ValueError, match=r"max_norm is .*: it is a length, use a number above 0"
        ):
            clip_gradients(parameters(), wrong)
