"""Ulysses and attention with gathered keys are attention: outputs, gradients, and numbers sent as
the table says."""

import functools

import pytest
import torch
import torch.distributed as dist
from watching import numbers, off

from lib import launch, ledger
from lib.tensor_parallel.context_parallel import context_parallel_gpt, shard
from lib.tensor_parallel.layouts import contiguous, zigzag
from lib.tensor_parallel.ring_attention import ring_attention
from lib.tensor_parallel.ulysses import elements_sent, gathered_attention, ulysses_attention
from lib.training.model import GPT, Shape, causal_attention

WAYS = {"ring": ring_attention, "gathered": gathered_attention, "Ulysses": ulysses_attention}
B, d = 2, 3
# T, H, K, causal, members: more key/value heads than ranks, as many, fewer; last not the world's
# ranks
CASES = [
    *((16, H, K, causal, tuple(range(cp))) for causal in (True, False)
      for cp, H, K in ((1, 2, 1), (2, 8, 4), (4, 8, 4), (4, 8, 2), (4, 4, 1))),
    (12, 6, 3, True, (0, 1, 2)), (13, 6, 3, True, (0, 1, 2)), (12, 4, 2, True, (1, 3)),
]  # fmt: skip


def plain(q, k, v, d_out, causal):
    """[output, gradient of q, of k, of v] of the whole sequence."""
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    everything = functools.partial(
        torch.nn.functional.scaled_dot_product_attention, enable_gqa=True
    )
    out = causal_attention(q, k, v) if causal else everything(q, k, v)
    out.backward(d_out)
    return [out.detach(), q.grad, k.grad, v.grad]


def run_each():
    seen, groups = (
        {},
        {members: dist.new_group(members) for members in {case[-1] for case in CASES}},
    )
    for case in CASES:
        T, H, K, causal, members = case
        if dist.get_rank() not in members:
            continue
        group, cp = groups[members], len(members)
        layout = (zigzag if causal else contiguous)(T, cp)
        mine = layout[dist.get_rank(group)]
        whole = [numbers(seed, B, heads, T, d) for seed, heads in enumerate((H, K, K, H))]
        right = plain(*whole, causal)
        for way, attention in WAYS.items():
            if T % (2 * cp) and way == "gathered":
                continue
            leaves = [x[:, :, mine].clone().requires_grad_() for x in whole[:3]]
            ledger.mark(f"forward {way} {case}")
            out = attention(*leaves, layout, group, causal=causal)
            ledger.mark(f"backward {way} {case}")
            out.backward(whole[3][:, :, mine])
            ledger.mark("")
            got = [out.detach(), *(x.grad for x in leaves)]
            seen[way, case] = max(off(x, y[:, :, mine]) for x, y in zip(got, right, strict=True))
    return seen, refused()


def refused():
    """What is said where the heads do not divide."""
    said, layout = [], contiguous(8, 4)
    for H, K in ((6, 6), (12, 3)):
        q, k = torch.zeros(1, H, 2, d), torch.zeros(1, K, 2, d)
        with pytest.raises(ValueError) as error:
            ulysses_attention(q, k, k, layout)
        said.append(str(error.value))
    return said


@functools.cache
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=240)


def test_outputs_and_gradients_are_those_of_plain_attention():
    for rank, (seen, _) in enumerate(results()):
        assert {way for way, _ in seen} == set(WAYS)
        assert all(apart < 1e-12 for apart in seen.values()), (rank, seen)


def test_elements_sent_are_those_of_the_table():
    counted = 0
    for T, H, K, causal, members in CASES:
        for way, expected in elements_sent(B, T, d, H, K, len(members)).items():
            for section, n in zip(("forward", "backward"), expected, strict=True):
                label = f"{section} {way} {(T, H, K, causal, members)}"
                if label in results().ledger.marks and not (T % len(members) and way == "Ulysses"):
                    assert results().ledger.section(label).sent("elements") == n, label
                    counted += 1
    assert counted >= 6 * len(CASES) - 4


def test_heads_that_do_not_divide_are_refused_with_their_numbers():
    for _, (more, neither) in results():
        assert "6 query heads on 6 key/value heads, cp=4 ranks" in more
        assert (
            "12 query heads on 3 key/value heads, cp=4 ranks" in neither
            and "or ring attention" in neither
        )


def whole_model():
    shape = Shape(17, seq_len=8, n_layers=2, hidden=16, n_heads=4, n_kv_heads=2)
    torch.manual_seed(0)
    plain, tokens = GPT(shape).double(), torch.randint(17, (2, 9))
    loss, layout, apart = plain.loss(tokens[:, :-1], tokens[:, 1:]), zigzag(8, 2), []
    loss.backward()
    for attention in WAYS.values():
        part = context_parallel_gpt(plain, layout, mix=attention)
        mine = part.loss(shard(tokens[:, :-1], layout), shard(tokens[:, 1:], layout))
        mine.backward()
        part.sum_gradients()
        apart.append(
            off(
                *(
                    torch.cat([p.grad.flatten() for p in model.parameters()])
                    for model in (part, plain)
                )
            )
        )
    return max(apart)


def test_a_whole_gpt_has_the_same_gradients_by_each_way():
    assert max(launch.capture(whole_model, backend="gloo", nproc=2, timeout=240)) < 1e-12
