"""Models that a parameter server trains on ranks, and what every rank saw."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import backend, ledger
from lib.data_parallel.parameter_server import (
    ParameterServer,
    TrainingServer,
    parameter_server_step,
)

WORLD = 4
STEPS, ROWS = 5, 12  # 12 rows: equal shares for 1, 2, 3 and 4 workers
GROUPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 3)]  # the last one's ranks are not the world's
FORMS = {"serves": ParameterServer, "trains": TrainingServer}
CASES = [
    (form, members) for form in FORMS for members in GROUPS if (form, members) != ("serves", (0,))
]


class Net(nn.Module):
    """A tied parameter, a frozen one, one that only the batch's first row uses, and one
    that nobody uses."""

    def __init__(self, seed):
        super().__init__()
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
            self.frozen, self.rare, self.never = (
                nn.Linear(6, 6),
                nn.Linear(6, 6),
                nn.Parameter(torch.randn(3)),
            )
        self.b.weight = self.a.weight
        self.frozen.requires_grad_(False)
        self.double().to(torch.get_default_device())

    def forward(self, x, first):
        """x (b, 6), first (b,) bool: the batch's first row -> (b, 6)."""
        h = self.frozen(self.b(self.a(x).tanh()).tanh())
        if first.any():
            h = h + first[:, None] * self.rare(x)
        return self.c(h.tanh())


class NormNet(nn.Module):
    """Batch norm: 2 buffers of float64 and one of int64, different on every worker."""

    def __init__(self, seed):
        super().__init__()
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # No bias before a batch norm: its true gradient is zero, and rounding has no scale
            # there.
            self.a, self.norm, self.c = (
                nn.Linear(6, 6, bias=False),
                nn.BatchNorm1d(6),
                nn.Linear(6, 6),
            )
        self.double().to(torch.get_default_device())

    def forward(self, x, first):
        return self.c(self.norm(self.a(x)).tanh())


def share(step, worker=0, workers=1):
    """This worker's rows of the step's batch: x (b, 6), which row is the batch's first (b,),
    targets (b, 6)."""
    generator = torch.Generator("cpu").manual_seed(step)
    with torch.device("cpu"):
        x, y = torch.randn(2, ROWS, 6, dtype=torch.float64, generator=generator)
        batch = x, torch.arange(ROWS) == 0, y
    return [tensor.tensor_split(workers)[worker].to(backend.device()) for tensor in batch]


def loss_of(module, step, worker=0, workers=1):
    x, first, y = share(step, worker, workers)
    return F.mse_loss(module(x, first), y)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def gradients(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def record(label, module, server):
    """Five steps of a server; what is in this rank's module after each step, and after the pull
    that follows it."""
    seen = []
    for step in range(STEPS):
        ledger.mark(f"{label} step" if step == 1 else "")
        loss = server.step(lambda step=step: loss_of(module, step, server.worker, server.workers))
        ledger.mark("")
        seen.append({"loss": loss, "gradients": gradients(module), "after": state(module)})
        server.pull()
        seen[-1]["pulled"] = state(module)
    return seen


def all_cases():
    """On every rank, for each case that it takes part in: what `record` saw, and more."""
    groups = {members: dist.new_group(members) for members in GROUPS}
    seen = {}
    for make in (Net, NormNet):
        for form, members in CASES:
            if dist.get_rank() not in members:
                continue
            module = make(seed=dist.get_rank())
            label = f"{make.__name__} {form} {members}"
            ledger.mark(f"{label} start")
            server = FORMS[form](module, momentum, groups[members])
            seen[label] = {
                "steps": record(label, module, server),
                "worker": server.worker,
                "workers": server.workers,
            }
            seen[label]["optimizer"] = (
                None if server.optimizer is None else len(server.optimizer.state)
            )
    for members, group in groups.items():
        if dist.get_rank() in members:
            seen[f"function {members}"] = plain_function(members, group)
    return seen


def plain_function(members, group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    module = Net(seed=dist.get_rank())
    # only a class brings frozen ones along
    module.frozen.load_state_dict(Net(seed=members[0]).frozen.state_dict())
    optimizer = momentum([p for p in module.parameters() if p.requires_grad]) if rank == 0 else None
    seen = []
    for step in range(STEPS):
        ledger.mark(f"function {members}" if step == 1 else "")
        backward = lambda step=step: loss_of(module, step, rank, world_size).backward()
        parameter_server_step(module.parameters(), optimizer, backward, group)
        ledger.mark("")
        seen.append({"gradients": gradients(module), "after": state(module)})
    return seen
