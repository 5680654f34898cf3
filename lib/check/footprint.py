"""Measures the largest floating-point tensor that an answer makes and what it keeps for backward,
both in elements.

    footprint = Footprint(given)
    with footprint: ... forward ...  footprint.largest  the largest that any op has returned
    footprint.look(out)              footprint.kept     all new floating-point tensors still alive
    with footprint: ... backward ...

Python can find tensors on ctx and in lists, but not those that a graph has saved. autograd's hooks
report the latter. `kept` is the larger of the two counts.
"""

import torch

from lib.backend.torch_private import TorchDispatchMode
from lib.check.overlap import Alive
from lib.training.recompute import SavedBytes


class Footprint(TorchDispatchMode):
    """The footprint of one rank. given: tensors that do not count, because they exist anyway."""

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
        """Measure after forward. besides: the tensors that forward returned, which do not count
        because the caller holds them."""
        self.saved.besides += besides
        nbytes = max(self.alive.look(*self.given, *besides), self.saved.nbytes())
        self.kept = nbytes // self.itemsize
