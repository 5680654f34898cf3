"""Five mistakes in data parallelism that raise no error, made on purpose, and the log that gives
each of them away.

    sabotage             what is wrong                                   first trace of it
    -------------------  ----------------------------------------------  --------------------------
    no broadcast         each rank keeps the weights that it was built   checksums differ before
                         with                                            step 0
    sum instead of mean  the gradients of the ranks are added, and not   gradient norm of step 0
                         divided by their number
    no no_sync           every micro-batch is exchanged, not every step  messages
    no set_epoch         every epoch has the order of the first          batches of epoch 1
    unequal shards       a rank takes the mean over its own examples,    gradient norm of step 0
                         although ranks have different numbers of them

`train` really runs one Setup on the ranks of a group: it builds a small GPT, draws examples, and
all-reduces gradients in buckets by a ring. `runs` combines what the ranks have logged with the
messages that the ledger counted, and with the same steps of a single process without any mistake:

    setups = six(seed=3)                                        # {"A": Setup, ...}
    logs = launch.run(train_all, list(setups.values()), nproc=4)
    runs(list(setups.values()), logs, logs.ledger)              # [Run, ...]
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives, ledger
from lib.backend import Group
from lib.data_parallel.bucketed import reduce_bucket
from lib.data_parallel.replicate import broadcast_parameters
from lib.training import buckets
from lib.training import text as texts
from lib.training.model import GPT, Shape, cross_entropy

HEALTHY = "healthy"
SABOTAGES = (
    "no broadcast", "sum instead of mean", "no no_sync", "no set_epoch", "unequal shards",
)  # fmt: skip
TOKENS, RATE = 16, 0.2  # tokens of an example; learning rate of SGD


@dataclass(frozen=True)
class Setup:
    """One training: which sabotage, if any, and its sizes.

    shares: how many examples each rank has in a step; there are len(shares) ranks. capacity: bytes
    of a bucket.
    """

    sabotage: str = HEALTHY
    shares: tuple[int, ...] = (4, 4, 4, 4)
    microbatches: int = 1
    epochs: int = 2
    steps_per_epoch: int = 3
    capacity: int = 20_000
    seed: int = 0

    def __str__(self) -> str:
        """`healthy: ranks with 4, 4 examples, 2 micro-batches, 2 epochs of 3 steps`"""
        each, k, steps = ", ".join(map(str, self.shares)), self.microbatches, self.steps_per_epoch
        return (
            f"{self.sabotage}: ranks with {each} examples, {k} micro-batch{'es' * (k > 1)}, "
            f"{self.epochs} epochs of {steps} step{'s' * (steps > 1)}"
        )

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Run:
    """The log of a data-parallel training, and of the same training in a single process.

    world_size, microbatches, buckets: N ranks; micro-batches per step; buckets of gradients, each
        all-reduced by a ring. steps_per_epoch: steps in which each example is seen once.
    losses, baseline_losses: one number a step, the mean loss over all examples of the step's batch,
        before the update; of this run, and of a single process without any mistake, which begins
        with rank 0's weights.
    gradient_norms, baseline_gradient_norms: one number a step, the norm of the gradient that rank 0
        gave to its optimizer; of this run, and of the single process.
    checksums: [step][rank], a whole number made of all bits of that rank's weights before the step.
    batches: [step][rank], a whole number made of the indices of the examples that the rank drew, in
        their order.
    examples: [step][rank], how many these were.
    messages: one number a step, sent by all ranks together.
    """

    world_size: int
    microbatches: int
    buckets: int
    steps_per_epoch: int
    losses: list[float]
    baseline_losses: list[float]
    gradient_norms: list[float]
    baseline_gradient_norms: list[float]
    checksums: list[list[int]]
    batches: list[list[int]]
    examples: list[list[int]]
    messages: list[int]

    def __str__(self):
        """A row for each epoch's first two steps; checksums by their last four hexadecimal
        digits."""
        last = lambda numbers: " ".join(f"{number % 65536:04x}" for number in numbers)
        wide = 5 * self.world_size
        rows = [
            f"{self.world_size} ranks, {self.microbatches} micro-batches a step, {self.buckets} "
            f"buckets, {self.examples[0]} examples",
            f"step    loss  baseline   norm  baseline  messages  {'batches':<{wide}}  weights",
        ]
        for begin in range(0, len(self.losses), self.steps_per_epoch):
            for i in range(begin, min(begin + 2, begin + self.steps_per_epoch)):
                rows.append(
                    f"{i:>4}  {self.losses[i]:>6.4f}  {self.baseline_losses[i]:>8.4f}  "
                    f"{self.gradient_norms[i]:>5.3f}  {self.baseline_gradient_norms[i]:>8.3f}  "
                    f"{self.messages[i]:>8}  {last(self.batches[i]):<{wide}}  "
                    f"{last(self.checksums[i])}"
                )
        return "\n".join(rows)


def six(seed: int = 0) -> dict[str, Setup]:
    """{"A": Setup, ..., "F": Setup}: a healthy run and each sabotage, in an order that
    `seed` decides."""
    mixed = [HEALTHY, *SABOTAGES]
    random.Random(seed).shuffle(mixed)
    return {
        letter: Setup(
            sabotage, (6, 2, 5, 3), microbatches=2, epochs=2, steps_per_epoch=8, seed=seed
        )
        for letter, sabotage in zip("ABCDEF", mixed, strict=True)
    }


# exercise: lab1.diagnose
def diagnose(run: Run) -> str:
    """The name of the sabotage in this run, one of SABOTAGES, or "healthy"."""
    N, epoch = run.world_size, run.steps_per_epoch
    if any(len(set(of_ranks)) > 1 for of_ranks in run.checksums):
        return "no broadcast"
    if max(run.messages) > 2 * (N - 1) * N * run.buckets:
        return "no no_sync"
    if run.batches[:epoch] == run.batches[epoch : 2 * epoch]:
        return "no set_epoch"
    ratio = run.gradient_norms[0] / run.baseline_gradient_norms[0]
    if abs(ratio - 1) < 1e-3:
        return "healthy"
    return "sum instead of mean" if abs(ratio / N - 1) < 1e-3 else "unequal shards"


def train(setup: Setup, group: Group, name: str) -> dict[str, Any]:
    """Run one training on the ranks of `group`. Returns what this rank has logged. name: a prefix
    for the ledger's marks, of which there are two per step: its beginning and its update."""
    rank, N, sabotage = dist.get_rank(group), len(setup.shares), setup.sabotage
    model = _model(setup.seed + 1_000 * rank)  # every rank builds different weights
    if sabotage != "no broadcast":
        broadcast_parameters(model, group)
    plan = buckets.plan_buckets(list(model.parameters()), setup.capacity)
    log: dict[str, Any] = {"buckets": len(plan), "loss_sums": [], "norms": []}
    log |= {"checksums": [], "batches": []}
    for step in range(setup.steps):
        epoch, i = divmod(step, setup.steps_per_epoch)
        batch = _batch(setup, 0 if sabotage == "no set_epoch" else epoch, i)
        mine = batch.split(list(setup.shares))[rank]  # (c_r,) examples
        log["checksums"].append(_checksum([p.detach() for p in model.parameters()]))
        log["batches"].append(_checksum([mine]))
        model.zero_grad()
        ledger.mark(f"{name} step {step}")
        total = 0.0
        for number, part in enumerate(mine.tensor_split(setup.microbatches), 1):
            loss_sum = _loss_sum(model, part)
            all_examples = len(mine) * N if sabotage == "unequal shards" else len(batch)
            (loss_sum * (N / (all_examples * TOKENS))).backward()
            total += loss_sum.item()
            if number == setup.microbatches or sabotage == "no no_sync":
                _exchange(plan, group, divide=sabotage != "sum instead of mean")
        ledger.mark(f"{name} update")
        log["loss_sums"].append(total)
        log["norms"].append(_update(model))
    return log


def train_all(setups: Sequence[Setup]) -> list[dict[str, Any] | None]:
    """Run each Setup, one after the other. Returns this rank's log of each, or None if it is not
    one of the first len(shares) ranks, which train."""
    groups = {N: dist.new_group(range(N)) for N in sorted({len(s.shares) for s in setups})}
    return [
        train(setup, groups[len(setup.shares)], f"run {i}")
        if dist.get_rank() < len(setup.shares)
        else None
        for i, setup in enumerate(setups)
    ]


def runs(setups: Sequence[Setup], logs: Sequence[list], counted: Any) -> list[Run]:
    """Combine what the ranks of one launch of `train_all` have logged. counted: the launch's
    ledger."""
    return [
        _run(setup, [of_rank[i] for of_rank in logs][: len(setup.shares)], counted, f"run {i}")
        for i, setup in enumerate(setups)
    ]


def _run(setup, logs, counted, name):
    by_step = lambda what: [list(row) for row in zip(*(log[what] for log in logs), strict=True)]
    tokens = sum(setup.shares) * TOKENS
    losses, norms = _single_process(setup)
    return Run(
        world_size=len(setup.shares),
        microbatches=setup.microbatches,
        buckets=logs[0]["buckets"],
        steps_per_epoch=setup.steps_per_epoch,
        losses=[sum(sums) / tokens for sums in by_step("loss_sums")],
        baseline_losses=losses,
        gradient_norms=logs[0]["norms"],
        baseline_gradient_norms=norms,
        checksums=by_step("checksums"),
        batches=by_step("batches"),
        examples=[list(setup.shares) for _ in range(setup.steps)],
        messages=[
            counted.section(f"{name} step {step}").sent("messages") for step in range(setup.steps)
        ],
    )


def _single_process(setup):
    model, losses, norms = _model(setup.seed), [], []
    for step in range(setup.steps):
        model.zero_grad()
        batch = _batch(setup, *divmod(step, setup.steps_per_epoch))
        loss = _loss_sum(model, batch) / (len(batch) * TOKENS)
        loss.backward()
        losses.append(loss.item())
        norms.append(_update(model))
    return losses, norms


def _model(seed):
    shape = Shape(texts.VOCABULARY, seq_len=TOKENS, n_layers=1, hidden=16, n_heads=2)
    return GPT(shape, seed=seed)


def _batch(setup, epoch, i):
    """(B,) the examples of all ranks in step i of an epoch: a slice of the epoch's permutation."""
    B = sum(setup.shares)
    generator = torch.Generator("cpu").manual_seed(1_000_003 * setup.seed + epoch)
    order = torch.randperm(B * setup.steps_per_epoch, generator=generator, device="cpu")
    return order[i * B : (i + 1) * B]


@cache
def _text() -> Tensor:
    return texts.load().train  # loading takes longer than a step


def _loss_sum(model, examples: Tensor) -> Tensor:
    """The sum of the losses of all tokens of these examples, ()."""
    device, text = next(model.parameters()).device, _text()
    if len(examples) == 0:
        return sum(p.sum() for p in model.parameters()) * 0.0
    windows = text.unfold(0, TOKENS + 1, TOKENS)[examples].to(device)  # (b, T + 1)
    return cross_entropy(model(windows[:, :-1]), windows[:, 1:], "sum")


def _exchange(plan, group, divide):
    """Average every bucket over the ranks by a ring. Without `divide`, undo the division
    afterwards."""
    for bucket in plan:
        reduce_bucket(bucket, group, collectives.ring_all_reduce)
        for p in () if divide else bucket:
            p.grad *= dist.get_world_size(group)


@torch.no_grad()
def _update(model) -> float:
    """Take a step of SGD. Returns the norm of the gradient."""
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
    for p in model.parameters():
        p -= RATE * p.grad
    return norm


def _checksum(tensors) -> int:
    """A whole number made of all bits of these tensors."""
    number = 0
    for tensor in tensors:
        number = zlib.crc32(tensor.contiguous().cpu().numpy().tobytes(), number)
    return number
