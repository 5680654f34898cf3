"""The GPT is causal, tied, correct in its gradients, and the same wherever it is built."""

import math

import pytest
import torch

from lib.training.model import GPT, Shape, causal_attention, cross_entropy, merge_heads, split_heads

SHAPE = Shape(vocab_size=11, seq_len=8, n_layers=2, hidden=12, n_heads=4)
GROUPED = Shape(
    vocab_size=11, seq_len=8, n_layers=2, hidden=12, n_heads=4, n_kv_heads=2, mlp_hidden=20
)


def tokens_and_targets(shape, batch=3, seed=1):
    g = torch.Generator().manual_seed(seed)
    both = torch.randint(shape.vocab_size, (2, batch, shape.seq_len), generator=g)
    return both[0], both[1]


@pytest.mark.parametrize("shape", [SHAPE, GROUPED])
def test_every_part_keeps_its_promised_shape(shape):
    model = GPT(shape)
    tokens, _ = tokens_and_targets(shape)
    x = model.embedding(tokens)
    assert x.shape == (3, 8, 12)
    assert (
        model.blocks[0](x).shape
        == model.blocks[0].attention(x).shape
        == model.blocks[0].mlp(x).shape
        == (3, 8, 12)
    )
    assert model(tokens).shape == (3, 8, 11)
    assert model(tokens[:, :5]).shape == (3, 5, 11)


def test_the_parts_in_sequence_are_the_model():
    """What a pipeline does: embedding, blocks, norm and head, run one after the other."""
    model = GPT(SHAPE)
    tokens, _ = tokens_and_targets(SHAPE)
    stages = torch.nn.Sequential(model.embedding, *model.blocks, model.norm, model.head)
    assert torch.equal(stages(tokens), model(tokens))


@pytest.mark.parametrize("changed", [0, 3, 7])
def test_a_later_token_does_not_change_earlier_logits(changed):
    model = GPT(SHAPE).double()
    tokens, _ = tokens_and_targets(SHAPE)
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % SHAPE.vocab_size
    before, after = model(tokens), model(other)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert (
        (before[:, changed:] - after[:, changed:]).abs().amax(-1) > 1e-6
    ).all()  # and every later position sees it


def test_attention_is_softmax_over_the_tokens_up_to_each():
    """Against the sums written one token at a time."""
    g = torch.Generator().manual_seed(0)
    # each (B=2, H=4, T=5, d=3)
    q, k, v = torch.randn(3, 2, 4, 5, 3, dtype=torch.float64, generator=g)
    got = causal_attention(q, k, v)
    for t in range(5):
        scores = torch.einsum("bhd,bhsd->bhs", q[:, :, t], k[:, :, : t + 1]) / math.sqrt(3)
        expected = torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), v[:, :, : t + 1])
        torch.testing.assert_close(got[:, :, t], expected, rtol=1e-12, atol=1e-12)


def test_heads_are_columns():
    x = torch.arange(24.0).view(1, 2, 12)  # (B, T, heads * d)
    heads = split_heads(x, 3)
    assert torch.equal(heads[:, 1], x[..., 3:6])
    assert torch.equal(merge_heads(heads), x)


def test_half_of_the_heads_on_half_of_the_columns_is_half_of_attention():
    """What a tensor-parallel rank does, by slices alone; the two partial outputs add up,
    the bias enters once."""
    attention = GPT(GROUPED).double().blocks[0].attention
    x = torch.randn(2, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    partial = []
    for rank in range(2):
        heads = []
        for linear in (attention.q, attention.k, attention.v):
            rows = slice(rank * linear.out_features // 2, (rank + 1) * linear.out_features // 2)
            heads.append(
                split_heads(x @ linear.weight[rows].T + linear.bias[rows], attention.head_dim)
            )
        mine = merge_heads(causal_attention(*heads))
        partial.append(mine @ attention.out.weight[:, rank * 6 : (rank + 1) * 6].T)
    torch.testing.assert_close(
        partial[0] + partial[1] + attention.out.bias, attention(x), rtol=1e-12, atol=1e-12
    )


def test_embedding_and_head_share_one_weight_and_its_gradient_sums_both_uses():
    model = GPT(SHAPE).double()
    tokens, targets = tokens_and_targets(SHAPE)
    assert model.head.weight.data_ptr() == model.embedding.token.weight.data_ptr()
    model.loss(tokens, targets).backward()
    tied = model.embedding.token.weight.grad.clone()

    untied = GPT(SHAPE).double()
    untied.head.weight = torch.nn.Parameter(untied.head.weight.detach().clone())
    untied.loss(tokens, targets).backward()
    both = untied.embedding.token.weight.grad, untied.head.weight.grad
    assert all(g.abs().max() > 1e-3 for g in both)
    torch.testing.assert_close(tied, both[0] + both[1], rtol=1e-12, atol=1e-14)


def test_tying_outlives_a_state_dict_and_a_dtype():
    model = GPT(SHAPE).double()
    model.load_state_dict(GPT(SHAPE, seed=5).state_dict())
    assert model.head.weight is model.embedding.token.weight


def test_the_model_is_built_on_the_default_device():
    """On a rank with a GPU that is the GPU; here "meta" stands in for it."""
    with torch.device("meta"):
        model = GPT(SHAPE)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert model.head.weight is model.embedding.token.weight
    assert model.num_parameters() == GPT(SHAPE).num_parameters()


def test_as_many_kv_heads_as_heads_is_plain_attention():
    plain, grouped = GPT(SHAPE), GPT(Shape(11, 8, 2, 12, n_heads=4, n_kv_heads=4))
    tokens, _ = tokens_and_targets(SHAPE)
    assert SHAPE.n_kv_heads == 4
    assert torch.equal(plain(tokens), grouped(tokens))


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_grouped_query_attention_is_plain_attention_with_k_and_v_repeated(n_kv_heads):
    shape = Shape(11, 8, 2, 12, n_heads=4, n_kv_heads=n_kv_heads)
    grouped, plain = GPT(shape, seed=2).double(), GPT(SHAPE).double()
    state = grouped.state_dict()
    for name, value in state.items():
        if ".k." in name or ".v." in name:
            per_head = value.unflatten(0, (n_kv_heads, 3))  # (K, d, ...)
            state[name] = per_head.repeat_interleave(4 // n_kv_heads, dim=0).flatten(0, 1)
    plain.load_state_dict(state)
    tokens, targets = tokens_and_targets(SHAPE)
    torch.testing.assert_close(grouped(tokens), plain(tokens), rtol=1e-12, atol=1e-12)

    # and the gradient of a shared head is the sum over the heads it serves
    grouped.loss(tokens, targets).backward()
    plain.loss(tokens, targets).backward()
    repeated = (
        plain.blocks[0]
        .attention.v.weight.grad.unflatten(0, (n_kv_heads, 4 // n_kv_heads, 3))
        .sum(1)
        .flatten(0, 1)
    )
    torch.testing.assert_close(
        grouped.blocks[0].attention.v.weight.grad, repeated, rtol=1e-10, atol=1e-14
    )


@pytest.mark.parametrize(
    "shape", [SHAPE, GROUPED, Shape(101, 16, 3, 24, 6, n_kv_heads=2, mlp_hidden=50)]
)
def test_number_of_parameters_is_the_formula(shape):
    V, T, L, D, F = shape.vocab_size, shape.seq_len, shape.n_layers, shape.hidden, shape.mlp_hidden
    Kd = shape.n_kv_heads * D // shape.n_heads
    block = 2 * D * (D + 1) + 2 * Kd * (D + 1) + 2 * D * F + F + D + 4 * D
    assert GPT(shape).num_parameters() == V * D + T * D + L * block + 2 * D


def test_the_untrained_model_knows_nothing():
    """Its loss is that of a uniform guess, ln V."""
    shape = Shape(vocab_size=100, seq_len=32, n_layers=4, hidden=64, n_heads=4)
    tokens, targets = tokens_and_targets(shape, batch=8)
    with torch.no_grad():
        assert GPT(shape).loss(tokens, targets).item() == pytest.approx(math.log(100), abs=0.05)


def test_gradients_are_finite_differences():
    """One element of every kind of parameter, float64, central differences."""
    model = GPT(GROUPED).double()
    tokens, targets = tokens_and_targets(GROUPED)
    model.loss(tokens, targets).backward()
    checked = 0
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.1"):
            continue
        # the element with the largest gradient: the difference is then far above rounding
        i = parameter.grad.abs().argmax()
        flat, h = parameter.data.view(-1), 1e-5
        value = flat[i].item()
        ends = []
        for moved in (value + h, value - h):
            flat[i] = moved
            with torch.no_grad():
                ends.append(model.loss(tokens, targets).item())
        flat[i] = value
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(
            parameter.grad.view(-1)[i].item(), rel=1e-5, abs=1e-9
        ), name
        checked += 1
    assert checked == 2 + 16 + 2  # embeddings, one block, the last norm


def test_one_seed_is_one_model_and_the_global_random_state_is_left_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = GPT(SHAPE, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    second, other = GPT(SHAPE, seed=7), GPT(SHAPE, seed=8)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_initialisation_is_gpt2s():
    model = GPT(Shape(vocab_size=200, seq_len=64, n_layers=8, hidden=128, n_heads=4))
    block = model.blocks[3]
    for linear in (block.attention.q, block.attention.k, block.attention.v, block.mlp.up):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for linear in (block.attention.out, block.mlp.down):
        assert linear.weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * 8), rel=0.05)
    assert model.embedding.token.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert all(not p.any() for name, p in model.named_parameters() if name.endswith("bias"))
    assert all(
        (p == 1).all()
        for name, p in model.named_parameters()
        if "norm" in name and name.endswith("weight")
    )


def test_dropout_works_in_training_only():
    shape = Shape(11, 8, 2, 12, n_heads=4, dropout=0.5)
    model = GPT(shape)
    tokens, _ = tokens_and_targets(shape)
    torch.manual_seed(0)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), GPT(SHAPE)(tokens))


def test_the_sum_of_losses_is_the_mean_times_the_number_of_tokens():
    model = GPT(SHAPE).double()
    tokens, targets = tokens_and_targets(SHAPE)
    mean, total = model.loss(tokens, targets), model.loss(tokens, targets, "sum")
    assert total.item() == pytest.approx(mean.item() * 24, rel=1e-12)
    p = model(tokens).softmax(-1).gather(-1, targets[..., None])
    assert mean.item() == pytest.approx(-p.log().mean().item(), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_heads": 5}, r"hidden 12 / n_heads 5 is not whole: use hidden 15"),
        ({"n_kv_heads": 3}, r"n_heads 4 / n_kv_heads 3 is not whole"),
        ({"n_kv_heads": 0}, r"n_kv_heads is 0: .* use 1 or more"),
        ({"n_layers": 0}, r"n_layers is 0"),
        ({"dropout": 1.0}, r"dropout is 1.0"),
    ],
)
def test_impossible_shapes_name_their_numbers(change, says):
    fields = {"vocab_size": 11, "seq_len": 8, "n_layers": 2, "hidden": 12, "n_heads": 4}
    with pytest.raises(ValueError, match=says):
        Shape(**{**fields, **change})


def test_wrong_inputs_name_their_numbers():
    model = GPT(SHAPE)
    with pytest.raises(
        ValueError, match=r"a sequence of 9 tokens, the model has 8 positions: use seq_len=9"
    ):
        model(torch.zeros(1, 9, dtype=torch.int64))
    with pytest.raises(
        ValueError, match=r"logits \(3, 8, 11\) want targets \(3, 8\), got \(3, 7\)"
    ):
        cross_entropy(torch.zeros(3, 8, 11), torch.zeros(3, 7, dtype=torch.int64))
