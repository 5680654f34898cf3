"""Backward in two halves, without a rank."""

import pytest
import torch
from pipelines import CASES, cut
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib.pipeline.stage import Stage


def halves(name):
    """(stage, x, gradient of y): the middle stage of three, its forward done for micro-batch 0."""
    case = CASES[name]
    stages, x = cut(case, 3)[1], case.batch(3)[0]
    x = stages[0](x).detach()
    stage = Stage(stages[1], is_first=False)
    grad = torch.randn(
        stages[1](x).shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return stage, x, grad


def count(fn):
    with FlopCounterMode(display=False) as counter:
        fn()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["gpt", "layers"])
def test_i_and_w_together_do_the_products_of_b_and_none_twice(name):
    stage, x, grad = halves(name)
    stage.forward(0, x, splits=False)
    whole = count(lambda: stage.backward(0, grad))
    stage.forward(0, x, splits=True)
    first, second = (
        count(lambda: stage.input_gradient(0, grad)),
        count(lambda: stage.weight_gradients(0)),
    )
    assert first + second == whole and second > 0.3 * whole


@pytest.mark.parametrize("name", ["gpt", "layers"])
def test_i_gives_the_gradient_of_the_input_and_w_those_of_the_matrix_products(name):
    stage, x, grad = halves(name)
    stage.forward(0, x, splits=False)
    grad_x = stage.backward(0, grad)
    whole = {n: p.grad for n, p in stage.module.named_parameters()}
    stage.module.zero_grad()

    calls, linears = (
        [],
        [m for m in stage.module.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad],
    )
    for linear in linears:
        linear.weight.register_post_accumulate_grad_hook(calls.append)
    stage.forward(0, x, splits=True)
    torch.testing.assert_close(stage.input_gradient(0, grad), grad_x, rtol=1e-13, atol=1e-15)
    late = {id(p) for linear in linears for p in linear.parameters()}
    after_i = {n: p.grad for n, p in stage.module.named_parameters()}
    for n, p in stage.module.named_parameters():
        assert (after_i[n] is None) == (id(p) in late or not p.requires_grad), n
    assert not calls and not stage.live
    stage.weight_gradients(0)
    for n, p in stage.module.named_parameters():
        torch.testing.assert_close(p.grad, whole[n], rtol=1e-12, atol=1e-14)
    assert {id(p) for p in calls} == {id(linear.weight) for linear in linears}, (
        "W calls the hooks of the weights"
    )
    assert not stage.held()


def test_a_shared_weight_and_a_computed_one_have_their_whole_gradient():
    """Used twice in F.linear and once outside; and a weight that is no leaf, which
    autograd has to see."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3, dtype=torch.float64) + 0.1)

        def forward(self, x):
            y = nn.functional.linear(
                nn.functional.linear(x, self.weight).tanh(), weight=self.weight
            )
            return nn.functional.linear(y, self.weight * 2) + x @ self.weight

    x, grad = (
        torch.randn(4, 3, generator=torch.Generator().manual_seed(s), dtype=torch.float64)
        for s in (0, 1)
    )
    grads = []
    for splits in (False, True):
        stage = Stage(Shared(), is_first=False)
        stage.forward(0, x, splits)
        if splits:
            stage.input_gradient(0, grad)
            stage.weight_gradients(0)
        else:
            stage.backward(0, grad)
        grads.append(stage.module.weight.grad)
    torch.testing.assert_close(*grads, rtol=1e-13, atol=0)


class UnderAutocast(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(x)


@pytest.mark.parametrize("bias", [True, False])
def test_autocast_inside_the_stage_gives_both_halves_what_one_backward_gives(bias):
    torch.manual_seed(0)
    layers = UnderAutocast(nn.Sequential(nn.Linear(4, 8, bias), nn.Tanh(), nn.Linear(8, 3, bias)))
    stage, x = Stage(layers, is_first=False), torch.randn(5, 4)
    grad = torch.randn(5, 3).bfloat16()

    stage.forward(0, x, splits=False)
    grad_x = stage.backward(0, grad)
    want = [p.grad for p in layers.parameters()]
    layers.zero_grad()

    assert stage.forward(0, x, splits=True).dtype == torch.bfloat16
    torch.testing.assert_close(stage.input_gradient(0, grad), grad_x, rtol=1e-2, atol=1e-3)
    assert all(p.grad is None for p in layers.parameters())
    stage.weight_gradients(0)
    for p, one in zip(layers.parameters(), want, strict=True):
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad, one, rtol=1e-2, atol=1e-3)
