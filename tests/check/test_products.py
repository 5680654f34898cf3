"""Every way to write a matrix product is counted once, wherever it is differentiated; and counting
leaves no trace."""

import pytest
import torch
import torch.nn.functional as F

from lib.check.products import count_products, multiply_adds

X, W = torch.ones(4, 5), torch.ones(5, 8)
WHOLE = 4 * 5 * 8
WAYS = {
    "@": (lambda: X @ W, WHOLE),
    "mm with out": (lambda: torch.mm(X, W, out=torch.empty(4, 8)), WHOLE),
    "einsum": (lambda: torch.einsum("bk,km->bm", X, W), WHOLE),
    "linear": (lambda: F.linear(X, W.T), WHOLE),
    "linear with bias": (lambda: F.linear(X, W.T, torch.ones(8)), WHOLE),
    "addmm in place": (lambda: torch.ones(4, 8).addmm_(X, W), WHOLE),
    "inner": (lambda: torch.inner(X, W.T), WHOLE),
    "tensordot": (lambda: torch.tensordot(X, W, 1), WHOLE),
    "bmm": (lambda: torch.stack([X, X, X]) @ torch.stack([W, W, W]), 3 * WHOLE),
    "row times matrix": (lambda: X[0] @ W, 5 * 8),
    "matrix times column": (lambda: X @ W[:, 0], 4 * 5),
    "row times column": (lambda: X[0] @ W[:, 0], 5),
    "half of it": (lambda: X[:2] @ W, WHOLE // 2),
    "forward and backward": (lambda: (X @ W.clone().requires_grad_()).sum().backward(), 2 * WHOLE),
    "no product": (lambda: (X[:, :, None] * W[None]).sum(1), 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_multiply_adds_of(way):
    product, expected = WAYS[way]
    with count_products() as factors:
        product()
    assert multiply_adds(factors) == expected


def test_the_result_is_untouched_and_counting_ends():
    with count_products() as factors:
        inside = X @ W
    assert torch.equal(inside, X @ W)
    assert factors == [((4, 5), (5, 8))]
