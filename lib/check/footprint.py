"""What an answer makes and keeps on its way, counted in numbers: the largest tensor, and what
backward waits for.

    footprint = Footprint(given)
    with footprint: ... forward ...  footprint.largest  of the largest tensor that any op made
    footprint.look(out)              footprint.kept     of all new floats that are still alive
    with footprint: ... backward ...

Python sees what stands on ctx and in lists, and autograd's hooks what a graph has saved: both are
in `kept`.
"""

import torch

from lib.backend.torch_private import TorchDispatchMode
from lib.check.overlap import Alive
from lib.training.recompute import SavedBytes


class Footprint(TorchDispatchMode):
    """Of one rank. given: tensors that are there anyway."""

    def __init__(self, given):
        super().__init__()
        self.largest, self.kept, self.itemsize = 0, 0, given[0].itemsize
        self.given, self.saved, self.alive = given, SavedBytes(given), Alive()
        self.alive.begin()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        made = op(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else [made]:
            if torch.is_tensor(x) and x.is_floating_point():
                self.largest = max(self.largest, x.numel())
        return made

    def __enter__(self):
        self.saved.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.saved.__exit__(*error)

    def look(self, *besides):
        """After forward. besides: what it returned, which the caller has."""
        self.saved.besides += besides
        self.kept = (
            max(self.alive.look(*self.given, *besides), self.saved.nbytes()) // self.itemsize
        )
