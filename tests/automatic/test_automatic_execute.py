"""Plans on ranks: results and gradients are one process's, and what is sent is what the
plan says, to the byte."""

import functools
import itertools
import random
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from automatic_cases import CLUSTERS, MODULES, SHAPE, WIDTH, B, T, cluster, double
from sweeps import WHOLE

from lib import launch, ledger
from lib.collectives import ring_all_reduce
from lib.hybrid.automatic import (
    COPY,
    PARTIAL,
    REPLICATE,
    Sharded,
    choose,
    named,
    price,
    reshard,
    strategies,
    trace,
)
from lib.hybrid.automatic.layouts import both_ways, move
from lib.hybrid.automatic.price import move_elements
from lib.tensor_parallel import (
    ParallelMLP,
    column_parallel,
    copy_to_group,
    reduce_from_group,
    row_parallel,
)
from lib.training.model import MLP

LAYOUTS = [(REPLICATE, REPLICATE), (0, 0), (1, REPLICATE)]
RANDOM = 3 if WHOLE else 1  # plans drawn at random, of every module and group


def cases():
    """{(N, module, what): (Plan, given, wanted)}: those chosen on all clusters, and some that
    nobody would choose."""
    found = {}
    for N, name in itertools.product((2, 4) if WHOLE else (4,), MODULES):
        operators = trace(MODULES[name](), (B, T, WIDTH[name])).operators
        different = {}
        for (given, wanted), (where, other) in itertools.product(LAYOUTS, CLUSTERS.items()):
            plan = choose(operators, cluster(N, **other), given, wanted)
            different.setdefault((str(plan), given, wanted), (f"{where}, {given}", plan))
        for (_, given, wanted), (what, plan) in different.items():
            found[N, name, what] = plan, given, wanted
        draw, shapes = random.Random(N), {op.name: op.shape for op in operators}
        for i in range(RANDOM):
            drawn = {op.name: draw.choice(strategies(op, shapes, N)) for op in operators}
            found[N, name, f"drawn {i}"] = price(operators, drawn, cluster(N)), REPLICATE, REPLICATE
    return found


def inputs(name):
    draw = torch.Generator().manual_seed(5)
    return torch.randn(B, T, WIDTH[name], dtype=torch.float64, generator=draw)


@functools.cache
def one_process(name):
    """(result, gradient of x, gradients of the weights) of the module itself; the
    loss is sum(y^3)."""
    module, x = double(MODULES[name]()), inputs(name).requires_grad_()
    y = module(x)
    y.pow(3).sum().backward()
    return y.detach(), x.grad, {weight: p.grad for weight, p in module.named_parameters()}


def off(got, expected, scale=None):
    """The largest difference, relative to the largest number."""
    return (
        (got - expected).abs().max() / (expected if scale is None else scale).abs().max()
    ).item()


def errors_of(gradients, weights):
    """{weight: how far off}. The true gradient of a key's bias is 0: what it is off is told by its
    weight's scale."""
    assert gradients.keys() == weights.keys()
    scale = lambda name: (
        weights[name.replace("bias", "weight")] if name.endswith("k.bias") else weights[name]
    )
    return {name: off(gradients[name], weights[name], scale(name)) for name in weights}


def on_ranks(cases):
    pairs, found = (dist.new_group([0, 1]), dist.new_group([2, 3])), {}
    traced = {name: trace(double(make()), (B, T, WIDTH[name])) for name, make in MODULES.items()}
    for i, ((N, name, what), (plan, given, wanted)) in enumerate(cases.items()):
        if N == 2 and i % 2 != dist.get_rank() // 2:
            continue  # the other pair does it, at the same time
        group = pairs[dist.get_rank() // 2] if N == 2 else None
        sharded = Sharded(traced[name], plan, group)
        x = move(inputs(name), REPLICATE, given, group).clone().requires_grad_()
        ledger.mark(f"{N} {name} {what}")
        y = sharded(x)
        y.pow(3).sum().backward()
        ledger.mark("")
        result, dx, weights = one_process(name)
        errors = errors_of(sharded.gather_gradients(), weights)
        errors["y"] = off(move(y.detach(), wanted, REPLICATE, group), result)
        errors["x"] = off(move(x.grad, given, REPLICATE, group), dx)
        found[N, name, what] = errors, plan.sent
    return found


@pytest.fixture(scope="module")
def results():
    return launch.capture(on_ranks, cases(), nproc=4, timeout=200)


def test_results_and_gradients_are_those_of_the_whole_module(results):
    ran = Counter(case for found in results for case in found)
    assert all(ran[case] == case[0] for case in cases()) and len(ran) > 2 * len(MODULES) * RANDOM
    for rank, found in enumerate(results):
        for case, (errors, _) in found.items():
            wrong = {what: error for what, error in errors.items() if not error < 1e-12}
            assert not wrong, (rank, case, wrong)


def test_the_bytes_sent_are_the_plans(results):
    planned = {case: sent for found in results for case, (_, sent) in found.items()}
    for (N, name, what), sent in planned.items():
        assert results.ledger.section(f"{N} {name} {what}").sent("bytes") == 8 * sent, (
            N,
            name,
            what,
        )
    assert sum(sent > 0 for sent in planned.values()) > 30


# --- beside Megatron's MLP ------------------------------------------------------------------------


# The front door may take another algorithm for so few numbers, and another number of them.
WITH_RINGS = (
    functools.partial(
        column_parallel, input_mapping=functools.partial(copy_to_group, all_reduce=ring_all_reduce)
    ),
    functools.partial(
        row_parallel,
        output_mapping=functools.partial(reduce_from_group, all_reduce=ring_all_reduce),
    ),
)


def beside_megatron():
    mlp, x = double(MLP(SHAPE)), inputs("MLP")
    traced = trace(mlp, (B, T, 8))
    plan = named(traced.operators, {"up": "column", "gelu": "dim 2", "down": "row"}, cluster(4))
    found = []
    for what, module in (
        ("ours", Sharded(traced, plan)),
        ("Megatron's", ParallelMLP(mlp, None, *WITH_RINGS)),
    ):
        leaf = x.clone().requires_grad_()
        ledger.mark(what)
        y = module(leaf)
        y.pow(3).sum().backward()
        ledger.mark("")
        found.append((y.detach(), leaf.grad))
    return found, plan.sent


def test_column_then_row_is_lib_tensor_parallels_mlp_and_sends_the_same_elements():
    results = launch.capture(beside_megatron, nproc=4)
    for (ours, theirs), sent in results:
        assert all(off(a, b) < 1e-12 for a, b in zip(ours, theirs, strict=True))
        assert sent == 2 * 2 * 3 * B * T * 8
    for what in ("ours", "Megatron's"):
        assert results.ledger.section(what).sent("elements") == 2 * 2 * 3 * B * T * 8


# --- layouts --------------------------------------------------------------------------------------

GIVES, READS = [REPLICATE, PARTIAL, 0, 1, 2], [REPLICATE, COPY, 0, 1, 2]


def moved():
    rank, N = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(4.0 * 8 * 12, dtype=torch.float64).view(4, 8, 12)
    # 1+2+3+4 = 10
    held = lambda x, layout: (
        x / 10 * (rank + 1) if layout == PARTIAL else move(x, REPLICATE, layout)
    )
    errors = {}
    for old in GIVES:
        for new in READS:
            x = held(whole, old).clone().requires_grad_()
            ledger.mark(f"{old} {new}")
            y = reshard(x, old, new)
            y.backward(held(whole.cos(), PARTIAL if new == COPY else new))
            ledger.mark("")
            expected = move(whole, REPLICATE, REPLICATE if new == COPY else new)
            gradient = whole.cos() if old == PARTIAL else held(whole.cos(), old)
            errors[old, new] = (
                off(y.detach(), expected),
                off(x.grad, gradient),
                move_elements(old, new, whole.numel(), N),
            )
    return errors


def test_every_layout_becomes_every_other_and_back_in_the_gradient():
    results = launch.capture(moved, nproc=4)
    for found in results:
        for case, (value, gradient, _) in found.items():
            assert value < 1e-14 and gradient < 1e-14, case
    for (old, new), (*_, sent) in results[0].items():
        assert results.ledger.section(f"{old} {new}").sent("elements") == sent, (old, new)


def test_megatrons_mappings_are_among_them():
    assert both_ways(REPLICATE, COPY) == (None, "all_reduce")  # f
    assert both_ways(PARTIAL, REPLICATE) == ("all_reduce", None)  # g
    assert both_ways(1, COPY) == ("all_gather", "reduce_scatter")  # G
    assert both_ways(PARTIAL, 1) == ("reduce_scatter", "all_gather")  # S
    with pytest.raises(ValueError, match="only a whole tensor becomes a partial sum"):
        both_ways(0, PARTIAL)
