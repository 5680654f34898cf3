"""What Lab 4 prints about the stages of ZeRO. Most functions launch ranks and measure there with a
function of sharded.py, and some compare the result with a formula.

    compare_training        losses, optimizer state and elements sent, compared for two ways
    compare_gradients       live bytes of gradients during backward
    compare_peaks           the peak memory of a step
    count_volumes           elements that a rank sends with 1, 2 and 4 micro-batches
    count_state             live bytes of weights, gradients and optimizer state
    forward_ms              forward passes over an emulated link
    token_thresholds        how many tokens per GPU hide an all-gather, for published GPUs and runs
    compare_checkpointing   bytes kept, and operations, of several ways to recompute activations
    compare_offload         bytes on the device and on the host
    offloaded_ms            an optimizer step over an emulated link to the host
"""

import numpy as np

from lib import launch
from lib.cost.hardware import gpus
from lib.cost.published import table
from lib.cost.zero import rank_state, sent_elements
from lib.demo import sharded
from lib.demo.sharded import PSI, SHAPE
from lib.training.model import GPT

N = 4  # ranks


def compare_training(ways: dict, steps: int = 6) -> float:
    """Train the GPT in two ways, and print losses, optimizer state and elements sent. ways: {name:
    make, see `sharded.train`}. Returns the largest difference between the losses of the two. Raises
    AssertionError unless a rank sends 2 (N-1)/N psi elements per step on average, to within 0.5 %,
    in both ways."""
    losses = []
    for name, make in ways.items():
        results = launch.run(sharded.train, make, steps, nproc=N)
        of_rank_0, state_elements = results[0]
        sent = results.ledger.section("step 3").sent("elements") / N / ((N - 1) / N * PSI)
        print(
            f"{name:<16} loss {of_rank_0[0]:.4f} to {of_rank_0[-1]:.4f}; optimizer state"
            f" {state_elements / PSI:.2f} psi elements; sends {sent:.3f} (N-1)/N psi"
        )
        assert abs(sent - 2) < 0.01, f"{name} sends {sent} (N-1)/N psi elements, expected 2"
        losses.append(of_rank_0)
    return max(abs(a - b) for a, b in zip(*losses, strict=True))


def compare_gradients(ways: dict) -> dict:
    """Print rank 0's live gradients after the backward pass of each block, and how many messages
    all ranks together send during backward. ways: {name: Zero1 or Zero2}. Returns {name: the most
    live gradients, in units of psi elements}. Raises AssertionError unless the way named "ZeRO-2",
    and no other, sends during backward."""
    found = {}
    for name, make in ways.items():
        results = launch.run(sharded.gradient_bytes, make, nproc=N)
        sent = results.ledger.section("backward").sent("messages")
        after = [n / 4 / PSI for n in results[0]]
        blocks = ", ".join(f"{x:.2f}" for x in after)
        print(f"{name}: {blocks} psi after each block; {sent} messages during backward")
        assert (sent > 0) == (name == "ZeRO-2"), f"{name}: {sent} messages during backward"
        found[name] = max(after)
    return found


def compare_peaks(orders: dict) -> dict:
    """Print the peak memory of a step next to the formula. orders: {name: (an FSDP class, how many
    copies of a unit are alive at the peak)}. Returns {name: (measured, formula)} in bytes per
    parameter. Raises AssertionError if the peak is below the formula, or above it by 5 % or
    more."""
    model, L, found = GPT(SHAPE), SHAPE.n_layers, {}
    u = sum(p.numel() for p in model.blocks[0].parameters())
    # At the peak, the full gradients of the head and of the last norm are alive, because the root
    # unit's gradients are averaged together, and only after the embedding's gradient is computed.
    r_g = sum(p.numel() for p in (model.head.weight, *model.norm.parameters()))
    for name, (FSDP, m) in orders.items():
        peak, where = launch.run(sharded.peak_of_a_step, FSDP, nproc=N, ledger=False)[0]
        formula = 4 * (3 * PSI / N + (L - 1) * u / N + PSI - L * u + r_g + m * u)
        print(
            f"{name:<14} {peak / PSI:.2f} bytes per parameter, reached in {where};"
            f" formula {formula / PSI:.2f}"
        )
        assert 0 <= peak / formula - 1 < 0.05, f"{peak} bytes, by the formula {formula}"
        found[name] = peak / PSI, formula / PSI
    return found


def count_volumes(make: dict) -> tuple[dict, dict]:
    """What rank 0 sends in a step of k = 1, 2 and 4 micro-batches: ({stage: {k: sent}}, the same by
    the formula), in units of (N-1)/N psi elements. make: {number of the stage: model -> Zero1,
    Zero2 or FSDP}. Raises AssertionError if the two differ."""
    counted, formula = {}, {}
    for stage, wrap in make.items():
        results = launch.run(_volumes, wrap, nproc=N)
        for k, (psi, root) in results[0].items():
            sent = results.ledger.section(f"k = {k}").sent("elements", 0)
            expected = sent_elements(psi, stage, N, k, root)
            assert sent == expected, f"stage {stage}, k = {k}: {sent}, by the formula {expected}"
            unit = (N - 1) / N * psi
            counted.setdefault(f"stage {stage}", {})[k] = sent / unit
            formula.setdefault(f"stage {stage}", {})[k] = expected / unit
    return counted, formula


def _volumes(wrap):
    return {k: sharded.volume_of_a_step(wrap, k) for k in (1, 2, 4)}


def count_state(make: dict) -> tuple[dict, dict]:
    """The model state of rank 0 in fp32: ({stage: {part: bytes}}, the same by the formula). Prints
    a line for each stage. make: {number of the stage: model -> Zero1, Zero2 or FSDP; None for stage
    0}. Raises AssertionError if the totals of a stage differ by 0.1 % or more."""
    measured, formula = {}, {}
    for stage, wrap in make.items():
        parts = launch.run(sharded.state_parts, wrap, stage < 2, nproc=N, ledger=False)[0]
        state, total = rank_state(PSI, stage, N, "fp32"), sum(parts.values())
        off = total / state.total - 1
        print(f"stage {stage}: {total:,} bytes, {off:.2%} above the formula")
        assert abs(off) < 0.001
        measured[f"stage {stage}"] = parts
        formula[f"stage {stage}"] = {
            "weight": state.weight,
            "gradient": state.gradient,
            "optimizer": state.master + state.momentum + state.variance,
        }
    return measured, formula


def forward_ms(ways: dict, drawn: dict, n: int = 6) -> dict:
    """{name: [milliseconds of each of n forward passes]} on rank 0 of two ranks. Each of the n
    rounds runs all ways. ways: {name: the arguments of `sharded.paced_forward`}. drawn: an empty
    dict that receives {name: the time spans of the last round on rank 0}."""
    rounds = launch.run(sharded.paced_forwards, ways, n, nproc=2, backend="gloo", ledger=False)[0]
    drawn.update({name: spans for name, (_, spans) in rounds[-1].items()})
    return {name: [1e3 * each[name][0] for each in rounds] for name in ways}


def token_thresholds(*names: str) -> None:
    """Print how many tokens per GPU it takes to hide FSDP's all-gathers, which is C/W, operations
    per second over bytes per second. names: the GPUs. For each, the number is printed for links
    inside a node and across nodes. Then print the published runs of MPT-13B with FSDP on H100."""
    for name in names:
        g = gpus()[name]
        across = min(g.link, g.nic * g.per_node)
        print(
            f"{name:<9} in a node {g.link / 1e9:3.0f} GB/s, so {g.bf16 / g.link:5,.0f} tokens;"
            f" across nodes {across / 1e9:3.0f} GB/s, so {g.bf16 / across:5,.0f}"
        )
    wanted = ("llmfoundry-h100-80gb-bf16", "mpt-13b", "mfu")
    for r in table("rows"):
        if (r["source"], r["model"], r["metric"]) == wanted:
            print(
                f"published: {r['model']}, FSDP on {r['n_gpus']:>2} H100,"
                f" {r['micro_batch'] * r['seq']:,} tokens per GPU: {r['value']:.1f}% of the peak"
            )


def compare_checkpointing(ways: dict) -> dict:
    """Print the bytes that a step keeps between forward and backward, and its operations relative
    to the first way. ways: see `sharded.with_each`; the first is the one without recomputation.
    Returns {name: operations relative to the first}. Raises AssertionError unless all gradients are
    equal, bit for bit."""
    models = sharded.with_each(ways)
    costs = {name: sharded.kept_and_operations(model) for name, model in models.items()}
    assert sharded.same_gradients(models)
    first = next(iter(costs.values()))[1]
    for name, (kept, operations) in costs.items():
        print(
            f"{name:<20} keeps {kept / 1e6:5.2f} MB, {operations / first:.2f} times the operations"
        )
    return {name: operations / first for name, (_, operations) in costs.items()}


def compare_offload(optimizers: list) -> None:
    """Print the loss and the bytes per parameter of 16-bit FSDP on rank 0, with each of the given
    optimizers (MasterShards, OffloadedOptimizer)."""
    for make in optimizers:
        loss, device, host = launch.run(sharded.in_16_bits, make, nproc=N, ledger=False)[0]
        print(
            f"{make.__name__:<18} loss {loss:.4f}; shards and gradients {device:.2f} bytes per"
            f" parameter, masters and state {host:.2f}"
        )


def offloaded_ms(n: int = 6) -> dict:
    """{"step": (n,) milliseconds of an optimizer step on rank 0, with its state on the host, behind
    an emulated slow bus}."""
    results = launch.run(sharded.offload_seconds, n, nproc=N, backend="gloo", ledger=False)
    return {"step": 1e3 * np.array(results[0])}
