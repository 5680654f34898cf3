"""Comparisons of distributed parts of a mixture with one process: right ones agree, wrong ones do
not; paced layers measure what their tables say."""

import pytest
import torch
import torch.distributed as dist

from lib import launch, moe
from lib.moe import compare, paced
from lib.training.model import Shape

SHAPE = Shape(vocab_size=104, seq_len=8, n_layers=2, hidden=64, n_heads=4)


class Unswapped(moe.ExpertParallelMoE):
    """Its experts get the tokens in the order of the senders."""

    def run(self, routed_tokens):
        received = moe.exchange_counts(self.last.load, self.group, self.all_to_all)
        send = self.last.load.view_as(received).sum(1).tolist()
        receive = received.sum(1).tolist()
        tokens = self.exchange(routed_tokens, send, receive)
        tokens = moe.run_experts(self.experts.values(), tokens, received.sum(0))
        return self.exchange(tokens, receive, send)


def by_copies(model, expert_dp_group):
    """Divides experts by their copies, not by all ranks."""
    moe.reduce_gradients(model, expert_dp_group)
    for p in moe.expert_parameters(model):
        p.grad *= dist.get_world_size() / dist.get_world_size(expert_dp_group)


def batch(step, rank, N):
    generator = torch.Generator("cpu").manual_seed(rank)
    tokens = torch.randint(104, (2, 9), generator=generator, device="cpu")
    return tokens[:, :-1], tokens[:, 1:]


def everything():
    R = compare.partner_router(8, 0.5)
    gate = compare.adapt(moe.CorrelatedGate(8, 2, 2.0, beta=0.9), R, steps=20)
    placed = moe.placed(gate, moe.placement(gate.A, 2))
    plain = compare.adapt(moe.CorrelatedGate(8, 2, 0.0), R, steps=1)
    return {
        "layer": compare.expert_parallel(SHAPE, moe.ExpertParallelMoE, moe.exchange_tokens),
        "unswapped": compare.expert_parallel(SHAPE, Unswapped, moe.exchange_tokens),
        "gradients": compare.data_parallel(SHAPE, moe.reduce_gradients, 2, batch),
        "by copies": compare.data_parallel(SHAPE, by_copies, 2, batch),
        "halves": compare.in_halves(moe.OverlappedMoE, moe.start_exchange),
        "dropless": compare.token_by_token(moe.dropless, moe.grouped_mm),
        "together": compare.forward_traffic(moe.DeduplicatedMoE, placed, R, 64)["sent"],
        "in order": compare.forward_traffic(moe.DeduplicatedMoE, plain, R, 64)["sent"],
        "changed": [compare.changed_choices(g, R, 200) for g in (plain, gate)],
    }


@pytest.fixture(scope="module")
def found():
    return launch.capture(everything, backend="gloo", nproc=2, ledger=False)


def test_right_parts_agree_with_one_process(found):
    for name in ("layer", "gradients", "halves", "dropless"):
        errors = [e for rank in found for e in rank[name].values() if isinstance(e, float)]
        assert errors and max(errors) < 1e-12, name
    assert sum(rank["layer"]["dropped"] for rank in found) > 0
    assert compare.worst([{"output": 1e-3, "dropped": 7}, {"output": 2e-3}]) == "output 2e-03"


def test_wrong_ones_do_not(found):
    assert found[0]["unswapped"]["output"] > 1e-2
    assert found[0]["by copies"]["gradients"] > 1e-2


def test_partners_on_one_rank_save_routed_tokens_and_the_gate_changes_choices(found):
    assert sum(rank["together"] for rank in found) < sum(rank["in order"] for rank in found)
    plain, gate = found[0]["changed"]
    assert plain == 0 < gate


def test_of_paced_layers_the_slowest_rank_and_the_hottest_count():
    rounds = [
        [dict.fromkeys(paced.WAYS_TO_ROUTE, (seconds, tokens, 256)) for seconds in times]
        for times, tokens in (((1.0, 4.0), 10), ((2.0, 3.0), 30))
    ]
    assert set(map(tuple, paced.slowest(rounds).values())) == {(2.0, 4.0)}
    assert set(paced.hottest(rounds).values()) == {30}
    assert set(paced.dropped(rounds).values()) == {0.25}
    spans = [("compute", 1.0, 1.5, "shared A"), ("wire", 1.2, 2.0, "dispatch A")]
    assert paced.milliseconds(spans) == 1000
