"""Experts beside data parallelism: after `reduce_gradients` every rank has the gradients of the
mean of all losses."""

import functools

import pytest
import torch
import torch.distributed as dist
from moe_cases import D, differences, draw, expert, fill
from torch import nn

from lib import collectives, launch, ledger
from lib.moe import ExpertParallelMoE, MoE, expert_parameters, reduce_gradients, top_k_gate

W, STEPS = 4, 2
DEGREES = (1, 2, 4)  # ep; dp = W / ep
ROWS = (5, 5, 5, 5)
UNEQUAL = (7, 1, 4, 6)


class Net(nn.Module):
    """Dense layers around two moe_layers; `frozen` is not trained, `idle` is not used, one
    expert is frozen."""

    def __init__(self):
        super().__init__()
        gate = functools.partial(top_k_gate, k=2)
        self.first, self.frozen, self.idle, self.last = (nn.Linear(D, D) for _ in range(4))
        self.moe_layers = nn.ModuleList(
            MoE(D, [expert() for _ in range(4)], gate, factor=0.7) for _ in range(2)
        )
        fill(self.double(), 5)
        for part in (self.frozen, self.moe_layers[0].experts[2]):
            part.requires_grad_(False)

    def forward(self, x):
        x = self.frozen(self.first(x).tanh())
        for mixture in self.moe_layers:
            x = x + mixture(x)
        return self.last(x)

    def over(self, group):
        """Its part on this rank of the ep group."""
        self.moe_layers = nn.ModuleList(
            ExpertParallelMoE(mixture, group) for mixture in self.moe_layers
        )
        return self


def loss_of(net, r, step, rows):
    """Rank r's loss: the mean over its own tokens, and its own auxiliary losses."""
    loss = net(draw(100 * step + r, rows[r], D)).square().sum(-1).mean()
    return loss + 0.1 * sum(mixture.last.auxiliary for mixture in net.moe_layers)


def weighted(net, r, step, rows):
    """For the mean over all tokens where ranks have unequally many: W n_r / n of
    the rank's mean."""
    return loss_of(net, r, step, rows) * W * rows[r] / sum(rows)


def snapshot(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def train(net, loss, reduce):
    """[({name: gradient}, {name: parameter})] of STEPS steps of SGD. loss(net,
    step) runs backward too."""
    optimizer, steps = (
        torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05),
        [],
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(net, step)
        reduce(net)
        found = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        optimizer.step()
        steps.append((found, snapshot(net)))
    return steps


def one_process(of_rank, rows):
    """The mean of all ranks' losses, each set routed by itself."""

    def loss(net, step):
        for r in range(W):
            (of_rank(net, r, step, rows) / W).backward()

    return train(Net(), loss, lambda net: None)


def on_rank(of_rank, rows, ep_group, expert_dp_group, **how):
    def loss(net, step):
        of_rank(net, dist.get_rank(), step, rows).backward()

    return train(
        Net().over(ep_group), loss, lambda net: reduce_gradients(net, expert_dp_group, **how)
    )


def everything():
    results = {}
    for ep in DEGREES:
        groups = collectives.node_groups(ep)
        results["equal", ep] = on_rank(loss_of, ROWS, *groups)
        results["unequal", ep] = on_rank(weighted, UNEQUAL, *groups)
        net = Net().over(groups[0])
        loss_of(net, dist.get_rank(), 0, ROWS).backward()
        before = gradients_of_experts(net)
        ledger.mark(f"ep {ep}")
        reduce_gradients(net, groups[1], all_reduce=collectives.ring_all_reduce)
        ledger.mark("")
        results["before", ep] = before, gradients_of_experts(net)
        results["sizes", ep] = [
            sum(p.numel() for p in parameters if p.requires_grad)
            for parameters in (net.parameters(), expert_parameters(net))
        ]
        dense = nn.Linear(D, D).double()
        dense(draw(dist.get_rank(), 3, D)).sum().backward()
        reduce_gradients(dense, groups[1])  # no experts at all: plain data parallelism
        results["dense", ep] = dense.weight.grad
    return results


def gradients_of_experts(net):
    return {
        name: p.grad.clone()
        for name, p in net.named_parameters()
        if "experts" in name and p.grad is not None
    }


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=W, timeout=120)


def compare(on_ranks, want):
    for step, (right_gradients, right_parameters) in enumerate(want):
        for which, right in enumerate((right_gradients, right_parameters)):
            held = {}
            for seen in on_ranks:
                for name, tensor in seen[step][which].items():
                    assert torch.equal(held.setdefault(name, tensor), tensor), (
                        f"{name} differs between ranks"
                    )
            if which == 0:
                assert not held.pop("idle.weight").any() and not held.pop("idle.bias").any()
            wrong = differences(held, right)
            assert not wrong, f"step {step}, {('gradient', 'parameter')[which]}: " + "; ".join(
                wrong[:4]
            )


@pytest.mark.parametrize("ep", DEGREES)
def test_every_gradient_and_parameter_is_that_of_the_mean_loss_in_one_process(results, ep):
    compare([seen["equal", ep] for seen in results], one_process(loss_of, ROWS))


@pytest.mark.parametrize("ep", DEGREES)
def test_ranks_with_unequally_many_tokens_weigh_their_losses(results, ep):
    compare([seen["unequal", ep] for seen in results], one_process(weighted, UNEQUAL))


def test_frozen_parameters_get_no_gradient_unused_ones_get_zeros(results):
    for seen in results:
        found = seen["equal", 1][0][0]
        assert not [name for name in found if "frozen" in name or "moe_layers.0.experts.2" in name]
        assert "idle.weight" in found


@pytest.mark.parametrize("ep", DEGREES)
def test_an_expert_s_sum_is_over_its_copies_and_its_mean_over_all_ranks(results, ep):
    for r, seen in enumerate(results):
        _, after = seen["before", ep]
        copies = [other["before", ep][0] for other in results[r % ep :: ep]]
        for name, g in after.items():
            right = sum(before[name] for before in copies) / W
            assert not differences({name: g}, {name: right})
            if ep > 1 and right.any():
                assert differences(
                    {name: sum(before[name] for before in copies) / len(copies)}, {name: right}
                )


@pytest.mark.parametrize("ep", DEGREES)
def test_experts_are_sent_over_their_copies_all_else_over_all_ranks(results, ep):
    dp = W // ep
    # of one whole model
    every, experts = (sum(seen["sizes", ep][i] for seen in results[:ep]) for i in (0, 1))
    dense = (every - experts) // ep  # on every rank
    assert experts > dense > 0
    # a ring over N ranks sends 2(N-1)n elements
    want = 2 * (W - 1) * dense + 2 * (dp - 1) * experts
    assert results.ledger.section(f"ep {ep}").sent("bytes") == 8 * want


def test_a_model_without_experts_is_averaged_over_all_ranks(results):
    right = sum(draw(r, 3, D).sum(0) for r in range(W)).expand(D, D) / W
    for seen in results:
        for ep in DEGREES:
            assert not differences({"w": seen["dense", ep]}, {"w": right})
