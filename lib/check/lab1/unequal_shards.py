"""Lab 1, section 2: weighted_loss(loss_sum, count, group, all_reduce), and until_all_done."""

import torch

from lib import backend
from lib.check.cases import Setting, form_of
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle
from lib.check.lab1 import until_all_done
from lib.check.lab1.means import ALONE, GROUPS_SAY, WORLD
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.data_parallel import sampler

SHARDS = {  # case: (the number of examples of each rank, the dtype of the loss)
    Setting(members, what=f"counts {', '.join(map(str, counts))}"): (counts, dtype)
    for members, counts, dtype in [
        ((0, 1, 2, 3), (3, 1, 0, 4), torch.float64),
        ((0, 1, 2, 3), (3, 3, 3, 3), torch.float64),  # another total
        ((0, 1, 2), (70001, 0, 3), torch.float16),  # the largest number in float16 is 65504
        ((1, 3), (3, 2), torch.float64),
        (ALONE, (3,), torch.float64),
        ((0, 1, 2), (0, 1, 0), torch.float64),  # a single example on all ranks together
        ((0, 1, 2, 3), (70001, 3, 0, 40000), torch.float64),
    ]
}
CASES = tuple(SHARDS)
VALUES = ("a loss", "the loss", "w", "graph")


def script(make, case, group, show):
    """A rank without examples has a loss too, which is 0 and has a gradient of 0. On each rank, at
    most 9999 examples count, because otherwise float16 could not hold the sum."""
    counts, dtype = SHARDS[case]
    count, N, C = counts[show.place], case.world_size, sum(counts)
    w = show.give("w", torch.ones(3, dtype=dtype, device=backend.device()), learns=True)
    loss_sum = (w * draw(show.place, 3).to(w) * min(count, 9999)).sum()
    given = [] if group is None else [group]
    loss = show.run(make, loss_sum, count, *given, all_reduce=show.all_reduce)
    is_one = type(loss) is torch.Tensor and loss.numel() == 1
    show("a loss", "" if is_one else f"returned {form_of(loss)}, expected a loss")
    if show.wrong("a loss"):
        return
    beside = f"loss_sum is {loss_sum.item():.6g}; N = {N} ranks have C = {C} examples."
    show("the loss", loss.sum().to(w.dtype), beside=beside)
    show("its form", form_of(loss))
    show("calls", ", ".join(f"{one.op} of {one.elements}" for one in show.all_calls))
    yield
    show.backward(loss.sum())


MEASURE = SideBySide(
    script, sampler.weighted_loss, CASES,
    together=(CASES[0], CASES[-1]),  # two cases with different factors N/C
)  # fmt: skip
WEIGHTED_LOSS = MEASURE.exercise(
    ("the batch's gradient", 4, f"1 rank, {GROUPS_SAY}; 0 to 70001 examples a rank", *VALUES),
    ("one all-reduce of one number", 1, "on every rank, with examples or without",
     calls(MEASURE, nothing_else=False), "calls"),
    ("a loss like loss_sum", 1, "shape (), of its dtype", "its form"),
    hints=hints("lab1", "given", "weighted_loss"), worlds=(WORLD,), may_call=MAY_CALL,
    leaves_out={
        "generators": "no argument is an iterator",
        "memory": "it sends one number, and keeps none",
    },
)  # fmt: skip
EXERCISE = Bundle("unequal_shards", (WEIGHTED_LOSS, until_all_done.EXERCISE))
