"""A pipeline on ranks: stages that compute a schedule's actions, and gradients as in one process.

    F  y = f(x), the loss at the last stage       kept: x and the graph, until B or I
    B  from the gradient of y: the gradients of x and of the weights
    I  the gradient of x                          kept: what the weights' gradients read, until W
                                                  (halves.py)
    W  the gradients of the weights

execute.py runs the actions and sends the messages, shapes.py determines how large messages are, and
split.py handles a parameter that is in two stages. From which rank a stage receives, and to which
it sends, is in the schedule's `Dependencies`: the placement of the stages and the dependency graph
of the actions.

The loss of micro-batch j is weighted by its share of the rows, n_j of n, and gradients add up in
`.grad`:

    grad L = sum over j of n_j / n  grad L_j

This is the gradient of the mean over the whole batch, also if the last micro-batch is smaller.

A stage keeps the input of a micro-batch in flight, and what the graph saves. It does not keep y,
which only the next stage needs, because backward can start from y's gradient edge, the node of the
graph that y came from.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from lib.pipeline.actions import Action, Dependencies, loop
from lib.pipeline.execute import execute
from lib.pipeline.halves import DeferredWgrad, weight_gradients
from lib.pipeline.schedules import forward_only
from lib.pipeline.shapes import infer_shapes
from lib.pipeline.split import summed_over_ends, tied
from lib.pipeline.transfers import transfers
from lib.pipeline.validate import validate


class Stage:
    """One stage's module, and what it keeps of the micro-batches in flight."""

    def __init__(self, module: nn.Module, is_first: bool) -> None:
        self.module, self.is_first = module, is_first
        # what `simulate.kept` counts as live and as waiting
        # micro-batch: (x, gradient edge of y, list for DeferredWgrad), from F to B or I
        self.live = {}
        self.waiting = {}  # micro-batch: list of what W reads, from I to W

    def forward(self, j: int, x: Tensor, splits: bool, loss_of: Callable | None = None) -> Tensor:
        """F: x -> f(x), or loss_of(f(x)) at the last stage; detached. splits: what follows is I and
        W, not B.

        If torch records no graph, no backward will follow, and nothing is kept.
        """
        records_graph = torch.is_grad_enabled()
        # the graph begins here
        x = x.detach().requires_grad_(records_graph and not self.is_first)
        deferred = []
        with DeferredWgrad(deferred) if splits else contextlib.nullcontext():
            y = self.apply(j, x)
            if loss_of:
                y = loss_of(y)
        # None for a first stage whose parameters are all frozen
        grad_edge = get_gradient_edge(y) if y.requires_grad else None
        if records_graph:
            self.live[j] = x, grad_edge, deferred
        return y.detach()

    def apply(self, j, x):
        """f(x)"""
        return self.module(x)

    def backward(self, j: int, grad: Tensor | None) -> Tensor | None:
        """B: from the gradient of y to that of x, which is None at the first stage."""
        x, grad_edge, _ = self.live.pop(j)
        if grad_edge is not None:
            torch.autograd.backward([grad_edge], [grad])
        return x.grad

    def input_gradient(self, j: int, grad: Tensor | None) -> Tensor | None:
        """I: as B, but the gradients of weights are delayed until W."""
        self.waiting[j] = self.live[j][-1]
        # forward may run again in here (lib/training/recompute.py)
        with DeferredWgrad(self.waiting[j]):
            return self.backward(j, grad)

    def weight_gradients(self, j: int) -> None:
        """W: add the weights' gradients to `.grad`."""
        weight_gradients(self.waiting.pop(j))

    def held(self) -> list[Tensor]:
        """The tensors that this object keeps: inputs, and what W reads. What graphs save is not
        among them."""
        inputs = [x for x, _, _ in self.live.values()]
        return inputs + [
            tensor
            for deferred in self.waiting.values()
            for _, _, x, grad_y in deferred
            for tensor in (x, grad_y)
        ]


class Pipeline:
    """This rank's part of a pipeline, ready to run any schedule.

        links = connect()                                              # on every rank, once
        stages = split_gpt(GPT(shape), balance(costs, p))              # all stages, on every rank
        pipeline = Pipeline(stages, links, tokens.split(b))
        loss = pipeline.run(one_f_one_b(p, m), tokens.split(b), targets.split(b), cross_entropy)
        loss = pipeline.evaluate(tokens.split(b), targets.split(b), cross_entropy)  # no gradients

    stages: {stage: Stage}, this rank's. placement: which rank has which stage, as for `validate`.
    tied: this rank's trained parameters that are also in a stage of another rank.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        links: Any,
        microbatches: Sequence[Any],
        placement: Callable[[int, int], list[int]] = loop,
    ) -> None:
        """stages: the modules of all stages, v for each rank, in order; stage s is on pipeline rank
        `placement(p, v p)[s]`.

        Only this rank's are run. The others show which parameters are tied, and may be on the meta
        device; copies of a tied parameter start from equal values. microbatches: m tensors as `run`
        will get them; on the first stage's rank their shapes are used, elsewhere only m. Sends: the
        messages of shape inference. Raises ValueError if p does not divide the number of stages, or
        for a parameter that is tied between ranks other than the first and the last.
        """
        p, n_stages = len(links.ranks), len(stages)
        if n_stages == 0 or n_stages % p:
            raise ValueError(
                f"{n_stages} stages on {p} ranks: each rank has v, so use {p}, {2 * p} or {3 * p}"
            )
        self.links, self.m, self.v, self.last = (
            links,
            len(microbatches),
            n_stages // p,
            n_stages - 1,
        )
        self.placement, stage_ranks = placement, placement(p, n_stages)
        self.stages = {
            s: self.new_stage(stages[s], s == 0)
            for s, rank in enumerate(stage_ranks)
            if rank == links.rank
        }
        self.tied = tied(stages, links, stage_ranks)
        self.input_shapes = [x.shape for x in microbatches] if 0 in self.stages else None
        # (stage, micro-batch): (shape, dtype)
        self.outputs_meta = infer_shapes(
            {s: stages[s] for s in self.stages}, links, stage_ranks, microbatches
        )

    def new_stage(self, module, is_first):
        return Stage(module, is_first)

    def run(
        self,
        schedule: Sequence[Sequence[Action]],
        microbatches: Sequence[Any],
        targets: Sequence[Any],
        loss_fn: Callable[..., Tensor],
        record: Callable | None = None,
    ) -> Tensor | None:
        """One step without its update: execute `schedule` and add the whole batch's gradient to
        every `.grad`.

        microbatches: m tensors, shaped like those given to Pipeline; read on the first stage's
        rank. targets: m tensors with the same number of rows each; read on the last stage's rank.
        loss_fn(y, target) -> (), the mean over a micro-batch's rows. record: as in `execute`.
        Returns the batch's loss, detached (), on the last stage's rank; None elsewhere.
        Sends: for each micro-batch and each two neighbouring stages on different ranks its
        activation, and back the gradient of that, which is as large: 2(v p - 1)m messages in a
        loop. Then one all-reduce per tied parameter, between the first and the last rank.
        Raises, before any message, ScheduleError for a schedule that cannot be run, ValueError for
        one of other sizes or micro-batches of other shapes, and RuntimeError under torch.no_grad(),
        where there is no graph for backward.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError(
                "Pipeline.run goes forward and back, but torch.no_grad() or inference_mode() "
                "records no graph to go back through: call run outside of it, or "
                "pipeline.evaluate(microbatches, targets, loss_fn)"
            )
        with summed_over_ends(self.tied, self.links):
            losses = self.execute(
                schedule, microbatches, targets, self._weighted(loss_fn, targets), record
            )
        return sum(losses.values()) if losses else None

    @torch.no_grad()
    def evaluate(
        self, microbatches: Sequence[Any], targets: Sequence[Any], loss_fn: Callable[..., Tensor]
    ) -> Tensor | None:
        """The batch's loss by forward passes alone, for a validation set; nothing is kept, no
        `.grad` changes.

        The arguments and the result are those of `run`. Modules stay in their mode: call `.eval()`
        on them first, and `.train()` afterwards, if they have dropout. Sends: per micro-batch and
        pair of neighbouring stages on different ranks its activation. A rank keeps what it has
        sent until the end, because in forward alone no message comes back that confirms it.
        """
        schedule = forward_only(len(self.links.ranks), self.m, self.v, self.placement)
        plan = Dependencies(schedule), transfers(schedule)[self.links.rank]
        losses = self._execute(plan, microbatches, targets, self._weighted(loss_fn, targets))
        return sum(losses.values()) if losses else None

    def _weighted(self, loss_fn, targets):
        """L = sum over j of n_j / n L_j: a micro-batch's loss, times its share of the rows."""
        rows = sum(len(target) for target in targets) if self.last in self.stages else None
        return lambda y, target: loss_fn(y, target) * (len(target) / rows)

    def execute(
        self,
        schedule: Sequence[Sequence[Action]],
        microbatches: Sequence[Any],
        targets: Sequence[Any],
        loss_fn: Callable[..., Tensor],
        record: Callable | None = None,
    ) -> Any:
        """`run`, with losses as `loss_fn` returns them, and without summing the gradients of tied
        parameters. Returns {micro-batch: loss, ()}."""
        return self._execute(self._plan(schedule), microbatches, targets, loss_fn, record)

    def _execute(self, plan, microbatches, targets, loss_fn, record=None):
        dependencies, steps = plan
        self._check_shapes(microbatches)
        losses = {}

        def compute(action, given):
            (s, kind, j), stage = action, self.stages[action.stage]
            splits = (s, j) in dependencies.split_backwards
            if kind == "F" and s < self.last:
                return stage.forward(j, given if s else microbatches[j], splits)
            if kind == "F":
                loss_of = lambda y: loss_fn(y, targets[j])
                losses[j] = stage.forward(j, given if s else microbatches[j], splits, loss_of)
                return None
            if kind == "W":
                return stage.weight_gradients(j)
            grad = given if s < self.last else torch.ones_like(losses[j])  # dL/dL = 1
            return stage.backward(j, grad) if kind == "B" else stage.input_gradient(j, grad)

        # a gradient has the shape of the stage's input, which is the previous stage's output
        def shape_of(action):
            s, kind, j = action
            return self.outputs_meta[s if kind == "F" else s - 1, j]

        execute(steps, dependencies, compute, shape_of, self.links, record)
        return losses

    def _plan(self, schedule):
        p = len(self.links.ranks)
        if len(schedule) != p:
            raise ValueError(
                f"a schedule of {len(schedule)} ranks, but this pipeline has {p}: "
                f"make it with p = {p}"
            )
        if {action.kind for actions in schedule for action in actions} == {"F"}:
            raise ValueError(
                "a schedule of forward passes alone: for a loss without gradients call "
                "pipeline.evaluate(microbatches, targets, loss_fn), which needs no schedule"
            )
        return _plan(tuple(map(tuple, schedule)), self.m, self.v, self.placement, self.links.rank)

    def _check_shapes(self, microbatches):
        if self.input_shapes is None:
            return
        shapes = [x.shape for x in microbatches]
        if shapes != self.input_shapes:
            made_for, now = ([tuple(shape) for shape in all] for all in (self.input_shapes, shapes))
            raise ValueError(
                f"micro-batches {now}, but this Pipeline was made for {made_for}: make another one "
                f"for these shapes"
            )


@functools.lru_cache(maxsize=8)
def _plan(schedule, m, v, placement, rank):
    """The schedule's `Dependencies`, and this rank's steps. Cached, because a training loop passes
    the same schedule at every step."""
    validate(schedule, m, v, placement)
    return Dependencies(schedule), transfers(schedule)[rank]
