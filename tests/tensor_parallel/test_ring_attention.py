"""Ring attention is attention: outputs and gradients, bytes, memory, and messages that travel
beside the products."""

import functools

import pytest
import torch
import torch.distributed as dist
from parallels import pairs_computed
from watching import Watch, beside_a_product, matmuls_marked, numbers, off

from lib import launch, ledger
from lib.tensor_parallel.layouts import contiguous, zigzag
from lib.tensor_parallel.ring_attention import ring_attention
from lib.training.model import causal_attention

GROUPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 3)]  # the last one's ranks are not the world's
LAYOUTS = {"contiguous": contiguous, "zigzag": zigzag}
B, d = 2, 3
CASES = [  # layout, T, H, K, members; 24 tokens are equal shards and 13 are not
    (layout, T, H, K, members)
    for layout in LAYOUTS
    for T, H, K in [(24, 4, 4), (24, 4, 2), (13, 3, 1)]
    for members in GROUPS
]
# LARGE: scores differ by thousands, exp of one alone is infinite or nothing
SMALL, LARGE = 1.0, 40.0


def inputs(T, H, K, size=SMALL):
    """q (B, H, T, d), k, v (B, K, T, d), and a gradient of the output: the whole
    sequence's, on every rank."""
    q, k, v, d_out = (numbers(seed, B, heads, T, d) for seed, heads in enumerate((H, K, K, H)))
    # Later keys weigh more, so that every block raises the maximum of those before it.
    return (
        q * size,
        k * size * torch.linspace(0.1, 1, T, dtype=q.dtype, device=q.device)[:, None],
        v,
        d_out,
    )


def plain(q, k, v, d_out, causal=True):
    """[output, gradient of q, of k, of v] of plain attention over the whole sequence."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    everything = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, enable_gqa=True
    )
    out = causal_attention(*leaves) if causal else everything(*leaves)
    out.backward(d_out)
    return [out.detach(), *(x.grad for x in leaves)]


def on_a_ring(q, k, v, d_out, layout, group, label=None, causal=True):
    """The same four of this rank's tokens."""
    mine = layout[dist.get_rank(group)]
    leaves = [x[:, :, mine].clone().requires_grad_() for x in (q, k, v)]
    if label:
        ledger.mark(f"forward {label}")
    out = ring_attention(*leaves, layout, group, causal=causal)
    if label:
        ledger.mark(f"backward {label}")
    out.backward(d_out[:, :, mine])
    ledger.mark("")
    return [out.detach(), *(x.grad for x in leaves)]


def run_each():
    groups = {members: dist.new_group(members) for members in GROUPS}
    seen = {}
    for size in (SMALL, LARGE):
        for case in CASES:
            name, T, H, K, members = case
            if dist.get_rank() in members:
                group, whole = groups[members], inputs(T, H, K, size)
                layout = LAYOUTS[name](T, len(members))
                ours = on_a_ring(*whole, layout, group, str(case) if size == SMALL else None)
                mine = layout[dist.get_rank(group)]
                right = plain(*whole)
                # Relative to the whole sequence's: LARGE scores leave some ranks gradients of
                # nearly nothing.
                seen[size, case] = [
                    off(x, y[:, :, mine], scale=y) for x, y in zip(ours, right, strict=True)
                ]
                # LARGE: who sees every key sees one alone, without gradient
                if name == "contiguous" and size == SMALL:
                    ours, right = (
                        on_a_ring(*whole, layout, group, causal=False),
                        plain(*whole, causal=False),
                    )
                    seen[size, case] += [
                        off(x, y[:, :, mine], scale=y) for x, y in zip(ours, right, strict=True)
                    ]
    return seen


@functools.cache
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=240)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_outputs_and_gradients_are_those_of_plain_attention(size):
    for case in CASES:
        for rank in case[-1]:
            assert max(results()[rank][size, case]) < 1e-12, (
                case,
                rank,
                results()[rank][size, case],
            )


def test_bytes_are_the_formula_and_only_right_neighbours_get_any():
    for case in CASES:
        name, T, _, K, members = case
        layout, cp = LAYOUTS[name](T, len(members)), len(members)
        for section, times in (("forward", 1), ("backward", 2)):
            log = results().ledger.section(f"{section} {case}")
            for r, rank in enumerate(members):
                # All ranks' k and v leave here but the right neighbour's, and all gradients but
                # one's own.
                kept_back = [(r + 1) % cp, r][:times]
                tokens = sum(T - len(layout[i]) for i in kept_back)
                assert log.sent("bytes", rank) == 2 * B * K * tokens * d * 8, (section, case, rank)
                assert log.sent("messages", rank) == times * (cp - 1)
                peers = {e.peer for e in log.of(rank) if e.op == "send"}
                assert peers == ({members[(r + 1) % cp]} if cp > 1 else set())
            assert log.sent("bytes") == times * (cp - 1) * 2 * B * K * T * d * 8


def watched(attend):
    """(largest tensor that an operator made, elements that went through exp in forward,
    gradients' elements)."""
    largest, exps = [0], [0]

    def seen(op, result):
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor):
                largest[0] = max(largest[0], x.numel())
        if op is torch.ops.aten.exp_.default:
            exps[0] += result.numel()

    with Watch(seen):
        attend()
    return largest[0], exps[0]


def memory():
    """{(layout, what): (largest tensor, exps)}, 4 ranks, 48 tokens."""
    whole, seen = inputs(48, 4, 2), {}
    seen["plain"] = watched(lambda: plain(*whole))
    for name in LAYOUTS:
        layout = LAYOUTS[name](48, 4)
        mine = layout[dist.get_rank()]
        q, k, v, d_out = (x[:, :, mine].clone().requires_grad_(i < 3) for i, x in enumerate(whole))
        out = []
        seen[name, "forward"] = watched(lambda: out.append(ring_attention(q, k, v, layout)))  # noqa: B023
        seen[name, "backward"] = watched(lambda: out[0].backward(d_out))  # noqa: B023
        with matmuls_marked(f"{name} forward"):
            out = ring_attention(q, k, v, layout)
        with matmuls_marked(f"{name} backward"):
            out.backward(d_out)
    return seen


@functools.cache
def memory_results():
    return launch.capture(memory, backend="gloo", nproc=4, timeout=120)


def test_no_tensor_is_larger_than_a_block_of_scores():
    H, T, t = 4, 48, 12
    for rank, seen in enumerate(memory_results()):
        assert seen["plain"][0] == B * H * T * T
        for name in LAYOUTS:
            for way in ("forward", "backward"):
                assert seen[name, way][0] == B * H * t * t, (rank, name, way)


def test_each_rank_computes_its_rectangles_once_each_way():
    H = 4
    for name, layout in LAYOUTS.items():
        pairs = [sum(steps) for steps in pairs_computed(layout(48, 4))]
        assert [seen[name, "forward"][1] for seen in memory_results()] == [B * H * n for n in pairs]
        assert [seen[name, "backward"][1] for seen in memory_results()] == [
            B * H * n for n in pairs
        ]
    assert pairs == [360] * 4  # zigzag: (cp + 1)/2 * t^2


def test_the_next_block_travels_while_this_one_is_computed():
    log = memory_results().ledger
    for rank in range(4):
        forward, backward = (
            beside_a_product(log, rank, f"zigzag {way}") for way in ("forward", "backward")
        )
        assert forward == [True] * 2 * 3  # a send and a receive in each of cp - 1 steps
        # The gradients' last hop has nothing to run beside: its send and its receive are the last
        # two.
        assert backward == [True] * (2 * 6 - 2) + [False] * 2
        # The contiguous layout passes on what it does not compute: rank 3 alone has work at every
        # step.
        assert sum(beside_a_product(log, rank, "contiguous forward")) == 2 * min(rank + 1, 3)


def refused():
    q, said = torch.zeros(1, 4, 3, 2), []
    for k, v, layout in [
        (q, q, contiguous(8, 2)),
        (q, q, contiguous(9, 3)),
        (q[:, :3], q[:, :3], contiguous(6, 2)),
        (q, q[:, :2], contiguous(6, 2)),
    ]:
        try:
            ring_attention(q, k, v, layout)
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_does_not_fit_is_refused_with_its_numbers():
    for rank, said in enumerate(launch.capture(refused, backend="gloo", nproc=2, timeout=300)):
        assert (
            f"rank {rank} of 2 has 3 tokens, but the layout gives [4, 4]: make the layout for this "
            f"group" in said[0]
        )
        assert f"rank {rank} of 2 has 3 tokens, but the layout gives [3, 3, 3]" in said[1]
        assert (
            "k (1, 3, 3, 2) and v (1, 3, 3, 2): k and v have (B, K, t, d) = (1, K, 3, 2), and K "
            "divides 4" in said[2]
        )
        assert "k (1, 4, 3, 2) and v (1, 2, 3, 2)" in said[3] and len(said) == 4
