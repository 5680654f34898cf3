"""A GPT on paced ranks: it computes what `parallel_gpt` computes, but the matmuls of a layer take a
given time. In this way two cores can show what a placement of the ranks on nodes costs.

    half a layer    f --[ matmuls ........ wait ]-- g        forward: from f to g
                    f --[ wait ........ matmuls ]-- g        backward: from g to f

Between f and g a rank computes, and then sleeps until the given time is over. All else, such as f,
g, other messages, norms and the optimizer, takes its real time. A `Hybrid` of such a GPT behaves
like one on devices of that speed, with the network of `collectives.slow_link`
(lib/measuring/paced.py says why). f, g and the averaging of gradients use recursive doubling, which
is a single exchange between 2 ranks. `collectives.all_reduce` would choose another algorithm for
long messages, namely the one that is fastest over loopback.
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
    """A paced `parallel_gpt`. As the `split` of a `Hybrid`, pass partial(paced_gpt, forward=4e-3,
    backward=8e-3).

    forward, backward: seconds of one layer for one micro-batch without tensor parallelism; each of
    tp ranks takes 1/tp of it.
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
    """The f and g of one half of a layer (attention or MLP), and the wait between them."""

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward  # seconds
        self.began = None  # when this half's forward or backward began

    def begin(self, _=None):
        backend.synchronize_stream()  # on a GPU this half's input may not be computed yet
        self.began = time.monotonic()

    def wait(self, seconds):
        time.sleep(max(0.0, self.began + seconds - time.monotonic()))

    def input_mapping(self, x, group):
        """f: returns x. In backward it waits until this half's time is over, and then sums."""
        x = copy_to_group(x, group, recursive_doubling_all_reduce)
        if x.requires_grad:
            x.register_hook(lambda _: self.wait(self.backward))
        self.begin()
        return x

    def output_mapping(self, x, group):
        """g: waits until this half's time is over, and then sums. In backward it starts the
        clock."""
        if x.requires_grad:
            x.register_hook(self.begin)
        self.wait(self.forward)
        return reduce_from_group(x, group, recursive_doubling_all_reduce)


class DoublingUpdate(ReplicatedUpdate):
    """A `ReplicatedUpdate` whose gradients are summed by recursive doubling."""

    def average_gradients(self):
        """As `ReplicatedUpdate.average_gradients`."""
        for bucket in self.buckets:
            reduce_bucket(bucket, self.group, recursive_doubling_all_reduce)


def placed_steps(placements, shape, rows, b, compute, link, steps):
    """Train a paced GPT in each placement. Returns on every rank {name: [seconds of each step, on
    the slowest rank]}.

    placements: {name: (sizes, ranks_per_node)}. sizes: of a mesh of pp, dp and tp in any order,
    with the slowest axis first. ranks_per_node: how many consecutive ranks share a node. shape: of
    the GPT; sequences have seq_len tokens. rows, b: rows of the whole batch, and of a micro-batch.
    compute: (forward, backward), as in `paced_gpt`. link: (alpha, beta) between nodes, seconds and
    seconds per byte. The placements take turns, one step each, so that a second in which the
    machine is slow affects all of them; the first step of each is not timed. Sends: what `Hybrid`
    sends, and barriers. Raises ValueError as `Mesh`, `local_batch` and `slow_link` do.
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
    """The element-wise maximum of `seconds` over all ranks, on every rank. seconds: nested lists of
    the same shape on every rank. Sends: an all-reduce."""
    largest = torch.tensor(seconds, dtype=torch.float64, device=backend.device())
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()
