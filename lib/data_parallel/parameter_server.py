"""A parameter server: rank 0 holds the parameters; the others fetch them and send back gradients.

One step, N = 4 ranks, n parameters (elements) to train, w all of them, g_r rank r's gradient:

       1. pull             2. compute              3. push               4. update

          0          1, 2, 3: backward          0              0: w = w - lr * (g_1 + g_2 + g_3) / 3
       w/ |w \\w       on their own        g_1/  |g_2\\g_3
       1  2  3       rows of the batch       1  2  3

Elements that a rank sends and receives in a step, compared with a ring that all-reduces the
gradients (N divides n):

             rank 0       another rank
    server   2(N-1) n     2n            all of it passes rank 0's link, and it grows with N
    ring     4(N-1)/N n   4(N-1)/N n    below 4n, however many ranks there are

What each rank stores. As in all data parallelism without sharding, more ranks reduce the
activations on each, and nothing else:

                  parameters  gradients  optimizer state  activations
    rank 0        all         all        all              none, or its share if it trains too
    another rank  all         all        none             its share of the rows

`ParameterServer`: rank 0 only serves, N-1 ranks train. `TrainingServer`: rank 0 trains too, so all
N do.

Sources: DistBelief (Dean et al. 2012, "Large scale distributed deep networks"); Li et al. 2014
("Scaling distributed machine learning with the parameter server"). Theirs spread w over many
servers, and workers need not wait for each other. Here all gradients are taken at the same w, so a
step equals that of a single process on the full batch.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.backend import Group
from lib.collectives import p2p
from lib.training.buckets import gradient


# exercise: lab1.parameter_server_step
def parameter_server_step(
    parameters: Iterable[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    backward: Callable[[], Any],
    group: Group = None,
) -> None:
    """One step in which every rank trains and rank 0 updates: pull, compute, push, update.

    parameters: the same shapes in the same order on every rank; rank 0's values are the ones used.
    Frozen ones are left alone. optimizer: rank 0's, over its `parameters`; the other ranks have
    none and pass None. backward: called without arguments after the pull; it leaves the gradients
    of this rank's rows in `.grad`. A gradient that it does not fill counts as zeros. Gradients from
    before the call are discarded.

    Afterwards rank 0 holds the new parameters and, in `.grad`, the mean of the ranks' gradients.
    The others hold the parameters from before the update, until their next pull.

    Sends: rank 0 sends its parameters to every other rank, and each of these sends its gradients to
    rank 0. That is 2(N-1) messages per parameter, with (N-1) n elements from rank 0 and (N-1) n to
    it. The others do not communicate with each other.
    """
    parameters = [p for p in parameters if p.requires_grad]
    for p in parameters:
        p.grad = None
    pull(parameters, group)
    backward()
    push(parameters, dist.get_world_size(group), group)
    if dist.get_rank(group) == 0:
        optimizer.step()


def pull(tensors: Sequence[Tensor], group: Group = None) -> None:
    """Copy rank 0's `tensors` to every rank, in place. The list has the same shapes on every rank.

    Sends: rank 0 sends all tensors to rank 1, then all to rank 2, and so on: (N-1) n elements. The
    last rank waits the longest.
    """
    for worker in range(1, dist.get_world_size(group)):
        deliver(tensors, 0, worker, group)


@torch.no_grad()
def push(parameters: Iterable[nn.Parameter], workers: int, group: Group = None) -> None:
    """Leave in rank 0's `.grad` the sum of all ranks' gradients divided by `workers`, the number of
    ranks that trained.

    Sends: every other rank sends its gradients to rank 0, which receives from one rank after the
    other: (N-1) n elements.
    """
    # zeros where this rank has none
    rank, gradients = dist.get_rank(group), [gradient(p) for p in parameters]
    if rank > 0:
        deliver(gradients, rank, 0, group)
        return

    # g = (g_0 + g_1 + ... + g_{N-1}) / workers      where rank 0 only serves, g_0 = 0
    for worker in range(1, dist.get_world_size(group)):
        for g in gradients:
            g += p2p.recv(torch.empty_like(g), worker, group)  # partial until the last one
    for g in gradients:
        g /= workers


def deliver(tensors: Iterable[Tensor], frm: int, to: int, group: Group = None) -> None:
    """Copy rank `frm`'s `tensors` to rank `to`, in place, in one message per tensor. The other
    ranks do nothing."""
    rank = dist.get_rank(group)
    if frm == to or rank not in (frm, to):
        return
    for tensor in tensors:
        if rank == frm:
            p2p.send(tensor, to, group)
        else:
            p2p.recv(tensor, frm, group)


class ParameterServer:
    """Rank 0 holds parameters and optimizer, and only serves; ranks 1 to N-1 train.

        server = ParameterServer(model, lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
        for step in range(100):
            server.step(lambda: model.loss(*batch(step, server.worker, server.workers)))

    workers: how many ranks train. worker: the index of this rank among them, from 0; None if it
    only serves. optimizer: rank 0's; None on other ranks.
    """

    first_worker = 1

    def __init__(
        self,
        module: nn.Module,
        optimizer_for: Callable[..., torch.optim.Optimizer],
        group: Group = None,
    ) -> None:
        """optimizer_for(parameters) -> a torch optimizer; called on rank 0 alone.

        The parameters that require grad now are the ones that will be trained; a tied one counts
        once. Sends: rank 0 sends all parameters, including frozen ones, and all buffers to every
        other rank. Raises ValueError if no rank is left to train.
        """
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        self.workers = world_size - self.first_worker
        if self.workers == 0:
            raise ValueError(
                "1 rank, and rank 0 only serves, so no rank trains: use TrainingServer, or 2 ranks"
            )
        self.worker = rank - self.first_worker if rank >= self.first_worker else None
        self.module, self.group = module, group
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = optimizer_for(self.parameters) if rank == 0 else None
        pull([*module.parameters(), *module.buffers()], group)

    def step(self, loss_of: Callable[[], Tensor]) -> Tensor | None:
        """One step: pull, compute, push, update. Returns this rank's loss, detached, or None if it
        only serves.

        loss_of: called without arguments after the pull, on the ranks that train -> the mean loss
        of this worker's rows, (). The update is that of the full batch if all workers have the same
        number of rows; otherwise, weight the losses. Afterwards rank 0's `.grad` is the mean over
        the workers. The others are one update behind until they `pull`. Of the buffers, such as a
        batch norm's averages, the first worker's are kept, and the next pull replaces the others'.
        Sends: what `pull` and `push` send; if rank 0 only serves, also the first worker's buffers
        to it.
        """
        for p in self.parameters:
            p.grad = None
        self.pull()
        loss = None
        if self.worker is not None:
            loss = loss_of()
            loss.backward()
            loss = loss.detach()
        push(self.parameters, self.workers, self.group)
        deliver(self.module.buffers(), self.first_worker, 0, self.group)
        if self.optimizer is not None:
            self.optimizer.step()
        return loss

    def pull(self) -> None:
        """Copy rank 0's trained parameters and its buffers to every rank. `step` begins with this.

        Call it on all ranks before a rank other than 0 evaluates or saves. Sends: one message per
        tensor from rank 0 to every other rank.
        """
        pull([*self.parameters, *self.module.buffers()], self.group)


class TrainingServer(ParameterServer):
    """A ParameterServer whose rank 0 trains too: N workers instead of N-1, for the same traffic.

    The others' pushes wait until rank 0 has computed its own gradient.
    """

    first_worker = 0
