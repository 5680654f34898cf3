"""The inner pass: no other plan is cheaper, and on the cluster that Megatron-LM was made
for it is Megatron's."""

import itertools

import numpy as np
import pytest
import torch
from automatic_cases import CLUSTERS, MODULES, WIDTH, B, T, cluster
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn

from lib.hybrid.automatic import (
    COPY,
    PARTIAL,
    REPLICATE,
    Cluster,
    choose,
    named,
    price,
    strategies,
    trace,
)
from lib.hybrid.automatic.choose import smallest, tables
from lib.training.model import MLP, Block, Shape


def ways_of(operators, N, given=REPLICATE, wanted=REPLICATE):
    shapes = {op.name: op.shape for op in operators}
    return {op.name: strategies(op, shapes, N, given, wanted) for op in operators}


def every_plan(operators, on, given, wanted):
    ways = ways_of(operators, on.N, given, wanted)
    for each in itertools.product(*ways.values()):
        yield price(operators, dict(zip(ways, each, strict=True)), on)


def traced(name):
    return trace(MODULES[name](), (B, T, WIDTH[name])).operators


@pytest.mark.parametrize("given_wanted", [(REPLICATE, REPLICATE), (0, 0), (1, REPLICATE)])
@pytest.mark.parametrize(
    ("name", "N", "where"),
    [("MLP", 2, CLUSTERS), ("MLP", 4, CLUSTERS), ("residual", 4, ["slow memory", "middling"])],
)
def test_no_other_plan_is_cheaper(name, N, where, given_wanted):
    operators = traced(name)
    for each in where:
        on = cluster(N, **CLUSTERS[each])
        found = choose(operators, on, *given_wanted)
        assert found.seconds == pytest.approx(
            min(p.seconds for p in every_plan(operators, on, *given_wanted)), rel=1e-9
        )


def integer_program(sizes, parts):
    """The smallest sum of tables by scipy's milp: one 0/1 variable for each entry of each table,
    alike at its edges."""
    starts, count = [], 0
    for _, array in parts:
        starts.append(count)
        count += array.size
    first = {
        names[0]: start for (names, _), start in zip(parts, starts, strict=True) if len(names) == 1
    }
    rows, right = [], []
    for (names, array), start in zip(parts, starts, strict=True):
        if len(names) == 1:  # one choice for each operator
            row = np.zeros(count)
            row[start : start + array.size] = 1
            rows.append(row)
            right.append(1)
            continue
        index = np.arange(start, start + array.size).reshape(array.shape)
        for axis, name in enumerate(names):
            for i in range(sizes[name]):  # the entries of choice i together are choice i
                row = np.zeros(count)
                row[index.take(i, axis).ravel()] = 1
                row[first[name] + i] = -1
                rows.append(row)
                right.append(0)
    cost = np.concatenate([array.ravel() for _, array in parts])
    scale = cost.max()  # seconds are small beside milp's tolerances
    found = milp(
        cost / scale, integrality=np.ones(count), bounds=Bounds(0, 1),
        constraints=LinearConstraint(np.array(rows), right, right), options={"mip_rel_gap": 0},
    )  # fmt: skip
    return found.fun * scale


@pytest.mark.parametrize("where", ["slow processors", "middling"])
def test_a_whole_block_is_as_cheap_as_an_integer_program_finds(where):
    operators, on = traced("block"), cluster(4, **CLUSTERS[where])
    ways = ways_of(operators, on.N)
    sizes = {name: len(each) for name, each in ways.items()}
    assert choose(operators, on).seconds == pytest.approx(
        integer_program(sizes, tables(operators, ways, on)), rel=1e-6
    )


def test_tables_of_any_graph_are_minimised():
    draw = np.random.default_rng(0)
    for _ in range(30):
        sizes = {name: int(draw.integers(1, 4)) for name in "abcdef"}
        parts = [((name,), draw.random(n)) for name, n in sizes.items()]
        for _ in range(6):
            names = tuple(draw.choice(list(sizes), size=draw.integers(2, 4), replace=False))
            parts.append((names, draw.random([sizes[name] for name in names])))
        total = lambda at, parts=parts: sum(
            array[tuple(at[name] for name in names)] for names, array in parts
        )
        every = (
            dict(zip(sizes, at, strict=True))
            for at in itertools.product(*map(range, sizes.values()))
        )
        assert total(smallest(sizes, parts)) == pytest.approx(min(map(total, every)), rel=1e-12)


A100S = Cluster(4, 312e12, 2e12, 1e-5, 1 / 200e9, 2)  # bf16, links inside a node


def test_for_wide_weights_and_few_tokens_it_is_megatrons_mlp():
    mlp = trace(MLP(Shape(16, 8, 1, 512, 4)), (2, 64, 512)).operators
    on = A100S._replace(flops=1e11, beta=1e-10, alpha=0.0)
    plan = choose(mlp, on)
    names = {name: each.name for name, each in plan.strategies.items()}
    assert names["up"] == "column" and names["down"] == "row" and names["gelu"] == "dim 2"
    # an all-reduce each way: g, and f in backward
    assert plan.sent == 2 * 2 * (4 - 1) * 2 * 64 * 512
    assert [(move.what, move.old, move.new) for move in plan.moves] == [
        ("x", REPLICATE, COPY), ("down", PARTIAL, REPLICATE)
    ]  # fmt: skip
    assert (plan.strategies["up"].reads, plan.strategies["down"].gives) == (COPY, PARTIAL)


def test_a_block_with_its_tokens_split_outside_is_megatrons_sequence_parallelism():
    block = trace(Block(Shape(16, 64, 1, 512, 8)), (1, 64, 512)).operators
    on = A100S._replace(flops=1e11, beta=1e-10, alpha=0.0)
    names = {
        name: each.name for name, each in choose(block, on, given=1, wanted=1).strategies.items()
    }
    columns = ("attention_q", "attention_k", "attention_v", "mlp_up")
    assert [names[name] for name in columns] == ["column"] * 4
    assert names["attention_out"] == names["mlp_down"] == "row"
    # tokens; heads
    assert names["norm1"] == names["norm2"] == "dim 1" and names["causal_attention"] == "dim 1"


MEGATRONS = {
    **{f"attention_{which}": "column" for which in "qkv"}, "attention_out": "row",
    "mlp_up": "column",
    "mlp_down": "row", "split_heads": "dim 2", "split_heads_1": "dim 2", "split_heads_2": "dim 2",
    "causal_attention": "dim 1", "merge_heads": "dim 1", "gelu": "dim 2",
}  # fmt: skip


def test_megatrons_block_written_down_sends_four_all_reduces_and_is_never_cheaper():
    block = trace(Block(Shape(16, 64, 1, 512, 8)), (1, 64, 512)).operators
    for on in (A100S, A100S._replace(flops=1e11, beta=1e-10, alpha=0.0), cluster(4, flops=1e12)):
        written = named(block, MEGATRONS, on)
        assert written.sent == 4 * 2 * (4 - 1) * 64 * 512  # q, k and v share one f
        assert [move.what for move in written.moves] == [
            "norm1",
            "attention_out",
            "norm2",
            "mlp_down",
        ]
        assert choose(block, on).seconds <= written.seconds * (1 + 1e-12)
    for names, says in (
        ({"mlp_up": "dim 9"}, "mlp_up has no strategy dim 9 on 4 ranks: use replicate"),
        ({"up": "row"}, "no operator is called up: there are x, norm1"),
    ):
        with pytest.raises(ValueError, match=says):
            named(block, names, A100S)


def test_for_many_sequences_it_is_data_parallelism_and_sends_the_weights_gradients():
    module = MLP(Shape(16, 8, 1, 16, 4))
    plan = choose(trace(module, (64, 64, 16)).operators, cluster(4, alpha=0.0), given=0, wanted=0)
    assert {each.name for each in plan.strategies.values()} == {"given", "wanted", "dim 0"}
    assert plan.sent == 2 * 3 * sum(p.numel() for p in module.parameters())


def test_over_a_slow_link_nothing_is_split():
    plan = choose(traced("block"), cluster(4, **CLUSTERS["slow links"]))
    assert {each.name for each in plan.strategies.values()} == {
        "given",
        "wanted",
        "replicate",
    } and plan.sent == 0
    assert plan.seconds == plan.compute


def test_a_dim_that_the_ranks_do_not_divide_is_not_split():
    mlp = trace(nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 8)), (3, 5, 8)).operators
    names = lambda N: [[each.name for each in ways] for ways in ways_of(mlp, N).values()][1:-1]
    # 8 / 4, but not 6 / 4
    assert names(4) == [["replicate", "row"], ["replicate"], ["replicate", "column"]]
    assert names(2) == [
        ["replicate", "column", "row"],
        ["replicate", "dim 2"],
        ["replicate", "column", "row"],
    ]
    assert names(3)[0] == ["replicate", "dim 0", "column"]
    with pytest.raises(ValueError, match=r"\(3, 5, 8\) on dim 0: 4 ranks do not divide it"):
        choose(mlp, cluster(4), given=0)


def test_what_is_traced():
    operators = {op.name: op for op in trace(MLP(Shape(16, 8, 1, 8, 2)), (2, 4, 8)).operators}
    assert [op.kind for op in operators.values()] == [
        "input",
        "linear",
        "elementwise",
        "linear",
        "elementwise",
        "output",
    ]
    up = operators["up"]
    assert (up.inputs, up.shape, up.weights) == (
        ("x",),
        (2, 4, 32),
        {"weight": (32, 8), "bias": (32,)},
    )
    assert up.flops == 2 * 2 * 4 * 8 * 32 and operators["gelu"].touched == 2 * 2 * 4 * 32


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Softplus()), "Softplus.* has no known way to be split"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), "dropout would draw different numbers"),
        (Twice(), "layer: called twice"),
    ],
)
def test_what_cannot_be_split_is_refused(module, says):
    with pytest.raises(ValueError, match=says):
        trace(module, (2, 4))


def test_tracing_leaves_the_module_as_it_is():
    module = MLP(Shape(16, 8, 1, 8, 2))
    before = {name: p.clone() for name, p in module.named_parameters()}
    trace(module, (2, 4, 8))
    assert all(
        torch.equal(p, before[name]) and p.device.type == "cpu"
        for name, p in module.named_parameters()
    )
