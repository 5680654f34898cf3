"""Gradients and norm on a mesh by hand: a message for each parameter, and its group in plain sight.

    pp = 2, dp = 2, tp = 2, with sequence parallelism; gradients after backward, and what is still to be done

    set      a rank's gradient is that of                            summed over      then
    cut      its rows, its part of the weight                        -                the mean over dp
    whole    its rows, and of these its tokens                       tp               the mean over dp
    tied     its rows, one of the two uses of the matrix             both ends        the mean over dp

    |g|^2 = sum over pp of ( whole^2 + sum over tp of (cut^2 + tied^2, on the first stage alone) )

`Hybrid` does the same in fewer messages: in buckets or shards over the data ranks (update.py), the tied ones as the
pipeline ends (lib/pipeline/split.py), all whole ones in one line.

Source: Narayanan et al. 2021, sections 2 and 3; Korthikanti et al. 2022, for what sequence parallelism leaves to sum.
"""

import torch

from lib import backend, collectives
from lib.hybrid.train import Hybrid
from lib.tensor_parallel import sequence_parallel_gpt


# exercise: lab6.average_over_mesh
@torch.no_grad()
def average_over_mesh(sets, mesh, ends, all_reduce=collectives.all_reduce):
    """Make each `.grad` that of the mean loss over the whole batch, in place. Every parameter has one.

    sets: this rank's parameters, `Sets`, in the same order on all ranks that share them; no experts. mesh: of pp, dp
    and tp. ends: the group of the first and the last stage of this pipeline, where tied ones are; not a member: None.
    Sends: an all-reduce for each tied one over ends, each whole one over tp, and each of all of them over dp.
    """
    for parameter in sets.tied:
        all_reduce(parameter.grad, ends)
    for parameter in sets.whole:
        all_reduce(parameter.grad, mesh.group("tp"))
    for parameter in [*sets.cut, *sets.whole, *sets.tied]:
        all_reduce(parameter.grad, mesh.group("dp"))
        parameter.grad /= mesh.size("dp")


# exercise: lab6.norm_over_mesh
@torch.no_grad()
def norm_over_mesh(sets, mesh, all_reduce=collectives.all_reduce):
    """|g| of the whole model, () in float64, the same on every rank. Sends: one number over tp, one over pp.

    sets, mesh: as in `average_over_mesh`, after it.
    """
    tied = sets.tied if mesh.here["pp"] == 0 else []  # it is one parameter, and two ranks have it
    total = squares([*sets.cut, *tied])  # (1,)  partial over tp, and over pp
    all_reduce(total, mesh.group("tp"))
    total += squares(sets.whole)  # alike on all tp ranks: counted once
    all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


def squares(parameters):
    """The sum of the squares of these parameters' gradients, (1,) in float64; 0 for none. Sends nothing."""
    total = torch.zeros(1, dtype=torch.float64, device=backend.device())
    for parameter in parameters:
        total += parameter.grad.double().square().sum()
    return total


class HybridByHand(Hybrid):
    """A `Hybrid` of sequence parallelism that leaves its sums to two functions: the ones above, or yours.

    Used as Hybrid is; average(sets, mesh, ends), norm_of(sets, mesh). On a mesh of pp, dp and tp.
    """

    def __init__(self, *args, average=average_over_mesh, norm_of=norm_over_mesh, **more):
        super().__init__(*args, split=sequence_parallel_gpt, **more)
        self.average, self.norm_of, self.ends = average, norm_of, self.pipeline.links.ends
        self.pipeline.tied = []  # it would sum them

    def complete_gradients(self):
        """As `average` does."""
        self.average(self.sets, self.mesh, self.ends)

    def norm(self):
        """|g| as `norm_of` says."""
        return self.norm_of(self.sets, self.mesh)
