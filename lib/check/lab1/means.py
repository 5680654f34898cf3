"""What the exercises about the mean gradient over ranks share: groups, cases, and a script that
uses Lab 1's small model (models.py)."""

import torch

from lib import backend
from lib.check import probes
from lib.check.cases import Setting
from lib.check.lab1 import models

WORLD = 4
GROUPS = (tuple(range(WORLD)), (0, 1, 2), (1, 3))
GROUPS_SAY = "4 ranks, groups of 3 and 2"
ALONE = (2,)
IDLE = "rank 0 without gradients"
FLOAT32 = "float32"
CASES = (
    *(Setting(members) for members in GROUPS),
    Setting(GROUPS[1], what=FLOAT32),
    Setting(GROUPS[1], what=IDLE),
    Setting(ALONE),
)
A_MODEL = dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model's parameters")
TWO_CALLS = dict.fromkeys(("two at once", "once more"), "two calls stand in each script")


def script(bucket_of, sent, make, case, group, show):
    """The answer averages the gradients of two models of the same sizes, one after the other. Then
    the gradients of the first model are shown once more, because the second call must not have
    changed them.

    bucket_of: bucket_of(model) returns the parameters that the answer is given.
    sent: sent(shapes of the tensors that the answer sends) returns what is shown about them.
    """
    made = [model(case, show.place) for _ in range(2)]
    for number, one in enumerate(made):
        backward(one, case, show.place, number)
        one.scale.grad = torch.full_like(one.scale, show.place)  # left from before it was frozen
        bucket, shapes, before = bucket_of(one), [], probes.frozen(dict(gradients(one)))
        show.run(make, bucket, group, silent(show, shapes))
        as_before = not shapes and probes.same(before, dict(gradients(one)))
        words = "all_reduce was never called, and no gradient has changed"
        show("all_reduce", words if as_before else "")
        show("the gradient", gradients(one))
        show("the frozen gradient", one.scale.grad)
        show("the parameters", [*one.named_parameters(), *one.named_buffers()])
        show("what is sent", sent([tuple(shape) for shape in shapes]))
    show("the first gradient later", gradients(made[0]))


def model(case, rank):
    """A small model whose parameters differ from rank to rank. Otherwise no check would notice an
    answer that averages the parameters, too."""
    made = models.Small(fine=models.FINE).to(backend.device())
    if case.what == FLOAT32:
        made.float()
    with torch.no_grad():
        for p in made.parameters():
            p += rank
    return made


def backward(model, case, rank, number):
    """Run backward over this rank's shard, unless this is the rank without gradients."""
    x, y, with_branch = models.shard(rank, number)
    if (case.what, rank) != (IDLE, 0):
        x = x.to(model.enter.weight.dtype)
        models.loss_of(model, (x, y, with_branch)).backward()


def silent(show, shapes):
    """The all_reduce that the answer is given. It appends the shape of each tensor to `shapes`."""

    def given(tensor, group=None):
        """Sums in place and returns nothing, as torch's does."""
        shapes.append(tensor.shape)
        show.all_reduce(tensor, group)

    return given


def gradients(model):
    """[(name, .grad)] of the parameters that require gradients."""
    return [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]
