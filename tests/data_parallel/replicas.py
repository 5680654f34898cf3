"""What the tests of data parallelism share: models, batches, one process's training and the ranks',
the comparison.

Equal means: every gradient at every step, and every parameter after it, differs from the single
process's by less than `tolerance` times the largest number in it.
"""

import functools
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import backend, collectives
from lib.collectives import p2p
from lib.data_parallel import BucketedDataParallel, NaiveDataParallel, OverlappedDataParallel
from lib.training import model

STEPS, ROWS = 5, 12  # 12 rows: equal shards on 1, 2, 3 and 4 ranks
GROUPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 3)]  # the last one's ranks are not the world's
SMALL = 600  # bytes: a capacity that cuts each of these models into several buckets
SHAPE = model.Shape(vocab_size=11, seq_len=5, n_layers=1, hidden=8, n_heads=2, n_kv_heads=1)


class Paths(nn.Module):
    """What a wrapper may stumble over: each row takes its own path. Numbers of `lower` dtype stand
    behind `upper` ones.

    twice   is used twice in one forward, and `again` has its weight: three uses, one parameter
    frozen  is not trained;  turned  has gradients that are not contiguous;  scale  has no dimension
    path    row i goes through path[route[i]]: a rank whose rows all go one way does not use the
            other parameters
    """

    def __init__(self, seed, upper, lower):
        super().__init__()
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first, self.twice, self.again, self.frozen = (nn.Linear(6, 6) for _ in range(4))
            self.turned, self.scale = (
                nn.Parameter(torch.randn(6, 4).t()),
                nn.Parameter(torch.randn(())),
            )
            self.path, self.last = nn.ModuleList(nn.Linear(4, 5) for _ in range(3)), nn.Linear(5, 3)
        self.again.weight = self.twice.weight
        self.frozen.requires_grad_(False)
        self.to(torch.get_default_device(), upper)
        self.path.to(lower)
        self.last.to(lower)

    def forward(self, x, route):
        """x (b, 6), route (b,) -> (b, 3)."""
        h = self.first(x.to(self.first.weight.dtype)).tanh()
        h = self.again(self.twice(self.twice(h).tanh()).tanh()).tanh()
        h = self.scale * F.linear(self.frozen(h), self.turned)  # (b, 4)
        h = h.to(self.last.weight.dtype)
        ways = [(route == i, path) for i, path in enumerate(self.path)]
        return self.last(sum(path(h) * at[:, None] for at, path in ways if at.any()).tanh())


class NormNet(nn.Module):
    """Buffers: a batch norm's running mean and variance, and how many batches it saw, int64 ()."""

    def __init__(self, seed):
        super().__init__()
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
            nn.init.normal_(self.norm.running_mean)
            self.norm.num_batches_tracked += 10 * seed
        self.last.requires_grad_(False)
        self.to(torch.get_default_device())

    def forward(self, x):
        return self.last(self.norm(self.first(x)).tanh())


def _numbers(step, *shape):
    return torch.randn(
        *shape,
        generator=torch.Generator("cpu").manual_seed(step),
        device="cpu",
        dtype=torch.float64,
    )


def paths_batch(step):
    """x (B, 6), route (B,), target (B, 3). Path 2 is never taken; path 1 not in step 2, and not by
    the first rows."""
    route = torch.zeros(ROWS, dtype=torch.int64, device="cpu")
    route[3:] = int(step != 2)
    return tuple(
        x.to(backend.device())
        for x in (_numbers(step, ROWS, 6), route, _numbers(100 + step, ROWS, 3))
    )


def paths_loss(net, batch, reduction="mean"):
    """Squared error of a row, () over the rows."""
    x, route, target = batch
    out = net(x, route)
    rows = (out - target.to(out.dtype)).square().sum(1)  # (b,)
    return rows.mean() if reduction == "mean" else rows.sum()


def gpt_batch(step):
    """tokens (B, T), targets (B, T)."""
    generator = torch.Generator("cpu").manual_seed(step)
    tokens = torch.randint(
        SHAPE.vocab_size, (ROWS, SHAPE.seq_len + 1), generator=generator, device="cpu"
    )
    tokens = tokens.to(backend.device())
    return tokens[:, :-1], tokens[:, 1:]


def gpt_loss(net, batch, reduction="mean"):
    tokens, targets = batch
    return model.cross_entropy(net(tokens), targets, reduction)


class Model(NamedTuple):
    """build(seed) -> module; batch(step) -> tensors of ROWS rows; loss(module, batch,
    reduction) -> ()."""

    build: callable
    batch: callable
    loss: callable
    tolerance: float  # relative to the largest number in a gradient or parameter


def gpt(dtype, tolerance):
    return Model(lambda seed: model.GPT(SHAPE, seed).to(dtype), gpt_batch, gpt_loss, tolerance)


def paths(upper, lower, tolerance):
    return Model(
        functools.partial(Paths, upper=upper, lower=lower), paths_batch, paths_loss, tolerance
    )


f64, f32, bf16 = torch.float64, torch.float32, torch.bfloat16
MODELS = {
    "gpt float64": gpt(f64, 1e-12),
    "paths float64": paths(f64, f64, 1e-12),
    # Rounding of sums in another order: some tens of units of 6e-8 (float32) or 4e-3 (bfloat16),
    # over five steps.
    "gpt float32": gpt(f32, 1e-5),
    "paths float32": paths(f32, f32, 1e-5),
    "paths float64 and float32": paths(f64, f32, 1e-5),
    "paths float32 and bfloat16": paths(f32, bf16, 1e-1),
}


def share(batch, rank, world_size):
    """The rank's equal share of the rows."""
    return tuple(x.chunk(world_size)[rank] for x in batch)


def student_ring(tensor, group):
    """A ring as a student might write it, from send_recv alone: whole tensors go
    round, N-1 times."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    parts = {rank: tensor.detach().flatten()}
    for step in range(world_size - 1):
        inbound = (rank - step - 1) % world_size
        passed_on = parts[(rank - step) % world_size]
        parts[inbound] = p2p.send_recv(
            passed_on, (rank + 1) % world_size, (rank - 1) % world_size, group
        )
    # In the order of the ranks, or the sums would differ in their last bits.
    tensor.copy_(sum(parts[r] for r in range(world_size)).view_as(tensor))


WRAPPERS = {
    "naive": NaiveDataParallel,
    "bucketed": functools.partial(BucketedDataParallel, capacity=SMALL),
    "overlapped": functools.partial(OverlappedDataParallel, capacity=SMALL),
}
TRANSPORTS = {
    "lib": {},  # the default: lib's front door
    "ring": {"all_reduce": collectives.ring_all_reduce},
    "student": {"all_reduce": student_ring},
    "torch": {"all_reduce": lambda tensor, group: dist.all_reduce(tensor, group=group)},
}


def groups():
    """On every rank: {members: group}. The world is None, as the default argument is."""
    made = {
        members: dist.new_group(members)
        for members in GROUPS
        if len(members) < dist.get_world_size()
    }
    return {members: made.get(members) for members in GROUPS}


def snapshot(module):
    """({name: gradient}, {name: parameter}), copies; a tied parameter once, None where
    there is no gradient."""
    named = list(module.named_parameters())
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in named}
    return gradients, {name: p.detach().clone() for name, p in named}


def train(net, module, backward):
    """STEPS steps of SGD; returns a `snapshot` of each, gradients as the optimizer finds them.

    backward(net, step) leaves this step's gradients in `module`, which `net` is or wraps.
    """
    optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(net, step)
        gradients, _ = snapshot(module)
        optimizer.step()
        seen.append((gradients, snapshot(module)[1]))
    return seen


@functools.cache
def single_process(name):
    """What one process sees on the whole batch, from the weights of seed 0."""
    case = MODELS[name]
    net = case.build(0)
    return train(net, net, lambda net, step: case.loss(net, case.batch(step)).backward())


def on_shards(name, group):
    """backward(net, step) for `train`, with this rank's equal share and the
    wrappers' way of averaging."""
    case, rank, world_size = MODELS[name], dist.get_rank(group), dist.get_world_size(group)

    def backward(net, step):
        case.loss(net, share(case.batch(step), rank, world_size)).backward()
        net.average_gradients()

    return backward


def scale(name, tensors):
    """The largest number in tensors[name], which what it is off by is measured against; or in that
    of a neighbour.

    The true gradient of attention's key bias is zero: its weight's instead. That of Paths.scale is
    one number, the sum of what may cancel: its factor's, `turned`.
    """
    neighbour = "turned" if name == "scale" else name.replace("k.bias", "k.weight")
    return tensors[neighbour].abs().max().item()


def differences(got, want, tolerance):
    """What is not equal in two trainings: ["step 2, gradient of head.weight: off by 0.1, ..."]."""
    wrong = []
    for step, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for kind, ours, expected in zip(("gradient", "parameter"), mine, theirs, strict=True):
            assert ours.keys() == expected.keys()
            for name, right in expected.items():
                where = f"step {step}, {kind} {name}"
                if ours[name] is None or right is None:
                    # Unused by one process: no gradient there, zeros here, none at all where it is
                    # frozen.
                    if right is not None or (ours[name] is not None and ours[name].any()):
                        wrong.append(f"{where}: {ours[name]} for {right}")
                    continue
                off, allowed = (
                    (ours[name] - right).abs().max().item(),
                    tolerance * scale(name, expected),
                )
                if not off <= allowed or ours[name].dtype != right.dtype:
                    wrong.append(
                        f"{where}: off by {off:.3g}, {allowed:.3g} allowed; {ours[name].dtype}"
                    )
    return wrong


def same_bits(one, other):
    """Are two trainings alike to the last bit?"""
    return all(
        torch.equal(b[name], x) if x is not None else b[name] is None
        for (grads, params), (grads2, params2) in zip(one, other, strict=True)
        for a, b in ((grads, grads2), (params, params2))
        for name, x in a.items()
    )
