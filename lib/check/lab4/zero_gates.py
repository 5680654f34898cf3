"""The memory that gradients hold while backward runs, looked at behind each layer.

    behind flat j     lines j - 1 and j          under way: padded elements each
                      pieces 0 to j - 2          in the shards' .grad: padded/N elements each
                      nothing else               the parameters' .grad are gone

Only what has been made since backward began counts: no weights, no optimizer state, no activations.
"""

import gc

import torch

from lib.check.framework import Problem
from lib.zero import live_bytes, start_counting

EACH = 8  # bytes of a float64
SLACK = 64  # bytes of single numbers, such as the loss's own gradient; the shortest line has 96


class AtGates:
    """Called at each gate of backward. problem: the first that is wrong. padded: the elements of each flat."""

    def __init__(self, padded, N):
        start_counting()
        self.padded, self.N, self.problem = padded, N, None

    def begin(self, model):
        """Backward begins: what is there now does not count, and stays, or its memory might be a gradient's soon."""
        self.model = model
        self.before = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]

    def __call__(self, flat, gradient):
        """gradient: what flows through the gate; it does not count."""
        held = live_bytes(besides=[*self.before, gradient])
        under_way = EACH * sum(self.padded[max(flat - 1, 0) : flat + 1])
        allowed = under_way + EACH * sum(self.padded[: max(flat - 1, 0)]) // self.N
        last_sent = EACH * sum(self.padded[max(flat - 2, 0) : max(flat - 1, 0)]) // self.N  # the ledger keeps it alive
        if held > allowed + last_sent + SLACK and self.problem is None:
            left = [name for name, p in self.model.named_parameters() if p.grad is not None]
            text = f"{self.N} ranks, after {flat + 1} of {len(self.padded)} flats: gradients hold {held:g} bytes, "
            text += f"expected {allowed:g}: two lines, and the shards' pieces"
            text += f"\n.grad is still there of {', '.join(left)}" if left else ""
            self.problem = Problem("memory", text, {"left": left})
