"""The table of bytes per parameter is what torch really allocates, and gives the
published totals."""

import pytest
import torch
import torch.nn.functional as F

from lib.cost import RECIPES, model_state_bytes

PARAMETERS = 64 * 64 + 64


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def allocated(weight_dtype, gradient_dtype, master):
    """Train one layer for a step, and count the bytes that stay: weights, gradients, master copy,
    Adam's moments."""
    layer = torch.nn.Linear(64, 64).to(weight_dtype)
    weights = list(layer.parameters())
    loss = F.linear(torch.randn(8, 64, dtype=weight_dtype), *weights).square().mean()
    gradients = [g.to(gradient_dtype) for g in torch.autograd.grad(loss, weights)]
    trained = [w.detach().float().clone() for w in weights] if master else weights
    optimizer = torch.optim.Adam(trained)
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient.to(parameter.dtype)
    optimizer.step()
    moments = [
        state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
    ]
    return (
        bytes_of(weights)
        + bytes_of(gradients)
        + (bytes_of(trained) if master else 0)
        + bytes_of(moments)
    )


@pytest.mark.parametrize(
    ("precision", "weight_dtype", "gradient_dtype", "master"),
    [
        ("fp32", torch.float32, torch.float32, False),
        ("mixed", torch.bfloat16, torch.bfloat16, True),
        ("mixed, fp32 gradients", torch.bfloat16, torch.float32, True),
        ("bf16", torch.bfloat16, torch.bfloat16, False),
    ],
)
def test_the_table_is_what_torch_allocates(precision, weight_dtype, gradient_dtype, master):
    assert model_state_bytes(PARAMETERS, precision) == allocated(
        weight_dtype, gradient_dtype, master
    )


def test_every_recipe_is_measured_above():
    assert set(RECIPES) == {"fp32", "mixed", "mixed, fp32 gradients", "bf16"}


def test_published_totals():
    assert model_state_bytes(175_000_000_000, "mixed") == 2_800_000_000_000  # GPT-3
    assert model_state_bytes(7_500_000_000, "mixed") == 120_000_000_000  # ZeRO, figure 1, baseline
    # ZeRO, section 3.1: GPT-2 needs at least 24 GB
    assert model_state_bytes(1_500_000_000, "mixed") == 24_000_000_000


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 9), (torch.float16, 12)])
def test_an_update_below_that_share_of_its_weight_is_lost(dtype, bits):
    weights = 1 + torch.arange(2**7) / 2**7  # every bf16 number in [1, 2): fp16 has them too
    kept, lost = weights * 2.0**-bits * 2.01, weights * 2.0**-bits * 0.99
    assert torch.equal(weights.to(dtype) + lost.to(dtype), weights.to(dtype))
    assert (weights.to(dtype) + kept.to(dtype) != weights.to(dtype)).all()


def test_an_unknown_precision_is_named():
    with pytest.raises(
        ValueError, match="precision 'fp8' is not known: use one of 'fp32', 'mixed'"
    ):
        model_state_bytes(1, "fp8")
