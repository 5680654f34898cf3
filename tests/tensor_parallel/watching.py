"""What the tests of rings share: a watch on this rank's operators, and the comparison.

`matmuls_marked` puts a mark into this rank's log at every matrix product, and holds the product
until every message that the program has begun is posted. So a log in which a message is posted
before such a mark, and waited for after it, proves that the message travelled while the product
ran, on however slow a machine.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib import ledger
from lib.collectives import background

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default}


class Watch(TorchDispatchMode):
    """Calls seen(op, result) after every operator of this thread, and before(op) before it."""

    def __init__(self, seen=lambda op, result: None, before=lambda op: None):
        super().__init__()
        self.seen, self.before = seen, before

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.before(op)
        result = op(*args, **(kwargs or {}))
        self.seen(op, result)
        return result


@contextlib.contextmanager
def matmuls_marked(label):
    """Inside the block, every matrix product is marked in the log as "`label` product"."""

    def hold(op):
        if op in PRODUCTS:
            for work in list(background.in_use.values()):
                assert work.ended.wait(20), "a message that was begun is not posted"
            ledger.mark(f"{label} product")

    ledger.mark(f"{label} begins")
    with Watch(before=hold):
        yield
    ledger.mark(f"{label} ended")


def beside_a_product(log, rank, label):
    """Of each message of the rank in the block: was a product marked between its posting
    and the wait for it?"""
    mine = log.of(rank)
    begins, ended = (
        next(e.posted for e in mine if e.file == f"{label} {word}") for word in ("begins", "ended")
    )
    products = [e.posted for e in mine if e.op == "mark" and e.file == f"{label} product"]
    messages = [e for e in mine if e.op in ("send", "recv") and begins < e.posted < ended]
    return [any(e.posted < product < e.wait_from for product in products) for e in messages]


def off(ours, right, scale=None):
    """The largest difference, relative to the largest number in `scale`, or in `right`."""
    assert ours.shape == right.shape, (ours.shape, right.shape)
    return ((ours - right).abs().max() / (right if scale is None else scale).abs().max()).item()


def numbers(seed, *shape):
    """float64, the same on every rank, which asks for its own seed."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float64).to(
        torch.get_default_device()
    )
