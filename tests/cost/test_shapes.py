"""Model shapes give the parameters and the operations per token that their makers print."""

import json

import pytest

from lib.cost.shapes import known, load, shape

PUBLISHED = {  # billions of parameters, as the models' reports give them
    "gpt-3-175b": 175, "gpt-1t": 1008, "llama3-8b": 8.03, "llama3-70b": 70.6, "llama3-405b": 405.9,
    "llama2-7b": 6.74,
    "llama2-13b": 13.0, "llama2-70b": 69.0, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235,
    "deepseek-v3": 671,
    "gpt-oss-120b": 116.8, "moonlight-16b": 16,
}  # fmt: skip
ACTIVE = {"qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22, "deepseek-v3": 37, "gpt-oss-120b": 5.1}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_known_models(name):
    assert load(name).parameters == pytest.approx(PUBLISHED[name] * 1e9, rel=0.012)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_of_mixtures(name):
    model = load(name)
    # reports round, some with both embeddings
    assert model.active_parameters == pytest.approx(ACTIVE[name] * 1e9, rel=0.09)
    assert model.active_parameters < model.parameters


@pytest.mark.parametrize(
    ("name", "seq", "causal", "gflop"),
    [
        ("llama3-8b", 8192, False, 57.9),  # NeMo 24.07: 711 TFLOP/s at 12273 tokens/s
        ("llama3-8b", 8192, True, 51.5),  # Megatron-Bridge
        ("llama2-7b", 4096, False, 46.1),
        ("llama3-70b", 8192, True, 449.2),
        ("llama3-405b", 8192, True, 2524),
        ("qwen3-30b-a3b", 4096, True, 23.0),
        ("qwen3-235b-a22b", 4096, True, 148.0),
        ("gpt-oss-120b", 4096, True, 32.6),
        ("deepseek-v3", 4096, True, 249.1),  # without the layer that predicts a second token
    ],
)
def test_operations_per_token_are_those_of_tables_that_print_both_rates(name, seq, causal, gflop):
    assert load(name, seq).flops_per_token(causal) == pytest.approx(gflop * 1e9, rel=0.006)


def test_the_paper_s_formula_for_gpt():
    """Narayanan et al. 2021: P = 12 L h^2 (1 + 13/12h + (V+s)/12Lh); without biases and positions
    12 L h^2 + V h."""
    gpt = shape("x", layers=24, hidden=2048, heads=16, vocab=50000, seq=1024)
    assert gpt.parameters == 12 * 24 * 2048**2 + 4 * 24 * 2048 + 50000 * 2048
    # 72 L h^2 (1 + s/6h + V/12Lh) per token: Korthikanti et al. 2022, equation 7
    formula = 72 * 24 * 2048**2 * (1 + 1024 / (6 * 2048) + 50000 / (12 * 24 * 2048))
    assert gpt.flops_per_token() == pytest.approx(formula, rel=1e-3)


def test_grouped_queries_and_swiglu():
    model = load("llama3-8b")
    assert model.attention_matrices() == [(4096, (32 + 2 * 8) * 128), (4096, 4096)]
    assert model.expert_parameters == 3 * 4096 * 14336
    assert not model.tied and model.gated


def test_a_model_from_a_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"layers": 4, "hidden": 128, "heads": 4, "vocab": 1000, "seq": 64}))
    mine = load(str(path), seq=32)
    assert (mine.name, mine.seq, mine.ffn, mine.gated) == ("mine", 32, 512, False)
    path.write_text(json.dumps({"layers": 4, "hidden": 128}))
    with pytest.raises(ValueError, match="lacks heads, seq, vocab"):
        load(str(path))
    with pytest.raises(ValueError, match="no model 'gpt-5': there are gpt-3-175b, "):
        load("gpt-5")


def test_every_known_model_has_positive_sizes():
    for model in known().values():
        assert (
            min(
                model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.vocab
            )
            > 0
        )
        assert model.heads % model.kv_heads == 0 and model.topk <= model.experts
