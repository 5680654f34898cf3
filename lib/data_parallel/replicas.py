"""Checks that the replicas are still the same. The ranks exchange a checksum of every tensor, and
the error names the first one that differs.

    rank 0  w: 8f3a...  b: 01c7...  --+
    rank 1  w: 8f3a...  b: 01c7...  --+-- one all-gather, 8 bytes per tensor and rank: equal, or
    rank 2  w: 8f3a...  b: 77e0...  --+   "after step 3 ... in layers.1.bias of Linear: rank 2 ..."

Replicas drift apart without an error, for example because a parameter is not averaged, the gradient
of a norm's weight is not summed, or only one rank has loaded a checkpoint. lib never calls this
check by itself, so you have to. It reads every tensor once and compares bits, so even a difference
in rounding is reported. It can be that strict because replicas with the same gradients and the same
optimizer have the same bits.
"""

import torch
import torch.distributed as dist
from torch import nn

from lib import backend, collectives
from lib.ledger.words import ranks_text

# elements of a tensor that are processed together: one int64 copy of them takes 32 MiB
AT_ONCE = 1 << 22
KINDS = {
    "parameters": lambda model: dict(model.named_parameters()),
    "gradients": lambda model: {name: p.grad for name, p in model.named_parameters()},
    "buffers": lambda model: dict(model.named_buffers()),
}

ADVICE = {
    "parameters": "broadcast them before the first step; later, compare the gradients before the "
    "optimizer's step, "
    'with Replicas(model, of="gradients")',
    "gradients": "look for what averages this gradient on "
    "every rank, and for a rank on which it is None",
    "buffers": "broadcast them; a batch norm's follow each rank's own shards",
}


class ReplicasDiffer(RuntimeError):
    """The ranks have different values. step, name: the step and the first tensor in which this
    was seen; ranks: those that are not in the largest group of equal ranks."""

    def __init__(self, text: str, step: int, name: str, ranks: tuple[int, ...]):
        super().__init__(text)
        self.step, self.name, self.ranks = step, name, ranks


class Replicas:
    """Compares a model on the ranks of a group, all of which should have the same values.

        replicas = Replicas(model)  # on every rank of the group
        for step in range(steps):
            ...
            optimizer.step()
            replicas.compare(step)  # raises ReplicasDiffer on every rank, or returns

    group: the ranks that have replicas; None is all ranks. For a sharded model (HSDP) give the
        group across which it is replicated, so that each rank compares its own shard.
    of: "parameters", or "gradients" (call it between the averaging and the optimizer's step) or
    "buffers". Raises ValueError for any other `of`.
    """

    def __init__(
        self, model: nn.Module, group: dist.ProcessGroup | None = None, of: str = "parameters"
    ):
        if of not in KINDS:
            raise ValueError(f"of={of!r} is not one of {', '.join(KINDS)}")
        self.model, self.group, self.of = model, group, of
        self.last: int | None = None
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)

    def compare(self, step: int) -> None:
        """Compare now, in one all-gather. Every rank of the group must call it, with the same step.

        Raises ReplicasDiffer if a tensor differs, ValueError if the names do or their order.
        """
        tensors = KINDS[self.of](self.model)
        names = list(tensors)
        mine = torch.stack([checksum(_bytes_of(names)), *map(checksum, tensors.values())])
        every = collectives.all_gather(mine.unsqueeze(0), self.group)  # (ranks, 1 + tensors)
        if len({tuple(row.tolist()) for row in every[:, :1]}) > 1:
            raise ValueError(
                f"the ranks {self.ranks} have {self.of} of different names or in another order: "
                f"{names[:4]}"
            )
        wrong = (every != every[0]).any(0).nonzero().flatten().tolist()
        if wrong:
            raise self._difference(
                step, names[wrong[0] - 1], every[:, wrong[0]].tolist(), len(wrong), len(names)
            )
        self.last = step

    def _difference(self, step, name, sums, count, of):
        alike = {
            value: [rank for rank, one in zip(self.ranks, sums, strict=True) if one == value]
            for value in sums
        }
        groups = sorted(alike.values(), key=lambda ranks: (-len(ranks), ranks))
        owner = type(self.model.get_submodule(name.rpartition(".")[0])).__name__
        others = "; ".join(
            f"{ranks_text(ranks)} hold{'s' * (len(ranks) == 1)} other values than "
            f"{ranks_text(groups[0])}"
            for ranks in groups[1:]
        )
        if len(groups) == len(self.ranks) > 2:
            others = "no two ranks hold the same values"
        before = f"; they were the same after step {self.last}" if self.last is not None else ""
        text = (
            f"after step {step} the replicas differ, first in {name} of {owner}: {others}. "
            f"{count} of {of} {self.of} differ{before}. Try: {ADVICE[self.of]}"
        )
        return ReplicasDiffer(
            text, step, name, tuple(rank for ranks in groups[1:] for rank in ranks)
        )


@torch.no_grad()
def checksum(tensor: torch.Tensor | None) -> torch.Tensor:
    """() int64, a checksum of the bits of `tensor`. It always changes if one element changes, and
    almost always if several change or are swapped. None counts as -1.

    The bits of element i, as an integer, are multiplied by the odd number 2i + 1 and summed modulo
    2^64. An odd number has an inverse there, so the change of one element is never lost.
    """
    if tensor is None:
        return torch.tensor(-1, device=backend.device())
    if hasattr(tensor, "to_local"):  # a DTensor
        tensor = tensor.to_local()
    flat = tensor.detach().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    bits, total = flat.view(integer), torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, len(bits), AT_ONCE):
        part = bits[start : start + AT_ONCE].long()
        odd = 2 * torch.arange(start, start + len(part), device=part.device) + 1
        total += (part * odd).sum()
    return total


def _bytes_of(names):
    return torch.tensor(list("\n".join(names).encode()), dtype=torch.uint8, device=backend.device())
