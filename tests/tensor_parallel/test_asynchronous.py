"""Asynchronous TP is plain TP: values, gradients, bytes; and each piece travels while
another is multiplied."""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from watching import beside_a_product, matmuls_marked, numbers, off

from lib import launch, ledger
from lib.collectives import ring_all_gather, ring_reduce_scatter
from lib.tensor_parallel.asynchronous import (
    asynchronous_column_parallel,
    asynchronous_row_parallel,
    gather_linear,
    linear_scatter,
)
from lib.tensor_parallel.gpt import sequence_parallel_gpt
from lib.tensor_parallel.sequence import regathered_column_parallel
from lib.training.model import GPT, Shape

GROUPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 3)]
B, T, D, WIDE = 2, 12, 5, 24  # D is not a multiple of any group's size, and need not be


def whole():
    """x (B, T, D), up (WIDE, D), down (D, WIDE), the gradient of the output (B, T, D)."""
    return [
        numbers(seed, *shape)
        for seed, shape in enumerate([(B, T, D), (WIDE, D), (D, WIDE), (B, T, D)])
    ]


def one_process():
    """[output, gradients of x, up, down]."""
    *leaves, dy = whole()
    x, up, down = (leaf.requires_grad_() for leaf in leaves)
    y = F.linear(F.gelu(F.linear(x, up)), down)
    y.backward(dy)
    return [y.detach(), x.grad, up.grad, down.grad]


def cut(x, dim, group):
    return x.tensor_split(dist.get_world_size(group), dim=dim)[dist.get_rank(group)]


def plain_column(x, up, group):
    """What gather_linear does, one thing after another; forward only."""
    gathered = ring_all_gather(x.transpose(0, 1).contiguous(), group).transpose(0, 1)  # (B, T, D)
    return F.linear(gathered, up)


def plain_row(h, down, group):
    return ring_reduce_scatter(F.linear(h, down).transpose(0, 1), group).transpose(0, 1)


def mlp(group, label):
    """[how far output and gradients are from one process's], and from the plain layers' output."""
    x, up, down, dy = whole()
    x, up, down, dy = cut(x, 1, group), cut(up, 0, group), cut(down, 1, group), cut(dy, 1, group)
    x, up, down = (leaf.clone().requires_grad_() for leaf in (x, up, down))
    ledger.mark(f"{label} column forward")
    h = gather_linear(x, up, group)  # (B, T, WIDE/N)
    ledger.mark(f"{label} row forward")
    y = linear_scatter(F.gelu(h), down, group)  # (B, T/N, D)
    # Two backwards, so that the log tells them apart.
    ledger.mark(f"{label} row backward")
    dh, d_down = torch.autograd.grad(y, (h, down), dy, retain_graph=True)
    ledger.mark(f"{label} column backward")
    dx, d_up = torch.autograd.grad(h, (x, up), dh, retain_graph=True)
    ledger.mark("")
    want, dims = one_process(), (1, 1, 0, 1)
    ours = [y.detach(), dx, d_up, d_down]
    with torch.no_grad():
        from_plain = off(h, plain_column(x, up, group)), off(y, plain_row(F.gelu(h), down, group))
    y.backward(dy)  # and in one go
    gradients = [x.grad, up.grad, down.grad]
    return (
        [off(a, cut(b, dim, group)) for a, b, dim in zip(ours, want, dims, strict=True)]
        + [
            off(a, cut(b, dim, group))
            for a, b, dim in zip(gradients, want[1:], dims[1:], strict=True)
        ]
        + list(from_plain)
    )


# 3 heads each at tp 4
SHAPE = Shape(vocab_size=12, seq_len=T, n_layers=2, hidden=24, n_heads=12, mlp_hidden=36)


def gpt(group):
    """How far a sequence parallel GPT with asynchronous layers is from one with plain ones: loss
    and gradients."""
    tokens = torch.randint(
        SHAPE.vocab_size, (B, T + 1), generator=torch.Generator("cpu").manual_seed(1), device="cpu"
    )
    tokens = tokens.to(torch.get_default_device())
    seen = []
    for columns in (regathered_column_parallel, asynchronous_column_parallel):
        model = sequence_parallel_gpt(GPT(SHAPE).double(), group, columns)
        if columns is asynchronous_column_parallel:
            for block in model.blocks:
                block.attention.out.row_linear = block.mlp.down.row_linear = (
                    asynchronous_row_parallel
                )
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        model.sum_gradients()
        seen.append(
            {"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters()}
        )
    plain, ours = seen
    return {
        name: off(ours[name], x, plain[name.replace("k.bias", "k.weight")])
        for name, x in plain.items()
    }


def overlapped():
    """On all ranks: the same, every product marked."""
    x, up, down, dy = whole()
    x, up, down, dy = cut(x, 1, None), cut(up, 0, None), cut(down, 1, None), cut(dy, 1, None)
    x, up, down = (leaf.clone().requires_grad_() for leaf in (x, up, down))
    with matmuls_marked("gather"):
        h = gather_linear(x, up)
    with matmuls_marked("scatter"):
        y = linear_scatter(h, down)
    with matmuls_marked("backward"):
        y.backward(dy)
    with torch.no_grad(), matmuls_marked("plain"):
        plain_row(plain_column(x, up, None), down, None)


def refused():
    try:
        linear_scatter(torch.zeros(1, 7, 3), torch.zeros(4, 3))
    except ValueError as error:
        return str(error)


def run_each():
    groups = {members: dist.new_group(members) for members in GROUPS}
    seen = {m: mlp(groups[m], str(m)) for m in GROUPS if dist.get_rank() in m}
    overlapped()
    return seen, refused(), {m: gpt(groups[m]) for m in GROUPS if dist.get_rank() in m}


@functools.cache
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=240)


def test_outputs_and_gradients_are_one_processs_and_the_plain_layers():
    for members in GROUPS:
        for rank in members:
            far = results()[rank][0][members]
            assert len(far) == 9 and max(far) < 1e-12, (members, rank, far)


def test_a_gpt_with_asynchronous_layers_is_the_sequence_parallel_gpt():
    for members in GROUPS:
        for rank in members:
            far = results()[rank][2][members]
            assert set(far) == {"loss", *dict(GPT(SHAPE).named_parameters())}
            assert max(far.values()) < 1e-12, (members, rank, far)


def test_bytes_are_the_formula():
    for members in GROUPS:
        N = len(members)
        piece = B * (T // N) * D * 8
        for section, pieces in [
            ("column forward", N - 1),
            ("row forward", N - 1),
            ("row backward", N - 1),
            ("column backward", 2 * (N - 1)),
        ]:
            log = results().ledger.section(f"{members} {section}")
            for r, rank in enumerate(members):
                assert log.sent("bytes", rank) == pieces * piece, (members, section, rank)
                assert {e.peer for e in log.of(rank) if e.op == "send"} <= {members[(r + 1) % N]}


def test_every_piece_travels_while_another_is_multiplied():
    log = results().ledger
    for rank in range(4):
        # a send and a receive of 3 pieces
        assert beside_a_product(log, rank, "gather") == [True] * 6
        assert beside_a_product(log, rank, "scatter") == [True] * 6
        assert beside_a_product(log, rank, "backward") == [True] * 18
        # what the watch says of the plain layers
        assert beside_a_product(log, rank, "plain") == [False] * 12


def test_tokens_that_cannot_be_divided_are_refused():
    for _, said, _ in results():
        assert said == "7 tokens over 4 ranks: all shards of the sum have one size, use 8 tokens"
