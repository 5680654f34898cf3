"""HybridByHand's cases, the batches of its steps, and what one process makes of them."""

import functools

import torch

from lib import backend, ledger
from lib.check.lab6.on_a_mesh import SHAPE, MeshCase, PlainSGD, small_gpt
from lib.cost.volume import step_volume

ROWS, STEPS, RATE = 6, 2, 0.5
CALLS = ("making it", "backward", "clip", "step")
TURNED = "tp slowest"
CLIPPED, SHORT = 0.5, 2  # the most that a gradient of step 0 may be long, in its own lengths


def _case(pp, dp, tp, what=""):
    axes = (("pp", pp), ("dp", dp), ("ep", 1), ("cp", 1), ("tp", tp))
    return MeshCase(tuple(range(pp * dp * tp)), what=what, axes=axes[::-1] if what else axes)


def cases(world_size):
    """No axis has more than 2 ranks: so an all-reduce is 2 n elements, whatever the way."""
    if world_size == 8:
        return (_case(2, 2, 2, TURNED),)
    return (_case(2, 1, 1), _case(1, 2, 1), _case(1, 1, 2))


def clipped_to(case):
    """By which part of its length the gradient of step 0 is bounded. Step 1 shows what
    became of the update."""
    return SHORT if case.sizes["pp"] == 1 else CLIPPED


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


@functools.cache
def one_process(part):
    """[(loss, norm, max_norm) of each step], of the whole batch in one process; max_norm: of step
    0, `part` of |g|."""
    model, found = small_gpt(), []
    optimizer = PlainSGD(model.parameters(), RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model.loss(*batch_of(step))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        most = norm.item() * (part if step == 0 else SHORT)
        torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()
        found.append((loss.item(), norm.item(), most))
    return found


def volume(case):
    """{axis: elements that all ranks send along it in a step}"""
    volume = step_volume(
        SHAPE,
        ROWS,
        SHAPE.seq_len,
        **{axis: case.sizes[axis] for axis in ("pp", "dp", "tp")},
        sequence_parallel=True,
    )
    return {"tp": volume.tp, "pp": volume.pp, "dp": volume.data}


class Counted:
    """A function, how often it was called, and with what last."""

    def __init__(self, fn):
        self.fn, self.count, self.args = fn, 0, ()

    def __call__(self, *args, **named):
        self.count, self.args = self.count + 1, args
        return self.fn(*args, **named)


def label(case, call, step=None):
    """The ledger's section of one call, of making the answer or of a step."""
    return f"{case.name}, {call}" + ("" if step is None else f" of step {step}")


def called(where, fn, *args, **named):
    """fn(*args, **named), in a section of the ledger."""
    ledger.mark(where)
    out = fn(*args, **named)
    ledger.mark("")
    return out
