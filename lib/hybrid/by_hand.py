"""A hybrid training step written out by hand, in its simplest form: the sums that complete the
gradients, the sums that give their norm, and the step that uses both. Each gradient is sent in
messages of its own.

    pp = dp = tp = 2, with sequence parallelism: gradients after backward, and what remains to do

    set         a rank's gradient is that of                       summed over      then
    sharded     its rows, its shard of the weight                  -                the mean over dp
    replicated  its rows, and of these its tokens                  tp               the mean over dp
    tied        its rows, one of the two uses of the matrix        both ends        the mean over dp

    |g|^2 = sum over pp of ( replicated^2
                             + sum over tp of (sharded^2, and on the first stage also tied^2) )

    one step  forward and backward of the micro-batches (pp, tp)
              | gradients: tied (ends), replicated (tp), all (dp) | norm (tp, pp), clip | update

`Hybrid` (train.py) computes the same with fewer messages. It averages over the data ranks in
buckets or shards (update.py), sums the tied gradients at the end of the pipeline's run
(lib/pipeline/split.py), and sends all replicated gradients in one flat buffer. Megatron-LM's
finalize_model_grads makes the same sums.

Source: Narayanan et al. 2021, sections 2 and 3; Korthikanti et al. 2022 for the sums that sequence
parallelism needs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lib import backend, collectives
from lib.backend import Collective, Group
from lib.hybrid.mesh import Mesh, groups_along
from lib.hybrid.sets import Sets, sets_of
from lib.hybrid.train import free_other_stages
from lib.pipeline import balance, one_f_one_b
from lib.pipeline.links import connect
from lib.pipeline.split import split_gpt
from lib.pipeline.stage import Pipeline
from lib.tensor_parallel import sequence_parallel_gpt, vocab_parallel_cross_entropy
from lib.training.clip import scale_gradients
from lib.training.model import GPT


# exercise: lab6.average_over_mesh
@torch.no_grad()
def average_over_mesh(
    sets: Sets, mesh: Mesh, ends: Group, all_reduce: Collective = collectives.all_reduce
) -> None:
    """Turn each `.grad`, in place, into the gradient of the mean loss over the whole batch. Every
    parameter has a `.grad`.

    sets: this rank's parameters, a `Sets` without experts, in the same order on all ranks that
    share them. mesh: of pp, dp and tp. ends: the group of the first and the last stage of this
    pipeline, which have the tied parameters; None on the stages in between. Sends: an all-reduce
    over `ends` for each tied gradient, one over tp for each replicated one, and one over dp for
    every gradient.
    """
    for parameter in sets.tied:
        all_reduce(parameter.grad, ends)
    for parameter in sets.replicated:
        all_reduce(parameter.grad, mesh.group("tp"))
    for parameter in [*sets.sharded, *sets.replicated, *sets.tied]:
        all_reduce(parameter.grad, mesh.group("dp"))
        parameter.grad /= mesh.size("dp")


# exercise: lab6.norm_over_mesh
@torch.no_grad()
def norm_over_mesh(
    sets: Sets, mesh: Mesh, all_reduce: Collective = collectives.all_reduce
) -> Tensor:
    """|g| of the full model, () in float64, the same on every rank. Sends: an all-reduce of one
    number over tp, and one over pp.

    sets, mesh: as in `average_over_mesh`, which has to run first.
    """
    tied = sets.tied if mesh.here["pp"] == 0 else []  # one parameter, which two stages have
    total = squares([*sets.sharded, *tied])  # (1,)  partial over tp, and over pp
    all_reduce(total, mesh.group("tp"))
    total += squares(sets.replicated)  # the same on all tp ranks, so counted once
    all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


def squares(parameters):
    """The sum of the squares of these parameters' gradients, (1,) in float64; 0 for none.
    Sends nothing."""
    total = torch.zeros(1, dtype=torch.float64, device=backend.device())
    for parameter in parameters:
        total += parameter.grad.double().square().sum()
    return total


# exercise: lab6.HybridByHand
class HybridByHand:
    """This rank's part of a GPT on a mesh of pp, dp and tp, with sequence parallelism, put together
    from the other labs. It is used like `Hybrid`.

    Each rank of a pipeline has one stage, the schedule is 1F1B, and data parallelism is plain.
    average(sets, mesh, ends) and norm_of(sets, mesh) are the two functions above, or yours. part:
    this rank's parameters, under the full model's names; sets: the same as `Sets`.
    """

    def __init__(
        self,
        model: GPT,
        mesh: Mesh,
        tokens: Tensor,
        b: int,
        make_optimizer: Callable[..., torch.optim.Optimizer],
        average: Callable = average_over_mesh,
        norm_of: Callable = norm_over_mesh,
    ) -> None:
        """model: the full `lib.training.model.GPT`, the same on all ranks; it is not changed. mesh:
        a Mesh with pp, dp and tp.

        tokens: (rows, T) int64, this rank's `local_batch`, of the shape that `backward` will get.
        b: rows of a micro-batch; the last one may have fewer. make_optimizer(parameters): a torch
        optimizer. Sends: what the pipeline's links and its shape inference send.
        """
        self.mesh, self.b, self.average, self.norm_of = mesh, b, average, norm_of
        self.part = sequence_parallel_gpt(model, mesh.group("tp"))
        blocks = balance([1] * len(self.part.blocks), mesh.size("pp"))
        links = connect(groups_along(["pp"], mesh.sizes))
        self.pipeline, self.ends = (
            Pipeline(split_gpt(self.part, blocks), links, tokens.split(b)),
            links.ends,
        )
        free_other_stages(self.part, blocks, [mesh.here["pp"]])
        self.sets = sets_of(self.part, self.pipeline.tied)
        self.parameters = [*self.sets.sharded, *self.sets.replicated, *self.sets.tied]
        self.optimizer = make_optimizer(self.parameters)

    def backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of one step; the gradient of the mean loss over the whole batch is
        then in `.grad`.

        tokens, targets: (rows, T) int64, this data rank's `local_batch`. Returns that loss, () in
        float64, on every rank. Sends: activations and their gradients over pp, f and g over tp,
        what `average` sends, and two all-reduces of one number, the loss.
        """
        wanted, tp = targets.split(self.b), self.mesh.group("tp")
        share = lambda y, target: (
            len(target) / len(targets) * vocab_parallel_cross_entropy(y, target, tp)
        )
        schedule = one_f_one_b(self.mesh.size("pp"), len(wanted))
        losses = self.pipeline.execute(schedule, tokens.split(self.b), wanted, share)
        self.average(self.sets, self.mesh, self.ends)
        # only the last stage has losses
        loss = torch.zeros(1, dtype=torch.float64, device=backend.device()) + sum(losses.values())
        collectives.all_reduce(loss, self.mesh.group("pp"))
        collectives.all_reduce(loss, self.mesh.group("dp"))
        return loss[0] / self.mesh.size("dp")

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their global norm is at most `max_norm`. Returns the norm
        before clipping, ()."""
        norm = self.norm_of(self.sets, self.mesh)
        scale_gradients(self.parameters, norm, max_norm)
        return norm

    def step(self) -> None:
        """Update, and clear the gradients. Sends nothing, because both copies of a tied parameter
        have equal gradients and therefore get equal updates."""
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
