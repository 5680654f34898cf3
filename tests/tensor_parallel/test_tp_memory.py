"""What a block keeps for backward, counted to the byte: the formulas, and how tp divides them.

B rows of T tokens, n = BTD, tp ranks; what is kept, in elements:

                        one process     tensor parallel    sequence parallel    sequence, regathered
    norms' inputs       2n              2n                 2n/tp                2n/tp
    norms' outputs      2n              2n                 2n                   2n/tp
    norms' statistics   4BT             4BT                4BT/tp               4BT/tp
    q, k, v, mixed      4n              4n/tp              4n/tp                4n/tp
    MLP, F wide         2BTF            2BTF/tp            2BTF/tp              2BTF/tp
    weights, H heads    BHTT            BHTT/tp            BHTT/tp              BHTT/tp

and one (T, T) bool, the causal mask. k and v count n even in grouped-query attention: they are kept
repeated. With F = 4D, 2 bytes per element and a byte for each of two masks of dropout: 16n * 2 + 2n
= 34 sbh bytes for one process, (10 + 24/t) sbh, and 34 sbh/t (Korthikanti et al. 2022), and 5as/h
of them for the weights and their own mask.
"""

import pytest
import torch
import torch.distributed as dist
from parallels import MODES, SHAPES, gpt, my_groups

from lib import launch
from lib.tensor_parallel import vocab_parallel_cross_entropy
from lib.training.model import Shape
from lib.training.recompute import SavedBytes

B, ELEMENT = 2, 8  # bytes
SIZES = {(0,): 1, (0, 1): 2, (0, 1, 2, 3): 4}
WIDE = Shape(vocab_size=12, seq_len=16, n_layers=1, hidden=32, n_heads=4)
ALL = {**SHAPES, "wide": WIDE}


def draw(*shape):
    return torch.randn(
        *shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu", dtype=torch.float64
    )


def kept(block, x):
    """Bytes that `block` keeps of x for backward, x included, parameters left out; and
    after it nothing."""
    with SavedBytes(besides=block.parameters()) as saved:
        y = block(x.requires_grad_())
        before = saved.nbytes()
        y.sum().backward()
        assert saved.nbytes() == 0
    return before


def everything():
    seen = {}
    for members, group in my_groups().items():
        if members not in SIZES:
            continue
        rank, tp = dist.get_rank(group), SIZES[members]
        for name, shape in ALL.items():
            x = draw(B, shape.seq_len, shape.hidden)
            for mode in MODES:
                mine = x if mode == "tensor" else x.chunk(tp, 1)[rank].clone()
                seen[name, mode, tp] = kept(MODES[mode](gpt(shape), group).blocks[0], mine.clone())
            if members == (0,):
                seen[name, "one process", 1] = kept(gpt(shape).blocks[0], x.clone())
        logits = draw(B, 16, 400 // tp).requires_grad_()
        with SavedBytes(besides=[logits]) as saved:
            loss = vocab_parallel_cross_entropy(
                logits, torch.zeros(B, 16, dtype=torch.int64), group
            )
            seen["loss", tp] = saved.nbytes()
            loss.backward()
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240, ledger=False)


def formula(shape, mode, tp):
    """Bytes."""
    T, n = shape.seq_len, B * shape.seq_len * shape.hidden
    inputs = outputs = 2 * n
    statistics = 4 * B * T
    if mode in ("sequence", "regathered"):
        inputs, statistics = inputs // tp, statistics // tp
    if mode == "regathered":
        outputs //= tp
    inside = (4 * n + 2 * B * T * shape.mlp_hidden + B * shape.n_heads * T * T) // tp
    return ELEMENT * (inputs + outputs + statistics + inside) + T * T


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL)
def test_a_block_keeps_what_the_formula_says(results, name, mode):
    assert results[0][name, "one process", 1] == formula(ALL[name], "one process", 1)
    for members, tp in SIZES.items():
        for rank in members:
            assert results[rank][name, mode, tp] == formula(ALL[name], mode, tp), (rank, tp)


def test_regathered_is_all_divided_by_tp_and_plain_tensor_parallel_is_not(results):
    """But for the causal mask, which every rank has all of."""
    mask = WIDE.seq_len**2
    one = results[0]["wide", "one process", 1] - mask
    for tp in (2, 4):
        assert results[0]["wide", "regathered", tp] - mask == one // tp
        assert (
            results[0]["wide", "tensor", tp] > results[0]["wide", "sequence", tp] > one // tp + mask
        )


def test_it_is_34_sbh_in_two_bytes():
    """The formula's terms, a block of F = 4D: 32 of the 34 bytes per token and hidden number, 2 are
    dropout's masks."""
    shape, tokens = WIDE, B * WIDE.seq_len
    heads = ELEMENT * B * shape.n_heads * shape.seq_len**2
    extras = ELEMENT * 4 * tokens + shape.seq_len**2 + heads
    assert (formula(shape, "one process", 1) - extras) * 2 / ELEMENT == 32 * tokens * shape.hidden
    for tp in (2, 4):
        without = (
            formula(shape, "tensor", tp) - ELEMENT * 4 * tokens - shape.seq_len**2 - heads // tp
        )
        # 10 + 24/t, less two masks
        assert without * 2 / ELEMENT == (8 + 24 / tp) * tokens * shape.hidden


def test_the_loss_keeps_its_share_of_the_probabilities(results):
    """p of V/tp words, and where the target is: an int64 and a bool."""
    for members, tp in SIZES.items():
        for rank in members:
            assert results[rank]["loss", tp] == B * 16 * (400 // tp * ELEMENT + 8 + 1)
