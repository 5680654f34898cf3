"""Compares each distributed part of a mixture of experts with a single process that has all
experts, and reports the errors and what is sent.

Every function runs on the ranks of a launch, and all ranks call it with the same arguments:

    ranks = launch.run(compare.expert_parallel, SHAPE, Layer, exchange_tokens, nproc=4)
    ranks[0]                                             the errors on rank 0
    ranks.ledger.section("layer").sent("bytes")          what was sent in this section

An error is the largest difference between two tensors, relative to the largest value of the
reference.
Weights come from seeds, so they are the same on every rank, and each rank has tokens of its own.
Layers and functions are passed as arguments, so your own can be compared as well.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lib import backend, collectives, ledger
from lib.measuring.errors import error, seeded
from lib.moe.choice import Choice
from lib.moe.correlated import CorrelatedGate, co_activation_counts
from lib.moe.dropless import GroupedExperts
from lib.moe.expert_parallel import ExpertParallelMoE
from lib.moe.gates import switch_gate, top_k_gate
from lib.moe.gpt import MoEGPT, expert_parallel_gpt
from lib.moe.layer import MoE
from lib.moe.overlapped import SharedMoE
from lib.training.model import MLP, Shape


def worst(ranks: Sequence[Mapping[str, float]]) -> str:
    """The largest error of any rank as text: "output 2e-16, gradient of the tokens 4e-16".
    Counts, which are whole numbers, are left out."""
    errors = [name for name, value in ranks[0].items() if isinstance(value, float)]
    return ", ".join(f"{name} {max(rank[name] for rank in ranks):.0e}" for name in errors)


def expert_parallel(
    shape: Shape, layer_class: type[ExpertParallelMoE], exchange: Callable, factor: float = 1.0
) -> dict[str, float]:
    """The errors of an expert-parallel layer in float64, forward and backward, and the number of
    pairs that this rank dropped. The single process routes each rank's tokens separately."""
    rank, ep = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    one = MoE(shape.hidden, [MLP(shape) for _ in range(8)], switch_gate, factor).double()
    layer = with_exchange(layer_class, exchange, one)
    sets = [_tokens(40 + 10 * r, shape.hidden, r, torch.float64) for r in range(ep)]
    x = sets[rank].detach().clone().requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    outputs = [one(tokens) for tokens in sets]
    torch.stack([z.square().sum() for z in outputs]).sum().backward()
    router = collectives.all_reduce(layer.router.weight.grad.clone())
    experts = [
        error(p.grad, one.get_parameter(f"experts.{name}").grad)
        for name, p in layer.experts.named_parameters()
    ]
    return {
        "output": error(y, outputs[rank]),
        "gradient of the tokens": error(x.grad, sets[rank].grad),
        "of the router": error(router, one.router.weight.grad),
        "of the experts": max(experts),
        "dropped": layer.last.dropped.item(),
    }


def tokens_to_ranks(shape: Shape) -> list[int]:
    """How many of this rank's 64 tokens an untrained Switch router sends to each rank. Dropped
    tokens are not sent."""
    torch.manual_seed(0)  # the same router on all ranks
    layer: Any = ExpertParallelMoE(MoE(shape.hidden, [MLP(shape) for _ in range(8)]))
    layer(_tokens(64, shape.hidden, dist.get_rank()))
    return _to_ranks(layer).tolist()


def layer_traffic(shape: Shape, k: int, n: int = 256) -> int:
    """Run one step of a layer with 8 experts and n tokens on each rank, in the ledger's section
    "step".

    Returns how many of this rank's routed tokens have their expert on another rank.
    """
    gate = switch_gate if k == 1 else lambda logits: top_k_gate(logits, k)
    torch.manual_seed(0)  # the same router on all ranks
    layer: Any = ExpertParallelMoE(MoE(shape.hidden, [MLP(shape) for _ in range(8)], gate))
    x = _tokens(n, shape.hidden, dist.get_rank())
    ledger.mark("step")
    layer(x).square().sum().backward()
    ledger.mark("")
    to_ranks = _to_ranks(layer)
    return int(to_ranks.sum() - to_ranks[dist.get_rank()])


def _to_ranks(layer):
    """How many of this rank's routed tokens have their expert on each rank, (ep,)."""
    return layer.last.load.view(dist.get_world_size(), -1).sum(1)


def partner_router(n_experts: int, similar: float, D: int = 64) -> Tensor:
    """A router's matrix (D, E) that gives standard normal logits. Those of experts e and e + E/2
    have the correlation `similar`; with 0 they are independent."""
    shared = torch.randn(D, n_experts // 2, generator=seeded(0)).repeat(1, 2)
    own = torch.randn(D, n_experts, generator=seeded(1))
    return (similar**0.5 * shared + (1 - similar) ** 0.5 * own) / D**0.5


def adapt(gate: CorrelatedGate, router: Tensor, steps: int = 60, n: int = 512) -> CorrelatedGate:
    """Update the gate with `steps` batches of n random tokens through this router (D, E), and
    return it."""
    for step in range(steps):
        logits = torch.randn(n, len(router), generator=seeded(step)) @ router
        gate.update(co_activation_counts(gate(logits).experts, router.shape[1]))
    return gate


def changed_choices(gate: CorrelatedGate, router: Tensor, n: int = 4096) -> float:
    """The fraction of n random tokens for which the gate selects other experts than top-k does."""
    logits = torch.randn(n, len(router), generator=seeded(1000)) @ router
    pairs = zip(gate(logits).experts, top_k_gate(logits, gate.k).experts, strict=True)
    return sum(set(a.tolist()) != set(b.tolist()) for a, b in pairs) / n


def forward_traffic(
    layer_class: type[ExpertParallelMoE], gate: Callable, router: Tensor, n: int = 64
) -> dict[str, Any]:
    """Run the forward pass of n tokens on each rank through a layer with this router (D, E).

    Returns how many of this rank's pairs chose each expert, "chosen" (E,), and how many routed
    tokens it sends to other ranks in dispatch, "sent".
    """
    (D, n_experts), rank, sent = router.shape, dist.get_rank(), []
    shape = Shape(104, 32, 2, D, 4)
    one = MoE(D, [MLP(shape) for _ in range(n_experts)], gate, factor=n_experts)
    one.router.weight.data.copy_(router.t())
    layer: Any = layer_class(one)
    exchange = layer.exchange

    def counted(rows, send_counts, receive_counts):
        if rows.dim() == 2:  # tokens, not their weights or indices
            sent.append(sum(send_counts) - send_counts[rank])
        return exchange(rows, send_counts, receive_counts)

    layer.exchange = counted
    with torch.no_grad():
        layer(_tokens(n, D, rank))
    return {"chosen": layer.last.requested.tolist(), "sent": sent[0]}


class FixedExpert(nn.Module):
    """gelu(x w_in) w_out, one expert of a GroupedExperts: its weights are views."""

    def __init__(self, w_in: Tensor, w_out: Tensor) -> None:
        super().__init__()
        self.w_in, self.w_out = nn.Parameter(w_in), nn.Parameter(w_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x @ self.w_in) @ self.w_out


def torch_layer(
    torch_moe: Callable, layer_class: type[ExpertParallelMoE], exchange: Callable
) -> dict[str, float]:
    """The differences between torch_moe(x, choice, w_in, w_out) and an ExpertParallelMoE in which
    nothing is dropped, with the same weights and choices: 8 experts of width 32, top-2.

    Everything is in float32, or on a GPU in bfloat16, because torch's grouped GEMM requires it
    there.
    """
    rank, ep, D, E = dist.get_rank(), dist.get_world_size(), 64, 8
    dtype = torch.bfloat16 if backend.device().type == "cuda" else torch.float32
    torch.manual_seed(0)
    w_in, w_out = torch.randn(E, D, 32, dtype=dtype) / 8, torch.randn(E, 32, D, dtype=dtype) / 6
    here = slice(rank * E // ep, (rank + 1) * E // ep)
    choice = top_k_gate(torch.randn(50, E, generator=seeded(10 + rank)), 2)
    one = MoE(D, [FixedExpert(w_in[e], w_out[e]) for e in range(E)], lambda _: choice, E / 2)
    layer = with_exchange(layer_class, exchange, one.to(dtype))
    x = [_tokens(50, D, rank, dtype) for _ in range(2)]
    mine = [w[here].clone().requires_grad_() for w in (w_in, w_out)]
    y, z = layer(x[0]), torch_moe(x[1], choice, *mine)
    y.square().sum().backward()
    z.square().sum().backward()
    theirs = [torch.stack([getattr(e, name).grad for e in layer.experts.values()])
              for name in ("w_in", "w_out")]  # fmt: skip
    return {
        "output": error(z, y),
        "gradient of the tokens": error(x[1].grad, x[0].grad),
        "of the experts": max(error(w.grad, its) for w, its in zip(mine, theirs, strict=True)),
    }


def data_parallel(shape: Shape, reduce: Callable, ep: int, batch: Callable) -> dict[str, float]:
    """The error of all gradients of a GPT with experts in float64, on a mesh of dp x ep, compared
    with a single process that takes the mean of the ranks' losses. batch(step, rank, N) returns a
    rank's part of a batch."""
    rank, N = dist.get_rank(), dist.get_world_size()
    ep_group, expert_dp_group = collectives.node_groups(ep)
    one = MoEGPT(shape, n_experts=4).double()
    part = expert_parallel_gpt(one, ep_group)
    part.loss(*batch(0, rank, N)).backward()
    reduce(part, expert_dp_group)
    torch.stack([one.loss(*batch(0, r, N)) for r in range(N)]).mean().backward()
    gradient = lambda p: torch.zeros_like(p) if p.grad is None else p.grad
    pairs = [(gradient(p).flatten(), gradient(one.get_parameter(name)).flatten())
             for name, p in part.named_parameters()]  # fmt: skip
    return {"gradients": error(*map(torch.cat, zip(*pairs, strict=True)))}


def in_halves(layer_class: type[SharedMoE], start_exchange: Callable) -> dict[str, float]:
    """The errors of an overlapped layer in float64 against a SharedMoE, with so few slots that
    some pairs are dropped. Sections of the ledger: plain, in halves."""
    shape, found = Shape(104, 32, 2, 64, 4), []
    for name, kind in (("plain", SharedMoE), ("in halves", layer_class)):
        torch.manual_seed(0)
        one = MoE(64, [MLP(shape) for _ in range(4)], factor=1.0).double()
        layer = with_start(kind, start_exchange, one, MLP(shape).double())
        x = _tokens(50, 64, dist.get_rank(), torch.float64)
        ledger.mark(name)
        y = layer(x)
        y.square().sum().backward()
        ledger.mark("")
        gradients = [p.grad.flatten() for p in layer.parameters()]
        found.append((y.detach(), x.grad, torch.cat(gradients)))
    names = ("output", "gradient of the tokens", "of the parameters")
    return {name: error(mine, plain) for name, plain, mine in zip(names, *found, strict=True)}


def with_exchange(kind: type[ExpertParallelMoE], exchange: Callable, *parts: Any) -> Any:
    """A layer kind(*parts) that exchanges tokens with the given exchange_tokens."""
    layer: Any = kind(*parts)
    layer.exchange = lambda tokens, send, receive: exchange(
        tokens, send, receive, layer.group, layer.all_to_all
    )
    return layer


def with_start(kind: type[SharedMoE], start_exchange: Callable, *parts: Any) -> Any:
    """A layer kind(*parts) that starts its exchanges with the given start_exchange."""
    layer: Any = kind(*parts)
    layer.start_exchange = lambda tokens, send, receive: start_exchange(
        tokens, send, receive, layer.group, layer.all_to_all, layer.start
    )
    return layer


def token_by_token(dropless: Callable, grouped_mm: Callable) -> dict[str, float]:
    """The error of a dropless layer in float64, compared with a single-process baseline that
    computes one token at a time, and how many pairs this rank sends to other ranks. No token
    chooses expert 0.

    Section of the ledger: layer.
    """
    rank, ep, E = dist.get_rank(), dist.get_world_size(), 8
    torch.manual_seed(0)
    every = GroupedExperts(E, 64, 32).double()  # all experts, on every rank
    mine = GroupedExperts(E // ep, 64, 32, grouped_mm).double()
    here = slice(rank * E // ep, (rank + 1) * E // ep)
    mine.load_state_dict({name: w[here] for name, w in every.state_dict().items()})
    x = _tokens(40, 64, rank, torch.float64).detach()
    logits = torch.randn(40, E, generator=seeded(10 + rank), dtype=torch.float64)
    choice = top_k_gate(logits.index_fill(1, torch.tensor([0]), -9.0), 2)
    ledger.mark("layer")
    y = dropless(x, choice, E, mine)
    ledger.mark("")
    return {
        "output": error(y, _by_hand(x, choice, every)),
        "elsewhere": int((choice.experts // (E // ep) != rank).sum()),
    }


def _by_hand(x: Tensor, choice: Choice, every: GroupedExperts) -> Tensor:
    rows = []
    for token, (experts, weights) in enumerate(
        zip(choice.experts.tolist(), choice.weights, strict=True)
    ):
        outputs = [F.gelu(x[token] @ every.w_in[e]) @ every.w_out[e] for e in experts]
        rows.append(weights @ torch.stack(outputs))
    return torch.stack(rows)


def _tokens(n: int, D: int, rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random tokens (n, D), different on each rank and the same in every call."""
    return torch.randn(n, D, generator=seeded(100 + rank), dtype=dtype).requires_grad_()


__all__ = [
    "adapt", "changed_choices", "data_parallel", "expert_parallel", "forward_traffic",
    "in_halves", "layer_traffic", "partner_router", "token_by_token", "tokens_to_ranks",
    "torch_layer", "with_exchange", "with_start", "worst",
]  # fmt: skip
