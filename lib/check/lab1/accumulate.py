"""Lab 1, section 6: accumulate(model, microbatches, counts, loss_fn), k micro-batches and one
exchange.

The model is a wrapper that records what happens to it, in order. For k = 3 the right order is:

    forward  backward  forward  backward  forward  backward  average
    (both in no_sync)  (both in no_sync)           ^ its buckets are sent

In the case of four micro-batches, the last one has no tokens, but its backward sends all the same.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.cases import Setting, form_of
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.lab1 import models
from lib.check.lab1.means import A_MODEL, GROUPS, WORLD
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.data_parallel import accumulate

TWICE = "2 micro-batches, the same one twice"
# the rows ("tokens") of each micro-batch; the case of two micro-batches comes first, because most
# mistakes show there
COUNTS = {
    "2 micro-batches": (2, 1), "4 micro-batches": (1, 2, 2, 0), "1 micro-batch": (2,),
    TWICE: (2, 2),
}  # fmt: skip
CASES = tuple(Setting(GROUPS[0], what=what) for what in COUNTS)


class Noting(nn.Module):
    """The small model in a wrapper that averages its gradients over all ranks one by one, and that
    lists in `events` what happens to it.

    sent: the gradients as a backward pass outside of no_sync has left them. Those are what is
    averaged, so anything that is added to a gradient later is lost.
    """

    def __init__(self, all_reduce):
        super().__init__()
        self.module, self.events, self.alone = models.Small(0).to(backend.device()), [], False
        self.all_reduce, self.sent = all_reduce, {}
        for p in self.module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._gradient_came)

    def forward(self, *inputs):
        self._note("forward")
        return self.module(*inputs)

    def _note(self, what):
        self.events.append(f"{what} inside no_sync" if self.alone else what)

    def _gradient_came(self, p):
        self.sent[p] = None if self.alone else p.grad.clone()
        if p is self.module.leave.bias:  # it gets a gradient once in each backward pass
            self._note("backward")

    @contextlib.contextmanager
    def no_sync(self):
        before, self.alone = self.alone, True
        try:
            yield
        finally:
            self.alone = before

    @torch.no_grad()
    def average_gradients(self):
        self.events.append("average")
        for p in self.module.parameters():
            if p.requires_grad:
                found = (self.sent.pop(p, None), p.grad, torch.zeros_like(p))
                mine = next(one for one in found if one is not None)
                self.all_reduce(mine)
                p.grad = mine / dist.get_world_size()


def script(make, case, group, show):
    model, counts = Noting(show.all_reduce), COUNTS[case.what]
    shards = [models.shard(show.place, i) for i in range(len(counts))]
    microbatches = [
        (x[:rows], y[:rows], branch) for (x, y, branch), rows in zip(shards, counts, strict=True)
    ]
    if case.what == TWICE:
        microbatches[1] = microbatches[0]
    loss_sum = lambda model, shard: (model(shard[0], shard[2]) * shard[1]).sum()
    loss = show.run(make, model, microbatches, [*counts], loss_sum)
    show("the gradient", models.gradients(model.module))
    is_one = torch.is_tensor(loss) and loss.numel() == 1
    # the loss may have any dtype, so its value may be rounded to float32
    show("what is returned", "a tensor of one element" if is_one else form_of(loss))
    show("the loss", loss.item() if is_one else None, tolerance=1e-6)
    show("in order", ", ".join(model.events))


MEASURE = SideBySide(
    script, accumulate, CASES,
    excused=A_MODEL | {"two at once": "it returns when the gradients are averaged"},
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("gradient of the whole batch", 5, "4 ranks; k = 1, 2, 4 micro-batches, not equal",
     "the gradient"),
    ("the mean loss", 2, "over the rank's tokens, detached",
     "what is returned", "the loss", "graph"),
    ("one exchange, whatever k", 3, "no_sync for the first k-1; average_gradients once",
     calls(MEASURE, nothing_else=False), "in order"),
    hints=hints("lab1", "accumulate"), worlds=(WORLD,),
    may_call=(*MAY_CALL, "accumulate.average_gradients"),
    leaves_out={
        "precise": "the model sends, and a loss may be added up in float32",
        "under way": "it returns when the gradients are averaged: no two steps are under way",
        "alone": "it takes no group: the model alone knows its ranks",
        "generators": "the notebook gives a list of micro-batches",
        "memory": "what each backward frees is torch's; that it follows its forward is a claim",
    },
)  # fmt: skip
