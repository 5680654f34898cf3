"""Trains a model without balancing and with three ways to balance its router, on ranks whose texts
differ. This shows what changes if the load is counted over all ranks instead of over each rank's
own tokens.

    rank 0's tokens -> experts   5 3 0 0     f of rank 0: .62 .38 0 0     f of rank 1: 0 0 .5 .5
    rank 1's tokens -> experts   0 0 4 4     f of all ranks: .31 .19 .25 .25

f is the fraction of the choices that each expert gets. If each rank computes f from its own tokens,
the loss makes every rank spread its tokens over all experts. If f is computed over all ranks, only
the sum has to be even, so an expert may specialise in the text of one rank (Qiu et al. 2025).

All ranks read the same pages, but each in an alphabet of its own, a permutation of the characters
that depends on the rank. The texts are therefore as different as four languages, and equally hard.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives
from lib.backend import Group
from lib.moe.balance import SigmoidExpertBiasGate
from lib.moe.choice import Choice, load
from lib.moe.gates import top_k_gate
from lib.moe.gpt import MoEGPT
from lib.moe.gradients import reduce_gradients
from lib.training import text as texts
from lib.training.model import Shape

KINDS = ("no balancing", "loss per rank", "loss over all ranks", "expert bias")
SHAPE = Shape(vocab_size=104, seq_len=32, n_layers=2, hidden=64, n_heads=4)
E, K = 8, 2


def train(
    kind: str,
    auxiliary: Callable[[Tensor, Tensor], Tensor],
    steps: int = 80,
    rate: float = 0.1,
    seed: int = 0,
) -> tuple[Tensor, float]:
    """Train with data parallelism over all ranks, 4 sequences each, and drop nothing. Returns on
    each rank (how many of its pairs chose each expert in each step, (steps, E); the mean loss on
    its text in the last ten steps).

    kind: one of KINDS. auxiliary: called as `lib.moe.auxiliary_loss`. rate: the factor of the loss;
    the bias moves by a tenth of it in each step. Sends in each step: the gradients and, if the kind
    needs them, the choices or loads of all ranks.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gate = SigmoidExpertBiasGate(E, K, rate / 10) if kind == "expert bias" else None
    choices: list[Choice] = []

    def noting(logits):
        choices.append(top_k_gate(logits, K) if gate is None else gate(logits))
        return choices[-1]

    # with a factor of E/k nothing is dropped
    model = MoEGPT(SHAPE, E, noting, factor=E / K, auxiliary=0.0, z=0.0, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text, alphabet = texts.load().train, alphabet_of(rank)
    loads, losses = [], []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 20)
        optimizer.zero_grad()
        tokens, targets = texts.batch(text, step, rank, ranks, 4 * ranks, SHAPE.seq_len)
        loss = model.loss(alphabet[tokens], alphabet[targets])
        losses.append(loss.item())
        if kind.startswith("loss"):
            counted = all_choices(choices[-1], over_ranks="all ranks" in kind)
            loss = loss + rate * auxiliary(*counted)
        loss.backward()
        # every rank has all experts, so all gradients are averaged; torch's own all-reduce is
        # faster when four ranks share two cores
        reduce_gradients(model, None, all_reduce=torch_all_reduce)
        optimizer.step()
        loads.append(load(choices[-1].experts, E))
        if gate is not None:
            gate.update(collectives.all_reduce(loads[-1].clone()))
    return torch.stack(loads), sum(losses[-10:]) / len(losses[-10:])


def torch_all_reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """torch's all_reduce, with the arguments of the course's own all_reduce."""
    dist.all_reduce(tensor, group=group)
    return tensor


def all_choices(choice: Choice, over_ranks: bool) -> tuple[Tensor, Tensor]:
    """The arguments for an auxiliary loss that counts all k choices of each token of this rank, or
    of all ranks if `over_ranks` is set: probabilities (n', E) and experts (n',) for n' choices.

    The loss needs only the mean of the probabilities, so we repeat them until there is a row for
    each choice. All ranks need the same number of tokens. A system that computes f itself would
    all-reduce E counts instead.
    """
    experts = choice.experts.flatten()  # (n*k,)
    if over_ranks:
        experts = collectives.all_gather(experts)  # (N*n*k,)
    return choice.probabilities.repeat(len(experts) // len(choice.probabilities), 1), experts


def alphabet_of(rank: int) -> Tensor:
    """A permutation of the vocabulary, a different one for each rank: (V,) int64."""
    generator = torch.Generator("cpu").manual_seed(100 + rank)
    order = torch.randperm(SHAPE.vocab_size, generator=generator, device="cpu")
    return order.to(torch.get_default_device())


def compare(
    auxiliary: Callable[[Tensor, Tensor], Tensor], steps: int = 80
) -> dict[str, tuple[Tensor, float]]:
    """Train all KINDS one after the other. Returns on each rank {kind: (the share of this rank's
    pairs that chose each expert in the last ten steps, (E,); the mean of the ranks' losses in these
    steps)}.

    Sends: what `train` sends, and an all-reduce of one loss for each kind.
    """
    found = {}
    for kind in KINDS:
        loads, loss = train(kind, auxiliary, steps)
        pairs = loads[-10:].sum(0).double()
        losses = collectives.all_reduce(torch.tensor([loss], dtype=torch.float64))
        found[kind] = pairs / pairs.sum(), losses.item() / dist.get_world_size()
    return found
