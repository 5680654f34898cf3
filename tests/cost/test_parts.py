"""Who holds which parameters: counted by hand on small plans, and on real runs of
lib.hybrid with experts."""

from dataclasses import replace

import pytest
import torch
from sweeps import quick

from lib import launch
from lib.cost.memory import stage_memory, state_bytes
from lib.cost.parts import expert_ranks, layer_parts, stage_parts
from lib.cost.plan import Plan
from lib.cost.shapes import Model, load
from lib.cost.stacks import Stack
from lib.cost.step import split
from lib.hybrid import Hybrid, ReplicatedUpdate, ShardedUpdate, expert_gpt, local_batch, mesh_of
from lib.moe.gpt import MoEGPT
from lib.training.model import Shape

# 3 layers of width 8 on 2 heads of 4; the first has an MLP of width 32, the others 4 experts of
# width 16, GeLU
TINY = Model(
    "tiny", 3, 8, 2, 2, 4, 16, 10, seq=6, tied=False, experts=4, topk=2, shared_ffn=12,
    dense_layers=1, dense_ffn=32,
)  # fmt: skip
BYTES = Stack("by hand", state=(2, 4, 12), logit_bytes=0, split_logit_bytes=0)


def held(plan, stage=0):
    layers = split(TINY.layers, plan.pp)
    return {
        part.name: (part.parameters, part.alike) for part in stage_parts(TINY, plan, stage, layers)
    }


def test_a_mixture_on_one_rank_by_hand():
    """Attention 4 x 8 x 8; norms 4 x 8; MLP 2 x 8 x 32; shared expert 2 x 8 x 12; router 8 x 4;
    expert 2 x 8 x 16."""
    assert held(Plan(8)) == {
        "cut": (3 * 256 + 512 + 2 * 192, 1),
        "whole": (3 * 32 + 2 * 32, 1),
        "experts": (2 * 4 * 256, 1),
        "ends": (2 * 80, 1),
    }


def test_each_degree_divides_what_it_should():
    """dp 4, cp 2, tp 2, ep 4: cut and ends over tp, the same on 8; 4 experts over ep, the same on
    16 / 4 = 4 ranks."""
    assert held(Plan(8, dp=4, cp=2, tp=2, ep=4)) == {
        "cut": ((3 * 256 + 512 + 2 * 192) / 2, 8),
        "whole": (3 * 32 + 2 * 32, 8),
        "experts": (2 * 1 * 256, 4),
        "ends": (80, 8),
    }
    first, last = held(Plan(8, pp=3), 0), held(Plan(8, pp=3), 2)
    # the dense layer
    assert first == {"cut": (256 + 512, 1), "whole": (32, 1), "experts": (0, 1), "ends": (80, 1)}
    assert last == {
        "cut": (256 + 192, 1),
        "whole": (64, 1),
        "experts": (4 * 256, 1),
        "ends": (80, 1),
    }


@pytest.mark.parametrize(("zero", "divided"), [(0, ()), (1, "o"), (2, "og"), (3, "ogw")])
def test_zero_divides_by_who_holds_the_same(zero, divided):
    """dp 8, ep 4: 2, 4 and 12 bytes of dense parameters over 8 ranks, of experts over 8 / 4 = 2."""
    plan = Plan(8, dp=8, ep=4, zero=zero)
    parts = stage_parts(TINY, plan, 0, [3])
    dense, experts = 3 * 256 + 512 + 2 * 192 + 160 + 160, 2 * 1 * 256
    share = lambda part: dense / 8 + experts / 2 if part in divided else dense + experts
    found = state_bytes(parts, plan, BYTES)
    assert found == {
        "weights": 2 * share("w"),
        "gradients": 4 * share("g"),
        "optimizer": 12 * share("o"),
    }


def test_copies_of_tokens_do_not_depend_on_ep():
    """A rank sends away as many tokens as it gets: activations are the same for every ep,
    and halve with tp."""
    kept = [stage_memory(TINY, Plan(8, dp=8, ep=ep), BYTES, 0)["activations"] for ep in (1, 2, 4)]
    assert kept[0] == kept[1] == kept[2] > 0
    plan = Plan(8, dp=4, tp=2, ep=4, sequence_parallel=True)
    assert stage_memory(TINY, plan, BYTES, 0)["activations"] == pytest.approx(kept[0] / 2)


def test_dense_layers_of_a_mixture_keep_what_a_dense_layer_keeps():
    """By hand, 20 h + 6 f of a dense layer beside 20 h + topk (4 h + 6 f), for 2 of 6
    layers, on stage 0 of 2."""
    model = Model(
        "x",
        6,
        64,
        4,
        4,
        16,
        16,
        100,
        seq=8,
        gated=True,
        experts=8,
        topk=2,
        dense_layers=2,
        dense_ffn=32,
    )
    kept = lambda stage: stage_memory(model, Plan(2, pp=2), BYTES, stage)["activations"]
    # norms and residuals; q, k, v, q and k once more, output
    attention = 4 * 2 * 64 + 2 * (3 + 2 + 1) * 64
    dense, mixture = attention + 6 * 32, attention + 2 * (4 * 64 + 6 * 16)
    assert kept(0) == 2 * 8 * (2 * dense + mixture) and kept(1) == 8 * 3 * mixture


def test_a_layer_s_parts_are_a_stage_s():
    model = replace(load("deepseek-v3"), layers=8, dense_layers=0)
    plan = Plan(64, tp=2, dp=16, ep=8)
    one, all_ = layer_parts(model, plan), stage_parts(model, plan, 0, [8])
    for layer, stage in zip(one, all_[:3], strict=True):
        assert (
            stage.parameters == pytest.approx(8 * layer.parameters) and stage.alike == layer.alike
        )


# --- real runs: a GPT whose every other block has experts, on 8 ranks

SHAPE = Shape(vocab_size=16, seq_len=8, n_layers=4, hidden=16, n_heads=8, mlp_hidden=32)
MESHES = {
    "dp=2 ep=4": ({"dp": 2, "ep": 4}, ShardedUpdate),
    "dp=4 ep=2": ({"dp": 4, "ep": 2}, ShardedUpdate),
    "dp=1 ep=4 cp=2": ({"ep": 4, "cp": 2}, ShardedUpdate),
    "dp=2 ep=2 tp=2": ({"dp": 2, "ep": 2, "tp": 2}, ReplicatedUpdate),
}
MESHES = quick(MESHES, {"dp=2 ep=4", "dp=4 ep=2"})


def measured(sizes, update):
    """{"dense", "experts"}: (parameters, matrices of the layers alone, Adam's momentum) held by
    rank 0, in numbers."""
    mesh = mesh_of(**sizes)
    tokens = local_batch(torch.zeros(8, 8, dtype=torch.int64), mesh)
    parted = lambda model, group: expert_gpt(model, group, ep=mesh.group("ep"), rows=len(tokens))
    hybrid = Hybrid(
        MoEGPT(SHAPE, 4), mesh, tokens, 1, torch.optim.AdamW, split=parted, update=update
    )
    hybrid.backward(tokens, tokens)
    hybrid.step()
    found = {}
    for name, each in (("dense", hybrid.dense), ("experts", hybrid.experts)):
        mine = [p for group in each.optimizer.param_groups for p in group["params"]]
        momentum = sum(each.optimizer.state[p]["exp_avg"].numel() for p in mine)
        named = {
            n: p
            for n, p in hybrid.part.named_parameters()
            if (".experts." in n) == (name == "experts")
        }
        matrices = sum(
            p.numel()
            for n, p in named.items()
            if p.dim() == 2 and "blocks" in n and "router" not in n
        )
        found[name] = sum(p.numel() for p in named.values()), matrices, momentum
    return found


def measured_each():
    return {name: measured(*run) for name, run in MESHES.items()}


@pytest.fixture(scope="module")
def runs():
    return launch.run(measured_each, nproc=8)[0]


@pytest.mark.parametrize("name", MESHES)
def test_parts_are_what_ranks_of_a_hybrid_hold(runs, name):
    """Matrices to the last number; the optimizer's share to the padding of its flats. An ep
    rank is a data rank."""
    sizes, update = MESHES[name]
    dp, ep, cp, tp = (sizes.get(axis, 1) for axis in ("dp", "ep", "cp", "tp"))
    model = Model(
        "as SHAPE", 4, 16, 8, 8, 2, 32, 16, seq=8, experts=4, topk=1, dense_layers=2, dense_ffn=32
    )
    plan = Plan(8, dp=dp * ep, ep=ep, cp=cp, tp=tp)
    cut, _, experts, _ = stage_parts(model, plan, 0, [4])
    (dense, dense_matrices, dense_adam), (whole, matrices, adam) = (
        runs[name]["dense"],
        runs[name]["experts"],
    )
    assert (dense_matrices, matrices) == (cut.parameters, experts.parameters)
    if update is ShardedUpdate:
        assert 0 <= dense_adam - dense / cut.alike < 4 and 0 <= adam - whole / experts.alike < 4
        assert experts.alike == expert_ranks(plan) == dp * cp and cut.alike == dp * ep * cp
    else:
        assert (dense_adam, adam) == (dense, whole)
