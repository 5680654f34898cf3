"""Balance: the losses are the formulas, their gradients the ones meant, and each way does
balance a router."""

import math

import pytest
import torch

from lib.moe import (
    ExpertBiasGate,
    SigmoidExpertBiasGate,
    auxiliary_loss,
    load,
    switch_gate,
    top_k_indices,
    z_loss,
)


def draw(seed, *shape, dtype=torch.float64):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=dtype)


def test_the_auxiliary_loss_by_hand():
    p = torch.tensor(
        [[0.7, 0.2, 0.1], [0.6, 0.1, 0.3], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1]], dtype=torch.float64
    )
    # f = 3/4, 1/4, 0; P = 1.9/4, 1.5/4, .6/4:  3 (3 * 1.9 + 1 * 1.5) / 16
    assert abs(auxiliary_loss(p, p.argmax(1)).item() - 1.35) < 1e-15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_auxiliary_loss_is_one_when_even_and_E_when_one_has_all(dtype):
    n_experts = 6
    p = torch.eye(n_experts, dtype=dtype).repeat(4, 1)
    even = auxiliary_loss(p, p.argmax(1))
    assert even.dtype == dtype and even.shape == () and abs(even.item() - 1) < 1e-6
    assert (
        auxiliary_loss(p[:1].repeat(24, 1), torch.zeros(24, dtype=torch.int64)).item() == n_experts
    )
    assert auxiliary_loss(p[:0], p[:0].argmax(1)).item() == 0  # a set of no tokens


def test_f_is_a_price_and_has_no_gradient():
    logits = draw(1, 30, 5).requires_grad_()
    p = logits.softmax(-1).detach().requires_grad_()
    auxiliary_loss(p, p.argmax(1)).backward()
    f = load(p.argmax(1), 5).double() / 30
    # dL/dp_te = E f_e / n, the same for every token
    want = (5 * f / 30).expand(30, 5)
    assert torch.allclose(p.grad, want, rtol=0, atol=1e-16)
    assert torch.autograd.gradcheck(
        lambda z: auxiliary_loss(z.softmax(-1), top_k_indices(z, 1)[:, 0]), logits
    )


def test_f_is_as_exact_as_the_probabilities():
    p = draw(2, 7, 3).softmax(-1)
    first = p.argmax(1)
    want = 3 * sum((first == e).double().mean() * p[:, e].mean() for e in range(3))
    assert abs(auxiliary_loss(p, first) - want) < 1e-15  # a float32 f would be off by 1e-8


def test_the_z_loss_by_hand():
    assert abs(z_loss(torch.zeros(4, 8, dtype=torch.float64)).item() - math.log(8) ** 2) < 1e-14
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 5.0]], dtype=torch.float64)
    sums = [math.log(sum(math.exp(z) for z in row)) for row in logits.tolist()]
    assert abs(z_loss(logits).item() - (sums[0] ** 2 + sums[1] ** 2) / 2) < 1e-13
    assert z_loss(logits[:0]).item() == 0
    assert torch.isfinite(z_loss(torch.full((2, 3), 1e4)))  # exp would overflow
    assert torch.autograd.gradcheck(z_loss, logits.requires_grad_())


def train(auxiliary, z, steps=100):
    """A router of tokens that all lean to expert 0, trained on the two losses alone: (largest
    share, z-loss), after."""
    x, n_experts = draw(3, 256, 8), 4
    x[:, 0] = x[:, 0].abs() + 1
    router = torch.nn.Linear(8, n_experts, bias=False, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        router.weight.copy_(0.3 * draw(4, n_experts, 8))
        router.weight[0, 0] = 3.0  # expert 0 is everyone's first
    for _ in range(steps):
        logits = router(x)
        choice = switch_gate(logits)
        loss = auxiliary * auxiliary_loss(choice.probabilities, choice.experts[:, 0]) + z * z_loss(
            logits
        )
        (gradient,) = torch.autograd.grad(loss, router.weight)
        with torch.no_grad():
            router.weight -= 0.1 * gradient / (gradient.norm() + 1e-12)
    return (load(choice.experts, n_experts).max() / len(x)).item(), z_loss(logits).item()


def test_the_auxiliary_loss_balances_a_router():
    alone, _ = train(0.0, 0.0, steps=1)
    balanced, _ = train(1.0, 0.0)
    assert alone > 0.9 and balanced < 0.45  # even would be 0.25


def test_the_z_loss_shrinks_the_logits():
    assert train(0.0, 1.0)[1] < 0.3 * train(0.0, 0.0, steps=1)[1]


# ---- a bias, and no loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bias_picks_and_weighs_nothing(dtype):
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]], dtype=dtype)
    logits = p.log().requires_grad_()
    gate = ExpertBiasGate(4, k=2)
    assert gate(logits).experts.tolist() == [[0, 1], [3, 2]]
    # p + b: .10 .30 .25 .05 and -.3 .2 .4 .4
    gate.expert_bias += torch.tensor([-0.4, 0.0, 0.1, 0.0])
    choice = gate(logits)
    assert choice.experts.tolist()[0] == [1, 2] and set(choice.experts.tolist()[1]) == {2, 3}
    assert torch.equal(choice.weights, choice.probabilities.gather(1, choice.experts))
    assert torch.allclose(choice.weights[0], p[0, [1, 2]]) and choice.weights.dtype == dtype
    choice.weights.sum().backward()
    assert logits.grad.abs().max() > 0 and not gate.expert_bias.requires_grad
    assert list(gate.parameters()) == [] and list(gate.state_dict()) == ["expert_bias"]


def test_an_update_by_hand():
    gate = ExpertBiasGate(4, k=1, update_rate=0.5)
    gate.update(torch.tensor([10, 0, 3, 3]))  # the mean is 4
    assert gate.expert_bias.tolist() == [-0.5, 0.5, 0.5, 0.5]
    gate.update(torch.tensor([4, 4, 8, 0]))  # who has exactly the share stays
    assert gate.expert_bias.tolist() == [-0.5, 0.5, 0.0, 1.0]


def test_the_bias_balances_without_touching_the_router():
    n, n_experts = 512, 8
    logits = draw(5, n, n_experts) + torch.linspace(
        2, -2, n_experts, dtype=torch.float64, device="cpu"
    )
    gate = ExpertBiasGate(n_experts, k=2, update_rate=0.003)
    # 1 is even
    share = lambda: load(gate(logits).experts, n_experts).double() / (2 * n / n_experts)
    assert share().max() > 2 and share().min() < 0.25
    for _ in range(300):
        gate.update(load(gate(logits).experts, n_experts))
    assert share().max() < 1.25 and share().min() > 0.75


def test_sigmoid_gates_by_hand():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    gate = SigmoidExpertBiasGate(4, k=2)
    s = logits.detach().sigmoid()[0]  # .88 .73 .50 .27
    choice = gate(logits)
    assert choice.experts.tolist() == [[0, 1]]
    assert torch.allclose(choice.weights[0], s[:2] / (s[0] + s[1]))
    assert torch.allclose(choice.probabilities[0], s / s.sum())
    # s + b: .48 .73 .60 .27: the bias picks, and weighs nothing
    gate.expert_bias += torch.tensor([-0.4, 0.0, 0.1, 0.0])
    choice = gate(logits)
    assert choice.experts.tolist() == [[1, 2]]
    assert torch.allclose(choice.weights[0], s[1:3] / (s[1] + s[2]))
    choice.weights[0, 0].backward()
    assert logits.grad[0, 1] > 0 > logits.grad[0, 2] and logits.grad[0, 0] == logits.grad[0, 3] == 0
    gate.update(torch.tensor([0, 4, 4, 0]))
    assert torch.allclose(gate.expert_bias, torch.tensor([-0.399, -0.001, 0.099, 0.001]))
