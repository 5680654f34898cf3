"""PipeDream on ranks: 1F1B whose stages update after every backward and never flush (Narayanan et al. 2019).

    rank 0 of 4   F0 F1 F2 F3 B0 u0 F4 B1 u1 F5 B2 u2 ...       which version each action reads: versions.py

A gradient is that of a function if its backward goes through the weights of its forward. For y = x w:

                               grad x                grad w
    forward with w_1, then two updates, then backward with
    w_1 (stashed)              grad y  w_1^T         x^T grad y     the gradient at w_1
    w_3 (the newest)           grad y  w_3^T         x^T grad y     of no function: x is of one version, w of another

With stashing, a stage whose weights are still needed does not change them: it goes on with a copy, and changes that.
The old ones live as long as a mini-batch under way has read them: stage i has p-i versions, the newest among them.

Without stashing the update changes the weights in place, also those that graphs have saved. torch would refuse the
backward ("modified by an inplace operation"), and rightly so: to let the mistake happen, the stage computes with
parameters of its own that lie on the same memory, and torch does not connect the two.
"""

import torch
from torch import nn
from torch.func import functional_call

from lib.pipeline.actions import Action
from lib.pipeline.stage import Pipeline, Stage
from lib.pipeline.versions import pipedream


class PipeDream(Pipeline):
    """This rank's stage of a pipeline that updates after every mini-batch.

        pipeline = PipeDream(stages, links, minibatches, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        losses = pipeline.run(minibatches, targets, cross_entropy)

    Afterwards this stage's module has the newest weights. reads: {Action: version of the weights that it read}, as
    `versions` foretells. most_versions: how many versions there were at a time.
    """

    def __init__(self, stages, links, minibatches, optimizer_for, stashing=True):
        """stages: p modules, one for each rank of `links`. minibatches: n tensors as `run` will get them.

        optimizer_for(parameters) -> a torch optimizer, over this stage's. stashing: backward reads what forward read.
        Sends: a rehearsal. Raises ValueError for several stages per rank, or for a parameter in two of them.
        """
        self.optimizer_for, self.stashing = optimizer_for, stashing
        super().__init__(stages, links, minibatches)
        if self.v > 1:
            raise ValueError(f"{self.last + 1} stages on {len(links.ranks)} ranks: PipeDream has one stage per rank")
        if self.tied:
            raise ValueError(
                "a parameter is in the first stage and in the last, and these update at different times: "
                "untie it, as in model.head.weight = nn.Parameter(model.head.weight.detach().clone())"
            )

    def new_stage(self, module, is_first):
        return UpdatingStage(module, is_first, self.optimizer_for, self.stashing)

    def run(self, minibatches, targets, loss_fn, record=None):
        """Train on n mini-batches, in order; returns their losses, [() detached, ...], on the last rank, else None.

        Arguments as for `Pipeline.run`; a mini-batch is a batch here, with an update of its own, of its mean loss.
        Sends: 2(p-1)n messages.
        """
        schedule = pipedream(len(self.links.ranks), len(minibatches))
        losses = self.execute(schedule, minibatches, targets, loss_fn, record)
        return [losses[j] for j in range(len(minibatches))] if losses else None

    @property
    def reads(self):
        return {
            Action(s, kind, j): version
            for s, stage in self.stages.items()
            for (kind, j), version in stage.reads.items()
        }

    @property
    def most_versions(self):
        return max(stage.most_versions for stage in self.stages.values())


class UpdatingStage(Stage):
    """A stage that updates after each B. Version k of its weights: after k updates."""

    def __init__(self, module, is_first, optimizer_for, stashing):
        super().__init__(module, is_first)
        self.parameters = dict(module.named_parameters())
        self.optimizer, self.stashing = optimizer_for(list(self.parameters.values())), stashing
        self.version, self.weights = 0, self._weights()  # the newest
        self.under_way = {}  # mini-batch: (version, weights) of its forward, from F to B
        self.reads, self.most_versions = {}, 1

    def _weights(self):
        """{name: a leaf of its own on the memory of the module's parameter}"""
        return {name: nn.Parameter(p.data, p.requires_grad) for name, p in self.parameters.items()}

    def apply(self, j, x):
        self.reads["F", j] = self.version
        self.under_way[j] = self.version, self.weights
        self.most_versions = max(self.most_versions, len(self.versions_held()))
        return functional_call(self.module, self.weights, (x,))

    def backward(self, j, grad):
        grad_x = super().backward(j, grad)
        version, weights = self.under_way.pop(j)
        self.reads["B", j] = version if self.stashing else self.version
        for name, parameter in self.parameters.items():
            parameter.grad, weights[name].grad = weights[name].grad, None
        self.update()
        return grad_x

    @torch.no_grad()
    def update(self):
        """w = w - lr grad w, or what the optimizer does, in place; on a copy, if stashing and w is still needed."""
        if self.stashing and any(weights is self.weights for _, weights in self.under_way.values()):
            for parameter in self.parameters.values():
                parameter.data = parameter.data.clone()
            self.weights = self._weights()
        self.optimizer.step()
        self.version += 1
        self.most_versions = max(self.most_versions, len(self.versions_held()))

    def versions_held(self):
        """[weights, ...], each version once: the newest, and those that mini-batches under way have read."""
        held = [self.weights, *(weights for _, weights in self.under_way.values())]
        return list({id(weights): weights for weights in held}.values())
