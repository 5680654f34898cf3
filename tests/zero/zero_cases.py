"""What the tests of ZeRO share: models, one process's training, the ranks', by every stage and
optimizer.

Equal means what it means in tests/data_parallel/replicas.py: every gradient at every step, every
parameter after it.
"""

import functools
from typing import NamedTuple

import torch
import torch.distributed as dist
from replicas import MODELS as PLAIN_MODELS
from replicas import Model, gpt_batch, gpt_loss, share, snapshot

from lib import collectives
from lib.data_parallel import OverlappedDataParallel
from lib.training import model
from lib.training.buckets import slots
from lib.training.clip import clip_gradients
from lib.training.precision import MasterWeights
from lib.zero import FSDP, MasterShards, PrefetchingFSDP, Zero1, Zero2

STEPS = 3
GROUPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 3)]
SHAPE = model.Shape(vocab_size=11, seq_len=5, n_layers=3, hidden=8, n_heads=2, n_kv_heads=1)
MAX_NORM = 0.3  # below the norm of most steps
STAGES = {"zero1": Zero1, "zero2": Zero2, "fsdp": FSDP, "prefetching": PrefetchingFSDP}


def gpt(dtype, tolerance):
    return Model(lambda seed: model.GPT(SHAPE, seed).to(dtype), gpt_batch, gpt_loss, tolerance)


MODELS = {
    "gpt float64": gpt(torch.float64, 1e-12),
    "paths float64": PLAIN_MODELS["paths float64"],
    "paths float64 and float32": PLAIN_MODELS["paths float64 and float32"],
    "gpt float32": gpt(torch.float32, 1e-5),
}
MIXED = gpt(torch.bfloat16, 2e-2)  # two or three units in the last place of the largest number


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-3)


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


OPTIMIZERS = {"adamw": adamw, "sgd": sgd}


def units_of(name, net):
    """GPT's blocks. Of Paths what every rank runs; `twice` is called twice, and its weight is
    `again`'s: the root's."""
    return (
        list(net.blocks)
        if hasattr(net, "blocks")
        else [net.first, net.twice, net.again, net.frozen, net.last]
    )


def decay_groups(net):
    """Matrices decay, the rest does not; and learning rates of their own."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1, "lr": 0.02},
    ]


def small(name):
    """Bytes: a capacity that makes several flats of each model."""
    return 600 if "paths" in name else 6000


def case_of(name):
    return MIXED if name == "mixed" else MODELS[name]


class ZeroRun:
    """A stage around `net`, and its optimizer; whole gradients and parameters, for
    the comparison."""

    def __init__(self, name, stage, optimizer, net, group=None, grouped=True, capacity=None):
        self.net, self.group, self.stage = net, group, stage
        parameters = decay_groups(net) if grouped else list(net.parameters())
        make = OPTIMIZERS[optimizer]
        outer = (lambda groups: MasterShards(groups, make)) if name == "mixed" else make
        self.names = {p: n for n, p in net.named_parameters()}
        if stage in ("zero1", "zero2"):
            self.sharded = STAGES[stage](parameters, outer, group, capacity=capacity or small(name))
            self.optimizer = self.sharded
        else:
            self.sharded = STAGES[stage](net, units_of(name, net), group, parameters)
            self.optimizer = outer(self.sharded.groups)

    def clip(self, max_norm):
        return clip_gradients(self.sharded.shards, max_norm, [self.group])

    def gradients(self):
        """{name: whole mean gradient}, gathered from the shards."""
        found = dict.fromkeys(self.names.values())
        for flat in self.sharded.flats:
            if flat.requires_grad and flat.shard.grad is not None:
                line = collectives.all_gather(flat.shard.grad, flat.group)
                found |= {
                    self.names[p]: g.clone()
                    for p, g in zip(flat.parameters, slots(line[: flat.n], flat.slots), strict=True)
                }
        return found

    def parameters(self):
        """{name: whole parameter}."""
        if self.stage in ("zero1", "zero2"):
            return snapshot(self.net)[1]
        with self.sharded.unsharded():
            return snapshot(self.net)[1]


class Training(NamedTuple):
    steps: list  # [(gradients, parameters) after each of STEPS steps, ...]
    norms: list  # before clipping; none where nothing is clipped


def train_on_ranks(name, stage, optimizer, group=None, microbatches=1, clip=MAX_NORM):
    """The Training of this rank. clip: the largest norm; None: not clipped."""
    case, rank, world_size = case_of(name), dist.get_rank(group), dist.get_world_size(group)
    net = case.build(seed=rank)  # rank 0's values on every rank, once wrapped
    if stage in ("zero1", "zero2"):
        for p in net.parameters():
            if not p.requires_grad:
                collectives.broadcast(p.detach(), 0, group)  # frozen ones are left alone there
    run, seen, norms = ZeroRun(name, stage, optimizer, net, group), [], []
    for step in range(STEPS):
        run.optimizer.zero_grad()
        mine = share(case.batch(step), rank, world_size)
        for i in range(microbatches):
            (case.loss(net, share(mine, i, microbatches)) / microbatches).backward()
            if stage != "zero1" or i == microbatches - 1:
                run.sharded.average_gradients()
        gradients = run.gradients()
        if clip is not None:
            norms.append(run.clip(clip).item())
        run.optimizer.step()
        seen.append((gradients, run.parameters()))
    return Training(seen, norms)


@functools.cache
def single_process(name, optimizer, clip=MAX_NORM):
    """The same by one process on the whole batch, with torch's clipping; what is unused has a
    gradient of zeros."""
    case = MODELS[name]
    net = case.build(0)
    step_on = OPTIMIZERS[optimizer](decay_groups(net))
    seen, norms = [], []
    for step in range(STEPS):
        step_on.zero_grad()
        case.loss(net, case.batch(step)).backward()
        trained = [p for p in net.parameters() if p.requires_grad]
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        gradients, _ = snapshot(net)
        norms.append(torch.nn.utils.clip_grad_norm_(trained, clip).item())
        step_on.step()
        seen.append((gradients, snapshot(net)[1]))
    return Training(seen, norms)


def mixed_data_parallel(group=None):
    """What train_on_ranks("mixed", ..., "adamw", clip=None) sees, by data parallelism and
    whole masters."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    net = MIXED.build(0)
    model, seen = OverlappedDataParallel(net, group), []

    def on(masters):
        master_of = dict(zip(net.parameters(), masters, strict=True))
        return adamw(
            [{**g, "params": [master_of[p] for p in g["params"]]} for g in decay_groups(net)]
        )

    optimizer = MasterWeights(net.parameters(), on)
    for step in range(STEPS):
        optimizer.zero_grad()
        MIXED.loss(net, share(MIXED.batch(step), rank, world_size)).backward()
        model.average_gradients()
        gradients, _ = snapshot(net)
        optimizer.grads_to_master()
        optimizer.step()
        seen.append((gradients, snapshot(net)[1]))
    return seen
