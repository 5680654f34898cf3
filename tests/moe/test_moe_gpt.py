"""The GPT with experts: what it is in one process; and on ranks, over real text, it trains
as one process does."""

import functools
import math

import pytest
import torch
import torch.distributed as dist
from moe_cases import differences

from lib import collectives, launch
from lib.moe import (
    MoEGPT,
    assign_slots,
    expert_parallel_gpt,
    gshard_gate,
    reduce_gradients,
    reroute,
    switch_gate,
    top_k_gate,
)
from lib.training import text
from lib.training.model import GPT, Shape, cross_entropy

W, STEPS = 4, 2
DEGREES = (1, 2, 4)  # ep; dp = W / ep
SHAPE = Shape(vocab_size=128, seq_len=6, n_layers=4, hidden=8, n_heads=2, mlp_hidden=12)
SEQUENCES = 6  # on 4 ranks: 2, 2, 1, 1
WAYS = {
    "Switch": (switch_gate, 1.0, assign_slots),
    "Switch, rerouted": (switch_gate, 0.5, reroute),
    "GShard": (gshard_gate, 0.75, assign_slots),
    "top 2": (functools.partial(top_k_gate, k=2), 0.5, assign_slots),
}


def model(way, n_experts=4, **how):
    """Alike wherever it is built; weights so large that routers have an opinion."""
    gate, factor, place = WAYS[way]
    made = MoEGPT(
        SHAPE, n_experts, gate, factor, place, auxiliary=0.1, z=0.01, seed=1, **how
    ).double()
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            noise = torch.randn(
                p.shape, generator=torch.Generator("cpu").manual_seed(i), device="cpu"
            )
            p += 0.2 * noise.to(p)
        for layer in made.moe_layers:
            layer.router.weight *= 5
    return made


def share(data, step, rank):
    """Rank's tokens, targets and the number of its first token."""
    B, T = SEQUENCES, SHAPE.seq_len
    tokens, targets = text.batch(data, step, rank, W, B, T)
    before = sum(len(text.batch(data, step, r, W, B, T)[0]) for r in range(rank))
    return tokens, targets, (step * B + before) * T


def weighted_loss(net, way, data, step, rank):
    """W times this rank's part of the mean over all tokens, and its auxiliary losses: the ranks'
    mean is the loss."""
    tokens, targets, first = share(data, step, rank)
    loss = net.loss(tokens, targets, first if way == "GShard" else None)
    return loss * (W * len(tokens) / SEQUENCES)


def train(net, way, data, ranks, reduce):
    """STEPS of SGD, as rank or for all of them: [(losses, drops, {name: gradient},
    {name: parameter})]."""
    optimizer, steps = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses, drops = [], []
        for rank in ranks:
            loss = weighted_loss(net, way, data, step, rank)
            (loss / len(ranks)).backward()
            losses.append(loss.detach())
            drops.append([layer.last.dropped.item() for layer in net.moe_layers])
        reduce(net)
        found = {name: p.grad.clone() for name, p in net.named_parameters()}
        optimizer.step()
        steps.append(
            (
                torch.stack(losses),
                drops,
                found,
                {n: p.detach().clone() for n, p in net.named_parameters()},
            )
        )
    return steps


def everything():
    data, results = text.load().train, {}
    for ep in DEGREES:
        ep_group, expert_dp_group = collectives.node_groups(ep)
        for way in WAYS:
            whole = model(way)
            part = expert_parallel_gpt(whole, ep_group)
            reduce = lambda net, group=expert_dp_group: reduce_gradients(net, group)
            results[way, ep] = train(part, way, data, [dist.get_rank()], reduce)
            tied = part.head.weight is part.embedding.token.weight
            same = all(
                torch.equal(p, q)
                for p, q in zip(whole.parameters(), model(way).parameters(), strict=True)
            )
            results["tied, same", way, ep] = tied, same
    return results


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=W, timeout=240, ledger=False)


@pytest.mark.parametrize("way", WAYS)
def test_on_ranks_it_trains_as_one_process_that_takes_the_ranks_sequences_one_by_one(results, way):
    want = train(model(way), way, text.load().train, range(W), lambda net: None)
    assert any(any(drops) for _, all_drops, *_ in want for drops in all_drops), (
        "nothing dropped: not much of a test"
    )
    for ep in DEGREES:
        for step, (losses, drops, right_gradients, right_parameters) in enumerate(want):
            on_ranks = [seen[way, ep][step] for seen in results]
            assert [seen[1][0] for seen in on_ranks] == drops
            off = torch.cat([seen[0] for seen in on_ranks]) - losses
            assert off.abs().max() < 1e-12 * losses.max()
            for which, right in ((2, right_gradients), (3, right_parameters)):
                held = {}
                for seen in on_ranks:
                    for name, tensor in seen[which].items():
                        assert torch.equal(held.setdefault(name, tensor), tensor), (
                            f"{name} differs between ranks"
                        )
                if which == 2:
                    for name in [n for n in right if n.endswith("k.bias")]:
                        bound = 1e-12 * right[name.replace("k.bias", "k.weight")].abs().max()
                        assert held.pop(name).abs().max() < bound  # its true gradient is zero
                    right = {name: g for name, g in right.items() if name in held}
                wrong = differences(held, right)
                assert not wrong, f"{way}, ep {ep}, step {step}: " + "; ".join(wrong[:4])


def test_the_part_keeps_the_tie_and_leaves_the_whole_model_as_it_is(results):
    for seen in results:
        assert all(seen["tied, same", way, ep] == (True, True) for way in WAYS for ep in DEGREES)


# --- in one process -------------------------------------------------------------------------------


def test_every_other_mlp_becomes_e_of_them_and_all_else_stays():
    plain, sparse = GPT(SHAPE, seed=3), MoEGPT(SHAPE, 5, seed=3)
    names, of_plain = dict(sparse.named_parameters()), dict(plain.named_parameters())
    replaced = {name for name in of_plain if name.startswith(("blocks.1.mlp", "blocks.3.mlp"))}
    assert of_plain.keys() - names.keys() == replaced
    assert all(torch.equal(names[name], of_plain[name]) for name in of_plain.keys() - replaced)
    mlp, router = sum(of_plain[n].numel() for n in replaced) // 2, 5 * SHAPE.hidden
    assert sparse.num_parameters() == plain.num_parameters() + 2 * (4 * mlp + router)
    assert [len(layer.experts) for layer in sparse.moe_layers] == [5, 5]
    assert sparse.head.weight is sparse.embedding.token.weight


def test_the_seed_alone_decides_all_weights_and_the_random_state_does_not_notice():
    torch.manual_seed(0)
    first = MoEGPT(SHAPE, 4, seed=2)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)
    torch.manual_seed(9)
    again, other = MoEGPT(SHAPE, 4, seed=2), MoEGPT(SHAPE, 4, seed=3)
    assert all(
        torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters(), strict=True)
    )
    ups = [
        expert.up.weight
        for made in (first, other)
        for layer in made.moe_layers
        for expert in layer.experts
    ]
    assert len({tuple(up.flatten().tolist()) for up in ups}) == 16, "no two experts begin alike"
    for layer in MoEGPT(Shape(10, 6, 8, 128, 2), 4).moe_layers:
        assert layer.router.weight.std().item() == pytest.approx(0.02, rel=0.1)
        for expert in layer.experts:
            assert expert.up.weight.std().item() == pytest.approx(0.02, rel=0.02)
            assert expert.down.weight.std().item() == pytest.approx(0.02 / math.sqrt(16), rel=0.02)
            assert not expert.up.bias.any() and not expert.down.bias.any()


def test_the_loss_is_cross_entropy_and_the_auxiliary_losses_of_all_layers_scaled():
    net, (tokens, targets, _) = model("Switch"), share(text.load().train, 0, 0)
    loss = net.loss(tokens, targets)
    last = [layer.last for layer in net.moe_layers]
    right = cross_entropy(net(tokens), targets) + sum(0.1 * s.auxiliary + 0.01 * s.z for s in last)
    assert loss.item() == pytest.approx(right.item(), rel=1e-14)
    assert all(s.auxiliary.item() > 0.5 and s.z.item() > 0 for s in last)
    net.auxiliary = net.z = 0.0
    assert net.loss(tokens, targets).item() == pytest.approx(
        cross_entropy(net(tokens), targets).item(), rel=1e-14
    )


def test_the_auxiliary_losses_reach_the_routers():
    net, (tokens, targets, _) = model("Switch"), share(text.load().train, 0, 0)

    def routers():
        net.zero_grad()
        net.loss(tokens, targets).backward()
        return torch.stack([layer.router.weight.grad.clone() for layer in net.moe_layers])

    with_both = routers()
    net.auxiliary = 0.0
    without_balance = routers()
    net.z = 0.0
    assert not torch.equal(with_both, without_balance) and not torch.equal(
        without_balance, routers()
    )


def test_a_sampling_gate_draws_by_the_number_of_the_token_and_by_the_layer():
    net, (tokens, _, _) = model("GShard"), share(text.load().train, 0, 0)
    asked = lambda first: (
        [layer.last.experts for layer in net.moe_layers] if net(tokens, first) is not None else None
    )
    at_0, again, at_7 = asked(0), asked(0), asked(7)
    assert all(map(torch.equal, at_0, again)) and not all(map(torch.equal, at_0, at_7))
    assert any((experts == -1).any() for experts in at_0), (
        "every second expert was taken: nothing was sampled"
    )


def test_a_gpt_without_a_second_block_is_refused():
    with pytest.raises(
        ValueError, match="n_layers is 1: every other block has experts, use 2 layers or more"
    ):
        MoEGPT(Shape(10, 6, 1, 8, 2), 4)
