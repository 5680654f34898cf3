"""The mappings: what goes in and out, gradcheck of the pairs and of either alone, the common
errors, what is sent."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallels import GROUPS, my_groups
from torch import nn
from torch.autograd import gradcheck

from lib import collectives, launch, ledger
from lib.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    column_parallel,
    copy_to_group,
    gather_from_group,
    gather_sequence,
    reduce_from_group,
    regathered_column_parallel,
    row_parallel,
    scatter_sequence,
    sequence_column_parallel,
    sequence_row_parallel,
    split_to_group,
)

B, T, D, WIDTH = 2, 8, 4, 12


def draw(seed, *shape):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float64)


def checks(group, only=None):
    """{what: does gradcheck pass?}. x is alike on all ranks; each has a W_r of its own. only:
    names, None for all."""
    rank = dist.get_rank(group)
    x, w_r = draw(0, 1, 4, 4).requires_grad_(), draw(1 + rank, 4, 4)
    ring, gather, scatter = (
        collectives.ring_all_reduce,
        collectives.ring_all_gather,
        collectives.ring_reduce_scatter,
    )
    f = lambda x: copy_to_group(x, group, ring)
    g = lambda x: reduce_from_group(x, group, ring)
    split = lambda x: split_to_group(x, group, gather)
    join = lambda x: gather_from_group(x, group, gather)
    tokens = lambda x: split(x.transpose(1, 2)).transpose(1, 2)  # of this rank: (1, 4/tp, 4)
    all_tokens = lambda x: join(x.transpose(1, 2)).transpose(1, 2)
    G = lambda x: gather_sequence(x, group, gather, scatter)
    S = lambda x: scatter_sequence(x, group, gather, scatter)
    functions = {
        "f and g": lambda x: g(torch.tanh(f(x) @ w_r)),
        "f alone": lambda x: torch.tanh(f(x) @ w_r),
        "g alone": lambda x: g(torch.tanh(x @ w_r)),
        "split and join": lambda x: join(torch.tanh(split(x)) * split(x)),
        "split alone": lambda x: torch.tanh(split(x)),
        "G and S": lambda x: all_tokens(S(torch.tanh(G(tokens(x).sin()) @ w_r)).cos()),
        "join for G": lambda x: all_tokens(S(torch.tanh(all_tokens(tokens(x).sin()) @ w_r)).cos()),
    }
    # No other test than the gradients': a rank that fails must send as much as one that passes.
    return {
        what: gradcheck(function, x, raise_exception=False, check_undefined_grad=False)
        for what, function in functions.items()
        if only is None or what in only
    }


def plain_forms(group):
    """Each mapping beside its definition; every rank's x differs."""
    rank, tp = dist.get_rank(group), dist.get_world_size(group)
    xs = [draw(r, B, T, D) for r in range(tp)]
    mine, total = xs[rank].clone(), sum(xs)
    part = slice(rank * T // tp, (rank + 1) * T // tp)
    bent = mine.transpose(0, 2)  # not contiguous
    equal = torch.allclose
    seen = {
        "f": torch.equal(copy_to_group(mine, group), xs[rank]),
        "g": equal(reduce_from_group(mine, group), total),
        "g, not contiguous": equal(reduce_from_group(bent, group), total.transpose(0, 2)),
        "split": torch.equal(split_to_group(xs[0], group), xs[0].chunk(tp, -1)[rank]),
        "gather": torch.equal(gather_from_group(mine, group), torch.cat(xs, -1)),
        "G": torch.equal(gather_sequence(mine, group), torch.cat(xs, 1)),
        "S": equal(scatter_sequence(mine, group), total[:, part]),
        "S, no batch": equal(scatter_sequence(mine[0], group), total[0, part]),
    }
    seen["their inputs are as they were"] = torch.equal(mine, xs[rank])
    return seen


def backward_leaves_the_gradient_it_is_given(group):
    """It may be used elsewhere: an all-reduce in place would change it there too."""
    x, given = draw(0, 3).requires_grad_(), torch.ones(3, dtype=torch.float64)
    copy_to_group(x, group).backward(given)
    return given.tolist(), (x.grad / dist.get_world_size(group)).tolist()


def linears(group):
    """{what: largest error} of the two layers beside nn.Linear, and of the two common
    errors; what is not right."""
    rank, tp = dist.get_rank(group), dist.get_world_size(group)
    up, down, x = nn.Linear(D, WIDTH).double(), nn.Linear(WIDTH, D).double(), draw(5, B, T, D)
    for i, parameter in enumerate([*up.parameters(), *down.parameters()]):
        parameter.data.copy_(draw(10 + i, *parameter.shape))
    columns, rows = ColumnParallelLinear(up, group), RowParallelLinear(down, group)
    no_bias = RowParallelLinear(nn.Linear(WIDTH, D, bias=False).double(), group)
    y = up(x)  # (B, T, WIDTH)
    own = lambda y: y.chunk(tp, -1)[rank]
    off = lambda got, want: (got - want).abs().max().item()
    tokens = slice(rank * T // tp, (rank + 1) * T // tp)
    part = columns(x)  # (B, T, WIDTH/tp)
    partial = F.linear(own(y), rows.weight)  # (B, T, D)
    two = [
        ColumnParallelLinear(up, group),
        ColumnParallelLinear(nn.Linear(D, tp, bias=False).double(), group),
    ]
    return {
        "columns": off(part, own(y)),
        "columns, of two layers": off(column_parallel(x, two, group)[0], own(y)),
        "columns, gathered": off(gather_from_group(part, group), y),
        "rows": off(rows(own(y)), down(y)),
        "rows, split before": off(rows(split_to_group(y, group)), down(y)),
        "rows, bias once": off(row_parallel(torch.zeros_like(own(y)), rows, group), rows.bias),
        "rows, no bias": off(no_bias(torch.zeros_like(own(y))), torch.zeros(())),
        "columns of my tokens": off(
            sequence_column_parallel(x[:, tokens], [columns], group)[0], own(y)),
        "columns, regathered": off(
            regathered_column_parallel(x[:, tokens], [columns], group)[0], own(y)),
        "rows into my tokens": off(sequence_row_parallel(own(y), rows, group), down(y)[:, tokens]),
    }, {
        # (B, T, WIDTH/tp): not even of y's shape; all ranks' columns added up, column c to column c
        # + WIDTH/tp
        "all-reduce after columns": tuple(reduce_from_group(part, group).shape),
        # (B, T, D tp): as many partial sums side by side, and none of them is the sum
        "gather after rows": tuple(gather_from_group(partial, group).shape),
        "a partial sum": off(partial + rows.bias, down(y)),
    }  # fmt: skip


def sent(group):
    """Marks: what each mapping sends forward and backward, and the linear layers."""
    rank, tp = dist.get_rank(group), dist.get_world_size(group)
    tokens = (T, T // tp)
    layer = nn.Linear(D, WIDTH).double()
    columns, rows = (
        ColumnParallelLinear(layer, group),
        RowParallelLinear(nn.Linear(WIDTH, D).double(), group),
    )
    cases = {
        "f": (copy_to_group, (B, T, D)),
        "g": (reduce_from_group, (B, T, D)),
        "split": (split_to_group, (B, T, D)),
        "gather": (gather_from_group, (B, T, D // tp)),
        "G": (gather_sequence, (B, T // tp, D)),
        "S": (scatter_sequence, (B, T, D)),
        "columns": (lambda x, group: column_parallel(x, [columns] * 3, group)[0], (B, T, D)),
        "rows": (lambda x, group: row_parallel(x, rows, group), (B, T, WIDTH // tp)),
        "sequence columns": (
            lambda x, group: sum(sequence_column_parallel(x, [columns] * 3, group)),
            (B, T // tp, D),
        ),
        "regathered columns": (
            lambda x, group: sum(regathered_column_parallel(x, [columns] * 3, group)),
            (B, T // tp, D),
        ),
        "sequence rows": (
            lambda x, group: sequence_row_parallel(x, rows, group),
            (B, T, WIDTH // tp),
        ),
    }
    for what, (function, shape) in cases.items():
        x = draw(rank, *shape).requires_grad_()
        ledger.mark(f"{what} forward {tp}")
        y = function(x, group)
        ledger.mark(f"{what} backward {tp}")
        y.sum().backward()
        ledger.mark("")
    return tokens


def everything():
    mine = my_groups()
    seen = {}
    for members, group in mine.items():
        parts = plain_forms, linears, backward_leaves_the_gradient_it_is_given
        seen[members] = {part.__name__: part(group) for part in parts}
        if members != (1, 3):
            seen[members]["checks"] = checks(
                group, {"f and g", "f alone", "g alone"} if len(members) == 4 else None
            )
        if members in [(0, 1), (0, 1, 2, 3)]:
            sent(group)
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240)


def of(results, part):
    seen = [(members, results[member][members]) for members in GROUPS for member in members]
    return [(members, parts[part]) for members, parts in seen if part in parts]


def test_each_mapping_is_its_definition(results):
    for members, seen in of(results, "plain_forms"):
        assert all(seen.values()), (members, seen)


def test_gradcheck_passes_for_the_pairs_and_for_nothing_else(results):
    assert {members for members, _ in of(results, "checks")} == {(0,), (0, 1), (0, 1, 2, 3)}
    for members, passes in of(results, "checks"):
        alone = len(members) == 1  # on one rank they are all identities
        right = {"f and g", "split and join", "G and S"}
        assert passes == {what: what in right or alone for what in passes}, members
        assert len(passes) == (3 if len(members) == 4 else 7)


def test_backward_does_not_change_the_gradient_it_is_given(results):
    for _, (given, x_grad) in of(results, "backward_leaves_the_gradient_it_is_given"):
        assert given == x_grad == [1.0, 1.0, 1.0]


def test_columns_and_rows_are_the_plain_layers(results):
    for members, (errors, _) in of(results, "linears"):
        assert max(errors.values()) < 1e-12, (members, errors)


def test_the_common_errors_are_errors(results):
    """All-reduce after the column split, gather after the row split: told in many notes, and not
    even of the shape."""
    for members, (_, wrong) in of(results, "linears"):
        tp = len(members)
        assert wrong["all-reduce after columns"] == (B, T, WIDTH // tp)
        assert wrong["gather after rows"] == (B, T, D * tp)
        assert (wrong["a partial sum"] > 0.1) is (tp > 1)


@pytest.mark.parametrize("tp", [2, 4])
def test_what_is_sent_forward_and_backward(results, tp):
    n, wide = B * T * D, B * T * WIDTH
    expected = {  # in units of (tp-1) elements over all ranks
        "f": (0, 2 * n), "g": (2 * n, 0), "split": (0, n), "gather": (n, 0), "G": (n, n),
        "S": (n, n),
        "columns": (0, 2 * n), "rows": (2 * n, 0),
        "sequence columns": (n, n), "regathered columns": (n, 2 * n), "sequence rows": (n, n),
    }  # fmt: skip
    assert wide not in {x for pair in expected.values() for x in pair}, (
        "nothing as wide as the split dim travels"
    )
    for what, both in expected.items():
        for way, elements in zip(("forward", "backward"), both, strict=True):
            assert (
                results.ledger.section(f"{what} {way} {tp}").sent("elements") == (tp - 1) * elements
            ), (what, way)
