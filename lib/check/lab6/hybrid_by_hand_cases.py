"""HybridByHand's cases, the batches of its steps, and what they should send."""

import functools
from dataclasses import replace

import torch

from lib import backend
from lib.check.lab6.on_a_mesh import SHAPE, TURNED, MeshCase, small_gpt
from lib.cost.volume import step_volume

WORLDS = (2, 8)
ROWS, STEPS, RATE = 6, 2, 0.5
CLIPPED, SHORT = 0.5, 2  # the most that a gradient of step 0 may be long, in its own lengths


def _case(pp, dp, tp, what=""):
    axes = (("pp", pp), ("dp", dp), ("ep", 1), ("cp", 1), ("tp", tp))
    return MeshCase(tuple(range(pp * dp * tp)), what=what, axes=axes[::-1] if what else axes)


def cases(world_size):
    """No axis has more than 2 ranks: so an all-reduce is 2 n elements, whatever the way."""
    if world_size == 8:
        return (_case(2, 2, 2, TURNED),)
    return (_case(2, 1, 1), _case(1, 2, 1), _case(1, 1, 2))


def max_norm(case):
    """By which the gradients are clipped, in step 0 or not. Step 1 shows what became of the
    update."""
    return _norm() * (SHORT if case.sizes["pp"] == 1 else CLIPPED)


@functools.cache
def _norm():
    """|g| of step 0, in one process."""
    model = small_gpt()
    model.loss(*batch_of(0)).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item()


def rows_of_microbatch(case):
    """Of 3 or 6 rows on a rank: the last micro-batch has fewer."""
    return 2 if case.sizes["dp"] == 2 else 4


def batch_of(step):
    """tokens, targets of the whole batch: (ROWS, T) int64."""
    numbers = torch.Generator("cpu").manual_seed(step)
    both = torch.randint(
        SHAPE.vocab_size, (2, ROWS, SHAPE.seq_len), generator=numbers, device="cpu"
    )
    return both.to(backend.device())


def volume(case):
    """{(axis,): elements that all ranks send along it in a step}"""
    sizes = {axis: case.sizes[axis] for axis in ("pp", "dp", "tp")}
    sent = step_volume(SHAPE, ROWS, SHAPE.seq_len, **sizes, sequence_parallel=True)
    return {("tp",): sent.tp, ("pp",): sent.pp, ("dp",): sent.data}


def section(case, part):
    """The ledger's section of this part of the script."""
    return replace(case, what=", ".join(filter(None, [case.what, part]))).name
