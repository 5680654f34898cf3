"""Comparisons of parallel layers with unsharded ones: right layers agree, wrong ones do not."""

import pytest
import torch
import torch.nn.functional as F
from parallels import SHAPES

from lib import launch
from lib.tensor_parallel import (
    ParallelAttention,
    column_parallel,
    compare,
    copy_to_group,
    reduce_from_group,
    row_parallel,
    vocab_parallel_cross_entropy,
)

SHAPE = SHAPES["grouped-query"]


def without_f(x, linears, group=None):
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


def everything():
    right = column_parallel, row_parallel
    return {
        "mappings": compare.gradchecked(copy_to_group, reduce_from_group),
        "partial sums": compare.partial_sums(),
        "mlp": compare.mlp(SHAPE, *right),
        "mlp without f": compare.mlp(SHAPE, without_f, row_parallel),
        "gated": compare.gated_mlp(*right),
        "orders": compare.mlp_orders(SHAPE),
        "block": compare.block(SHAPE, ParallelAttention),
        "padded": compare.padded_loss(vocab_parallel_cross_entropy),
    }


@pytest.fixture(scope="module")
def found():
    return launch.capture(everything, backend="gloo", nproc=2, ledger=False)[0]


def test_right_layers_agree_with_the_unsharded_ones(found):
    assert max(found["mlp"].values()) < 1e-12 and max(found["gated"].values()) < 1e-12
    assert max(found["block"].values()) < 1e-4
    assert found["mappings"] == {"f and g": True, "f alone": False, "g alone": False}


def test_wrong_ones_do_not(found):
    assert found["mlp without f"]["forward"] < 1e-12
    assert found["mlp without f"]["gradient of x"] > 1e-2
    assert found["partial sums"]["all-to-all"] > 1e-2 > found["partial sums"]["all-reduce"]
    assert found["orders"]["all-reduce after the column split"] > 1e-2
    assert found["orders"]["gather before the row split"] < 1e-4


def test_padded_words_need_a_mask(found):
    padded = found["padded"]
    assert padded["padded and masked"] == pytest.approx(padded["unpadded"], rel=1e-5)
    assert padded["padded"] > padded["unpadded"] + 1e-3


def test_the_largest_tensor_is_noticed():

    with compare.LargestTensor() as seen:
        torch.ones(3, 4).sum()
    assert seen.elements == 12
    assert compare.parameter_share(SHAPE, 1) == 1 > compare.parameter_share(SHAPE, 2) > 0.5
