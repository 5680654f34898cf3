"""A GPT on paced ranks: the real one, but a layer's matmuls take the time that they are told to.

    half a layer    f --[ products ....... wait ]-- g        forward: from f to g
                    f --[ wait ....... products ]-- g        backward: from g to f

Its values are those of `parallel_gpt`. Time between f and g is at least what was told, arithmetic
included; f, g, messages, norms, the optimizer take what they take. So a `Hybrid` of it shows on two
cores what a placement costs on devices that compute as fast as you say, with the network of
`collectives.slow_link` (lib/measuring/paced.py says why). For f, g and gradients recursive doubling
is named, which between 2 ranks is one exchange; what the front door would choose for long messages
is best over loopback.
"""

import time
from functools import partial

import torch
import torch.distributed as dist

from lib import backend
from lib.collectives import recursive_doubling_all_reduce
from lib.collectives.slow_link import slow_link
from lib.data_parallel import reduce_bucket
from lib.hybrid.mesh import Mesh
from lib.hybrid.train import SETS, Hybrid, local_batch
from lib.hybrid.update import ReplicatedUpdate
from lib.tensor_parallel import (
    column_parallel,
    copy_to_group,
    parallel_gpt,
    reduce_from_group,
    row_parallel,
)
from lib.training.model import GPT


def paced_gpt(model, group=None, forward=0.0, backward=0.0):
    """`parallel_gpt` for the `split` of a `Hybrid`: partial(paced_gpt, forward=4e-3,
    backward=8e-3).

    forward, backward: seconds of one layer for one micro-batch on one rank alone; each of tp ranks
    takes 1/tp of it.
    """
    part = parallel_gpt(model, group, recursive_doubling_all_reduce)
    halves = 2 * dist.get_world_size(group)
    for block in part.blocks:
        for first, last in ((block.attention, block.attention.out), (block.mlp.up, block.mlp.down)):
            pace = Pace(forward / halves, backward / halves)
            first.column_linear = partial(column_parallel, input_mapping=pace.input_mapping)
            last.row_linear = partial(row_parallel, output_mapping=pace.output_mapping)
    return part


class Pace:
    """f and g of one half of a layer, and the wait between them."""

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward  # seconds
        self.began = None  # when this half began, whichever way

    def begin(self, _=None):
        backend.synchronize_stream()  # on a GPU what this half computes with may not have come yet
        self.began = time.monotonic()

    def wait(self, seconds):
        time.sleep(max(0.0, self.began + seconds - time.monotonic()))

    def input_mapping(self, x, group):
        """f: x as it is. In backward: the rest of the wait, and then the sum."""
        x = copy_to_group(x, group, recursive_doubling_all_reduce)
        if x.requires_grad:
            x.register_hook(lambda _: self.wait(self.backward))
        self.begin()
        return x

    def output_mapping(self, x, group):
        """g: the rest of the wait, and then the sum. In backward: the wait begins."""
        if x.requires_grad:
            x.register_hook(self.begin)
        self.wait(self.forward)
        return reduce_from_group(x, group, recursive_doubling_all_reduce)


class DoublingUpdate(ReplicatedUpdate):
    """A `ReplicatedUpdate` whose gradients are summed by recursive doubling."""

    def average_gradients(self):
        """As of ReplicatedUpdate."""
        for bucket in self.buckets:
            reduce_bucket(bucket, self.group, recursive_doubling_all_reduce)


def placed_steps(placements, shape, rows, b, compute, link, steps):
    """On every rank: {name: [seconds of each step, on the slowest rank]} of a paced GPT in each
    placement.

    placements: {name: (sizes, ranks_per_node)}: a mesh of pp, dp and tp, in the order that you
    like, slowest first, and how many neighbours share a node.
    shape: of the GPT; sequences are seq_len long. rows, b: of the whole batch, and of a
    micro-batch. compute: (forward, backward), as of `paced_gpt`. link: (alpha, beta) between nodes,
    seconds and seconds per byte. One step of each placement, then again, so that a slow second is
    slow for all; the first steps are not timed. Sends: as `Hybrid`, and barriers. Raises ValueError
    as `Mesh`, `local_batch` and `slow_link` do.
    """
    alpha, beta = link
    split = partial(paced_gpt, forward=compute[0], backward=compute[1])
    numbers = torch.Generator("cpu").manual_seed(0)
    batch = torch.randint(
        shape.vocab_size, (2, rows, shape.seq_len), generator=numbers, device="cpu"
    )
    batch = batch.to(backend.device())
    placed = {}
    for name, (sizes, ranks_per_node) in placements.items():
        mesh = Mesh({"ep": 1, "cp": 1} | sizes, SETS)
        tokens, targets = (local_batch(each, mesh) for each in batch)
        sgd = partial(torch.optim.SGD, lr=0.1)
        hybrid = Hybrid(GPT(shape), mesh, tokens, b, sgd, split=split, update=DoublingUpdate)
        placed[name] = hybrid, tokens, targets, ranks_per_node
    seconds = {name: [] for name in placements}
    for step in range(1 + steps):
        for name, (hybrid, tokens, targets, ranks_per_node) in placed.items():
            with slow_link(ranks_per_node, alpha, 1 / beta):
                dist.barrier()
                began = time.monotonic()
                hybrid.backward(tokens, targets).item()
                hybrid.step()
                if step:
                    seconds[name].append(time.monotonic() - began)
    return {name: slowest(each) for name, each in seconds.items()}


def slowest(seconds):
    """Lists of numbers, as long on every rank: the largest of the ranks' numbers, place by place,
    on every rank."""
    largest = torch.tensor(seconds, dtype=torch.float64, device=backend.device())
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()
