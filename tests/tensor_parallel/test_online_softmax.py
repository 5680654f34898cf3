"""Attention merged from parts is attention over all keys, however the keys are cut and in whatever
order they come."""

import math

import pytest
import torch

from lib.tensor_parallel.online_softmax import Attended, merge_attention


def draw(*shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


def attend(q, k, v, visible):
    """Attention of q (H, t, d) over k, v (H, s, d), as far as visible (t, s) says."""
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)  # (H, t, s)
    return Attended(scores.softmax(-1).nan_to_num(0.0) @ v, scores.logsumexp(-1))


@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_four_blocks_of_keys_merged_are_all_keys_causal_too(scale, order):
    q, k, v = draw(2, 16, 8) * scale, draw(2, 17, 8)[:, :16], draw(2, 18, 8)[:, :16]
    visible = torch.ones(16, 16, dtype=torch.bool).tril()
    blocks = [slice(4 * j, 4 * j + 4) for j in order]
    merged = Attended(torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf))  # over no key
    for block in blocks:
        merged = merge_attention(merged, attend(q, k[:, block], v[:, block], visible[:, block]))
    whole = attend(q, k, v, visible)
    for got, want in zip(merged, whole, strict=True):
        assert (got - want).abs().max() < 1e-11 * max(1.0, want.abs().max())


def test_two_merged_then_a_third_is_as_one_merged_with_two():
    a, b, c = (Attended(draw(5, 3 + i)[:, :3], draw(5, 7 + i)[:, 0]) for i in range(3))
    left, right = (
        merge_attention(merge_attention(a, b), c),
        merge_attention(a, merge_attention(b, c)),
    )
    assert all(
        torch.allclose(x, y, rtol=1e-13, atol=1e-13) for x, y in zip(left, right, strict=True)
    )


def test_no_key_seen_by_either_is_no_key_seen():
    nothing = Attended(torch.zeros(2, 3), torch.full((2,), -math.inf))
    out, log_sum = merge_attention(nothing, nothing)
    assert out.eq(0).all() and log_sum.eq(-math.inf).all()
