"""Mixtures on a mesh: experts over ep, attention over tp, stages over pp, against one process that
takes set by set.

A set is what is routed together: a micro-batch of one data rank. Capacity drops tokens here, set by
set.
"""

import functools

import pytest
import torch
from hybrid_cases import (
    MAX_NORM,
    OPTIMIZERS,
    ROWS,
    SHAPES,
    STEPS,
    TIED,
    TOLERANCE,
    WORLD,
    Run,
    batch,
    gradients,
    microbatches,
    parameters,
    sizes,
)
from parallels import differences
from sweeps import quick

from lib import launch
from lib.hybrid import (
    SETS,
    Hybrid,
    ShardedUpdate,
    expert_gpt,
    load_hybrid,
    local_batch,
    save_hybrid,
)
from lib.hybrid.mesh import Mesh, groups_along
from lib.moe.gpt import MoEGPT
from lib.tensor_parallel import merge_state_dicts
from lib.training.model import cross_entropy

RUNS = {
    "pp=2 ep=2 tp=2": Run(sizes(2, 1, 1, 2, ep=2)),
    "dp=2 ep=2 tp=2": Run(sizes(1, 2, 1, 2, ep=2), b=4),
    "pp=4 ep=2, stages without experts": Run(sizes(4, 1, 1, 1, ep=2)),
    "dp=2 ep=4, zero1": Run(sizes(1, 2, 1, 1, ep=4), b=2, update=ShardedUpdate, optimizer="adamw"),
    "pp=2 dp=2 ep=2, zero1": Run(
        sizes(2, 2, 1, 1, ep=2), b=4, update=ShardedUpdate, optimizer="adamw"
    ),
}
RUNS = quick(RUNS, {"dp=2 ep=2 tp=2", "pp=4 ep=2, stages without experts"})
SAVED, LOADED = "pp=2 dp=2 ep=2, zero1", "dp=2 ep=4, zero1"


def moe_gpt():
    """4 experts in blocks 1 and 3. Every parameter moved, biases too; a strong auxiliary loss, or
    it would be lost."""
    model = MoEGPT(SHAPES[4], 4, factor=2.0, auxiliary=0.5, z=0.1).double()
    draw = torch.Generator("cpu").manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.1 * torch.randn(parameter.shape, generator=draw, device="cpu")).to(
                parameter
            )
        for layer in model.moe_layers:
            layer.router.weight *= 3  # tokens that differ little still go to different experts
    return model


def build(run, mesh):
    tokens = local_batch(batch(0)[0], mesh)
    split = functools.partial(expert_gpt, ep=mesh.group("ep"), rows=len(tokens))
    return Hybrid(
        moe_gpt(), mesh, tokens, run.b, OPTIMIZERS[run.optimizer], run.schedule, split, run.update
    )  # fmt: skip


def train_each(folder):
    """{run: [(loss, norm, gradients, parameters) of each step]}; parameters and averages
    loaded on another mesh."""
    seen = {}
    for name, run in RUNS.items():
        mesh, seen[name] = Mesh(run.sizes, SETS), []
        hybrid = build(run, mesh)
        for step in range(STEPS):
            tokens, targets = batch(step)
            loss = hybrid.backward(local_batch(tokens, mesh), local_batch(targets, mesh))
            grads = gradients(hybrid)
            norm = hybrid.clip(MAX_NORM)
            hybrid.step()
            seen[name].append((loss.item(), norm.item(), grads, parameters(hybrid)))
        if name == SAVED:
            save_hybrid(folder, STEPS, hybrid)
    mesh = Mesh(RUNS[LOADED].sizes, SETS)
    hybrid = build(RUNS[LOADED], mesh)
    load_hybrid(folder, hybrid)
    whole = parameters(hybrid)
    averages = [
        s["exp_avg"].abs().sum().item() for u in hybrid.updates for s in u.optimizer.state.values()
    ]
    return seen, whole, averages


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("experts"))
    return launch.capture(
        train_each, folder, backend="gloo", nproc=WORLD, timeout=200, ledger=False
    )


@functools.cache
def single_process(name):
    """[(loss, norm, gradients, parameters)], and how many tokens found no slot, of one
    process, set by set."""
    run = RUNS[name]
    ranks = run.sizes["dp"] * run.sizes["ep"]
    model, seen, lost = moe_gpt(), [], 0
    optimizer = OPTIMIZERS[run.optimizer](model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for tokens, targets in zip(*(half.chunk(ranks) for half in batch(step)), strict=True):
            for x, y in zip(tokens.split(run.b), targets.split(run.b), strict=True):
                share_of_all = len(x) / ROWS
                (model.loss(x, y) * share_of_all).backward()
                lost += sum(layer.last.dropped.item() for layer in model.moe_layers)
                with torch.no_grad():
                    loss += cross_entropy(model(x), y).item() * share_of_all
        grads = {n: p.grad.clone() for n, p in model.named_parameters()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        seen.append(
            (loss, norm.item(), grads, {n: p.detach().clone() for n, p in model.named_parameters()})
        )
    return seen, lost


def assemble(parts, sizes):
    """The whole {name: tensor}: tp ranks merged, stages and experts joined, everything that is
    alike compared."""
    whole = {}
    for ranks in groups_along(["tp"], sizes):
        merged = merge_state_dicts([parts[rank] for rank in ranks])
        if "head.weight" in merged:
            merged[TIED] = merged.pop("head.weight")
        for name, tensor in merged.items():
            assert name not in whole or torch.equal(whole[name], tensor), f"{name} on ranks {ranks}"
            whole[name] = tensor
    return whole


@pytest.mark.parametrize("name", RUNS)
def test_every_gradient_and_parameter_of_three_clipped_steps_is_one_process_s(results, name):
    want, _ = single_process(name)
    parts = [seen[name] for seen, _, _ in results]
    for step, (loss, norm, grads, params) in enumerate(want):
        losses, norms, got_grads, got_params = zip(*(part[step] for part in parts), strict=True)
        assert len(set(losses)) == len(set(norms)) == 1
        assert losses[0] == pytest.approx(loss, rel=TOLERANCE) and norms[0] == pytest.approx(
            norm, rel=TOLERANCE
        )
        wrong = [
            f"gradient {w}"
            for w in differences(assemble(got_grads, RUNS[name].sizes), grads, TOLERANCE)
        ]
        wrong += [
            f"parameter {w}"
            for w in differences(assemble(got_params, RUNS[name].sizes), params, TOLERANCE)
        ]
        assert not wrong, f"step {step}: " + "; ".join(wrong[:4])


def test_tokens_were_dropped_clipping_did_something_and_every_expert_worked():
    for name, run in RUNS.items():
        want, lost = single_process(name)
        assert (
            lost > 0
            and max(norm for _, norm, _, _ in want) > MAX_NORM
            and len(microbatches(run)) > 1
        )
        assert all(g.abs().max() > 0 for n, g in want[0][2].items() if ".experts." in n)


def test_each_rank_holds_its_experts_alone(results):
    for rank, (seen, _, _) in enumerate(results):
        experts = {
            name.split(".")[4] for name in seen["dp=2 ep=4, zero1"][0][3] if ".experts." in name
        }
        assert experts == {str(rank % 4)}


def test_a_checkpoint_of_one_mesh_fills_another(results):
    saved = assemble([seen[SAVED][-1][3] for seen, _, _ in results], RUNS[SAVED].sizes)
    loaded = assemble([whole for _, whole, _ in results], RUNS[LOADED].sizes)
    assert saved.keys() == loaded.keys() and all(
        torch.equal(saved[name], loaded[name]) for name in saved
    )
    assert all(averages and min(averages) > 0 for _, _, averages in results)
