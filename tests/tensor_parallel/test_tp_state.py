"""Cutting and merging: a checkpoint of any tp loads at any other; sizes that do not divide
say which would."""

import pytest
import torch
import torch.distributed as dist
from parallels import MODES, SHAPES, batch, differences, gpt, groups

from lib import launch
from lib.pipeline.split import split_gpt
from lib.tensor_parallel import (
    merge_state_dicts,
    parallel_gpt,
    plain_gpt,
    sequence_parallel_gpt,
    split_dim,
    split_state_dict,
)
from lib.tensor_parallel.shards import divide
from lib.training.model import GPT, Shape

SHAPE = SHAPES["grouped-query"]
WRONG = {
    "n_heads": Shape(vocab_size=12, seq_len=8, n_layers=1, hidden=12, n_heads=6),
    "n_kv_heads": Shape(vocab_size=12, seq_len=8, n_layers=1, hidden=8, n_heads=8, n_kv_heads=2),
    "mlp_hidden": Shape(vocab_size=12, seq_len=8, n_layers=1, hidden=8, n_heads=4, mlp_hidden=10),
    "vocab_size": Shape(vocab_size=103, seq_len=8, n_layers=1, hidden=8, n_heads=4),
}


def test_merge_undoes_split_for_every_tp_and_names_what_is_not_cut():
    state = gpt(SHAPE).state_dict()
    for tp in (1, 2, 4):
        parts = [split_state_dict(state, rank, tp) for rank in range(tp)]
        merged = merge_state_dicts(parts)
        assert merged.keys() == state.keys() and all(
            torch.equal(merged[n], t) for n, t in state.items()
        )
        for part in parts:
            for name, tensor in part.items():
                cut = 1 if split_dim(name) is None else tp
                assert tensor.numel() == state[name].numel() // cut
    whole = {name for name in state if split_dim(name) is None}
    ends = {n.split(".", 2)[-1] if n.startswith("blocks") else n for n in whole}
    assert ends == {
        "embedding.position.weight", "norm.weight", "norm.bias", "norm1.weight", "norm1.bias",
        "norm2.weight", "norm2.bias", "attention.out.bias", "mlp.down.bias",
    }  # fmt: skip


def test_from_two_ranks_to_four():
    state = gpt(SHAPE).state_dict()
    of_two = [split_state_dict(state, rank, 2) for rank in range(2)]
    of_four = [split_state_dict(merge_state_dicts(of_two), rank, 4) for rank in range(4)]
    assert all(torch.equal(t, split_state_dict(state, 3, 4)[n]) for n, t in of_four[3].items())


def test_a_fused_weight_is_split_part_by_part_and_merged_again():
    fused = {"qkv.weight": (8, 4, 4), "gate_up.bias": (6, 6)}
    state = {
        "blocks.0.attention.qkv.weight": torch.randn(16, 8),
        "blocks.0.mlp.gate_up.bias": torch.randn(12),
        "blocks.0.norm1.weight": torch.randn(8),
    }
    q, k, v = state["blocks.0.attention.qkv.weight"].split((8, 4, 4))
    parts = [split_state_dict(state, rank, 2, fused) for rank in range(2)]
    want = torch.cat([q[4:], k[2:], v[2:]])
    assert torch.equal(parts[1]["blocks.0.attention.qkv.weight"], want)
    merged = merge_state_dicts(parts, fused)
    assert all(torch.equal(merged[name], tensor) for name, tensor in state.items())
    with pytest.raises(ValueError, match=r"dim 0 of blocks.0.attention.qkv.weight 4 over tp=8"):
        split_state_dict(state, 0, 8, fused)  # 8 divides the 16 rows, and q's 8, but not k's 4


def test_parts_are_copies():
    state = gpt(SHAPE).state_dict()
    part = split_state_dict(state, 0, 2)
    for tensor in part.values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, (
            "a view would keep the whole alive, and save it"
        )
        tensor.zero_()
    assert all(torch.equal(t, gpt(SHAPE).state_dict()[n]) for n, t in state.items())


def test_what_is_not_the_same_on_all_ranks_is_an_error_that_names_it():
    parts = [split_state_dict(gpt(SHAPE).state_dict(), rank, 2) for rank in range(2)]
    parts[1]["blocks.1.norm2.bias"] += 1e-15
    with pytest.raises(
        ValueError,
        match=r"blocks.1.norm2.bias is replicated, but rank 1's copy differs.*sum_gradients",
    ):
        merge_state_dicts(parts)
    del parts[1]["norm.bias"]
    with pytest.raises(ValueError, match=r"ranks 0 and 1 differ in their names: \['norm.bias'\]"):
        merge_state_dicts(parts)
    with pytest.raises(
        ValueError,
        match=r"dim 0 of embedding.token.weight 20 over tp=3.*use .* 18 or 21, or tp=1, 2",
    ):
        split_state_dict(gpt(SHAPE).state_dict(), 0, 3)


@pytest.mark.parametrize(
    ("n", "tp", "advice"),
    [
        (103, 2, "vocab_size 103 over tp=2 ranks is not whole: use vocab_size 102 or 104, or tp=1"),
        (2, 4, "vocab_size 2 over tp=4 ranks is not whole: use vocab_size 4, or tp=1 or 2"),
        (
            20,
            8,
            "vocab_size 20 over tp=8 ranks is not whole: use vocab_size 16 or 24, or tp=1, 2, 4, "
            "5, 10 or 20",
        ),
    ],
)
def test_sizes_that_do_not_divide_name_those_that_would(n, tp, advice):
    with pytest.raises(ValueError) as error:
        divide(n, tp, "vocab_size")
    assert str(error.value) == advice
    assert divide(104, 4, "vocab_size") == 26


# On ranks.


def adam(parallel, steps, sum_gradients=None):
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01, eps=1e-3)
    for number in range(steps):
        optimizer.zero_grad()
        parallel.loss(*batch(SHAPE, number)).backward()
        if sum_gradients:
            sum_gradients()
        optimizer.step()
    averages = {n: optimizer.state[p]["exp_avg"].clone() for n, p in parallel.named_parameters()}
    return averages, {n: t.clone() for n, t in parallel.state_dict().items()}


def errors():
    said = {}
    for what, shape in WRONG.items():
        try:
            parallel_gpt(GPT(shape))
        except ValueError as error:
            said[what] = str(error)
    model = sequence_parallel_gpt(gpt(SHAPE))
    for what, length in (("length", 6), ("too long", 12)):
        try:
            model(batch(SHAPE, 0, length)[0])
        except ValueError as error:
            said[what] = str(error)
    return said


def everything():
    made = groups()
    pair, rank = made[0, 1], dist.get_rank()
    seen = {"errors": errors()}
    # cut by the layers as by `split_state_dict`, to the bit, seed by seed; and the plain model
    # stays as it was
    for mode, make in MODES.items():
        for tied in (True, False):
            plain = gpt(SHAPE, tied)
            parallel = make(plain)
            want = split_state_dict(plain.state_dict(), rank, 4)
            got = {name: tensor.clone() for name, tensor in parallel.state_dict().items()}
            with torch.no_grad():
                for parameter in parallel.parameters():
                    parameter.zero_()  # its own memory: the plain model must not notice
            seen["initialised", mode, tied] = (
                list(got) == list(want),
                all(torch.equal(got[n], t) for n, t in want.items()),
                parallel.head.weight is parallel.embedding.token.weight,
                all(
                    torch.equal(a, b)
                    for a, b in zip(plain.parameters(), gpt(SHAPE, tied).parameters(), strict=True)
                ),
                sum(p.numel() for p in parallel.parameters()),
            )
    parallel.eval()
    seen["training"] = plain.training, plain.blocks[0].mlp.dropout.training
    # the checkpoint of two ranks, continued on four
    if rank < 2:
        first = parallel_gpt(gpt(SHAPE), pair)
        seen["two ranks"] = adam(first, 2)
    model = sequence_parallel_gpt(gpt(SHAPE))
    seen["four ranks"] = adam(model, 2, model.sum_gradients)
    seen["plain again"] = plain_gpt(model).state_dict()
    # a pipeline cuts it between blocks, as it cuts the plain one
    stages = split_gpt(parallel_gpt(gpt(SHAPE)), [range(1), range(1, 2)])
    tokens, _ = batch(SHAPE, 0)
    seen["stages"] = stages[1](stages[0](tokens)).detach()
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240, ledger=False)


@pytest.mark.parametrize("mode", MODES)
def test_the_numbers_are_the_plain_model_s_part_by_part(results, mode):
    for seen in results:
        for tied in (True, False):
            *right, size = seen["initialised", mode, tied]
            assert right == [True, True, tied, True]
            names = gpt(SHAPE, tied).named_parameters()
            assert size == sum(p.numel() // (1 if split_dim(n) is None else 4) for n, p in names)
        assert seen["training"] == (True, True), (
            "eval() of the parallel model is none of the plain one's business"
        )


def test_two_steps_of_adam_end_alike_on_one_two_and_four_ranks_averages_included(results):
    averages, want = adam(gpt(SHAPE), 2)
    for key, ranks in (("two ranks", 2), ("four ranks", 4)):
        of_ranks, states = zip(*(results[rank][key] for rank in range(ranks)), strict=True)
        assert not differences(merge_state_dicts(states), want, 1e-11)
        assert not differences(merge_state_dicts(of_ranks), averages, 1e-11)


def test_plain_gpt_gathers_what_merge_merges(results):
    merged = merge_state_dicts([results[rank]["four ranks"][1] for rank in range(4)])
    for seen in results:
        assert all(torch.equal(seen["plain again"][n], t) for n, t in merged.items())


def test_a_pipeline_cuts_it_between_blocks(results):
    logits = torch.cat([seen["stages"] for seen in results], -1)
    assert not differences({"logits": logits}, {"logits": gpt(SHAPE)(batch(SHAPE, 0)[0]).detach()})


def test_a_model_that_does_not_divide_is_an_error_on_every_rank(results):
    for seen in results:
        said = seen["errors"]
        assert (
            "n_heads 6 over tp=4 ranks is not whole: use n_heads 4 or 8, or tp=1, 2, 3 or 6"
            in said["n_heads"]
        )
        assert (
            "n_kv_heads 2 over tp=4 ranks is not whole: use n_kv_heads 4, or tp=1 or 2"
            in said["n_kv_heads"]
        )
        assert (
            "mlp_hidden 10 over tp=4 ranks is not whole: use mlp_hidden 8 or 12"
            in said["mlp_hidden"]
        )
        assert "use vocab_size 100 or 104, or tp=1" in said["vocab_size"]
        assert "the sequence's length 6 over tp=4 ranks is not whole" in said["length"]
        assert (
            "a sequence of 12 tokens, the model has 8 positions: use seq_len=12" in said["too long"]
        )
