"""PipeDream on ranks: 1F1B whose stages update after every backward and never flush (Narayanan et
al. 2019).

    rank 0 of 4   F0 F1 F2 F3 B0 u0 F4 B1 u1 F5 B2 u2 ...  which version each action reads: stash.py

What backward computes is the gradient of a function if it uses the same weights as forward. For
y = x w, with forward at w_1, then two updates, then backward:

    backward with      grad x           grad w
    w_1 (stashed)      grad y w_1^T     x^T grad y    the gradient at w_1
    w_3 (the newest)   grad y w_3^T     x^T grad y    the gradient of no function, because x and w
                                                      are of different versions

With stashing, a stage whose weights are still needed does not change them: it continues with a
copy, and changes that. Old weights are kept as long as a mini-batch that ran forward with them is
in flight, so stage i has at most p-i versions, the newest among them.

Here autograd's graph saves the name of a weight in place of the weight (saved_tensors_hooks), so
that backward reads what the stash (stash.py) gives it:

    F    y = x w                a graph saves x and w        here: x and "w"
    B    grad x = grad y w^T    with the w that was saved    here: with the w that "w" now means

So the stash alone determines which weights backward reads. Normally torch saves the tensor itself
and raises an error in backward if it has been changed since ("modified by an inplace operation").
The error is justified, because the gradient would be wrong. PipeDream without stashing computes
that wrong gradient on purpose.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from lib.pipeline.actions import Action
from lib.pipeline.stage import Pipeline, Stage
from lib.pipeline.stash import WeightStash, pipedream


class PipeDream(Pipeline):
    """This rank's stage of a pipeline that updates after every `backwards_per_update` mini-batches.

        sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        pipeline = PipeDream(stages, links, minibatches, sgd)
        losses = pipeline.run(minibatches, targets, cross_entropy)

    Afterwards this stage's module has the newest weights. reads: {Action: version of the weights
    that it read}, as `versions` predicts. most_versions: the most versions that were in memory at
    a time.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        links: Any,
        minibatches: Sequence[Any],
        optimizer_for: Callable[..., torch.optim.Optimizer],
        stash: Callable = WeightStash,
        backwards_per_update: int = 1,
    ) -> None:
        """stages: p modules, one for each rank of `links`. minibatches: n tensors as `run` will get
        them.

        optimizer_for(parameters) -> a torch optimizer of this stage's parameters. stash(weights) ->
        the object that decides which weights an action reads: a WeightStash; your own; or
        NewestOnly, to see what stashing is for. backwards_per_update: the update uses the mean of
        their gradients; 1, or what the stash needs (TwoVersions). Sends: the messages of shape
        inference. Raises ValueError for several stages per rank, or for a parameter in two of them.
        """
        self.optimizer_for, self.stash = optimizer_for, stash
        self.backwards_per_update = backwards_per_update
        super().__init__(stages, links, minibatches)
        if self.v > 1:
            raise ValueError(
                f"{self.last + 1} stages on {len(links.ranks)} ranks: PipeDream has one stage per "
                f"rank"
            )
        if self.tied:
            raise ValueError(
                "a parameter is in the first stage and in the last, and these update at different "
                "times: untie it, as in model.head.weight = "
                "nn.Parameter(model.head.weight.detach().clone())"
            )

    def new_stage(self, module, is_first):
        return UpdatingStage(
            module, is_first, self.optimizer_for, self.stash, self.backwards_per_update
        )

    def run(  # type: ignore[override]
        self,
        minibatches: Sequence[Any],
        targets: Sequence[Any],
        loss_fn: Callable[..., Tensor],
        record: Callable | None = None,
    ) -> list[Tensor] | None:
        """Train on n mini-batches, in order; returns their losses, [() detached, ...], on the last
        rank, else None.

        Arguments as for `Pipeline.run`, without the schedule. Each mini-batch is a batch in its own
        right, so its mean loss is not weighted, and an update follows after every
        `backwards_per_update` of them. Sends: 2(p-1)n messages.
        """
        schedule = pipedream(len(self.links.ranks), len(minibatches))
        losses = self.execute(schedule, minibatches, targets, loss_fn, record)
        return [losses[j] for j in range(len(minibatches))] if losses else None

    @property
    def reads(self) -> dict[Action, int]:
        return {
            Action(s, kind, j): version
            for s, stage in self.stages.items()
            for (kind, j), version in stage.reads.items()
        }

    @property
    def most_versions(self) -> int:
        return max(stage.most_versions for stage in self.stages.values())


class UpdatingStage(Stage):
    """A stage that updates its weights after every `backwards_per_update` backwards. Version k is
    the weights after k updates."""

    def __init__(self, module, is_first, optimizer_for, stash, backwards_per_update):
        super().__init__(module, is_first)
        self.backwards_per_update, self.n_accumulated = backwards_per_update, 0
        self.parameters = dict(module.named_parameters())  # the newest version, always
        self.optimizer = optimizer_for(list(self.parameters.values()))
        weights = {name: p.data for name, p in self.parameters.items()}
        self.stash = stash(weights)
        # mini-batch: {name: leaf tensor with the memory that F read}, from F to B; backward writes
        # gradients to its .grad
        self.leaves = {}
        self.read_now = None  # in B: the weights that it reads
        # number of the newest version; {address: the version that is stored there}
        self.version, self.version_in = 0, {address(weights): 0}
        self.reads, self.most_versions = {}, 1

    def apply(self, j, x):
        weights = self.stash.for_forward(j)
        self.reads["F", j] = self.version_in.get(address(weights))
        self.leaves[j] = {
            n: w.detach().requires_grad_(self.parameters[n].requires_grad)
            for n, w in weights.items()
        }
        self.most_versions = max(self.most_versions, len(self.versions_held()))
        with by_name(weights, lambda: self.read_now):
            return functional_call(self.module, self.leaves[j], (x,))

    def backward(self, j, grad):
        self.read_now = self.stash.for_backward(j)
        self.reads["B", j] = self.version_in.get(address(self.read_now))
        grad_x = super().backward(j, grad)
        leaves = self.leaves.pop(j)
        for name, parameter in self.parameters.items():
            total = parameter.grad if self.n_accumulated else None
            parameter.grad = added(total, leaves[name].grad, self.backwards_per_update)
        self.read_now = leaves = None  # free this version before `update` makes the next one
        self.n_accumulated = (self.n_accumulated + 1) % self.backwards_per_update
        if self.n_accumulated == 0:
            self.stash.update(self.step)
        self.most_versions = max(self.most_versions, len(self.versions_held()))
        return grad_x

    def step(self, weights):
        """w = w - lr grad w, or what the optimizer does, in place, on the weights that become
        version + 1."""
        for name, parameter in self.parameters.items():
            parameter.data = weights[name]
        self.optimizer.step()
        self.version += 1
        self.version_in[address(weights)] = self.version

    def versions_held(self):
        """[weights, ...], each version once: the newest, and those that mini-batches in flight have
        read."""
        return list(
            {
                address(weights): weights for weights in [self.parameters, *self.leaves.values()]
            }.values()
        )


def added(total, grad, n):
    """total + grad / n; None stands for no gradient."""
    if grad is None:
        return total
    return grad / n if total is None else total + grad / n


def address(weights):
    """The address of a version in memory: two dicts on the same memory are one version."""
    return next(iter(weights.values())).data_ptr()


def by_name(weights, now):
    """Inside the block `with by_name(weights, now):` autograd saves each tensor of `weights`,
    {name: tensor}, by name; backward looks the name up in now().

    now: called in backward -> {name: tensor}, of the same shapes.
    """

    def pack(tensor):
        for name, w in weights.items():
            # bytes; most functions save a view, such as w.T
            start = tensor.data_ptr() - w.data_ptr()
            if 0 <= start < w.nbytes:
                return name, tensor.shape, tensor.stride(), start // tensor.itemsize
        # detached, because a tensor and the graph that made it would keep each other alive
        return tensor.detach()

    def unpack(saved):
        if isinstance(saved, torch.Tensor):
            return saved
        name, shape, stride, start = saved
        w = now()[name]
        return w.as_strided(shape, stride, w.storage_offset() + start)

    return saved_tensors_hooks(pack, unpack)
