"""Six ways to divide a dense transformer over a cluster: does it fit, and how long does a step
stand still for it?

    W parameters, L layers, hidden size h, sequences of s tokens, B of them in a step;
    M nodes of R GPUs, N = M R

                                    state over  sent in a step, on each GPU
    data                            1           all-reduce of the gradients, 2W bytes, over N
    sharded                         N           2 all-gathers and a reduce-scatter of 2W bytes,
                                                over N
    tensor                          N           4 all-reduces of A per layer and sequence, over N
    pipeline                        N           A to a neighbour, twice per sequence; idle
    tensor inside, data across      R           4 all-reduces of A per layer and own sequence, over
                                                the node's R; all-reduce of 2W/R bytes over M
    tensor inside, pipeline across  N           4 all-reduces of A per own layer and sequence, over
                                                the node's R;
                                                A to a neighbour, twice per sequence; idle

A = 2 s h, the bytes of a sequence's activation between two layers, in 16 bits. State: 16 bytes per
parameter. Ring algorithms; a group of GPUs on several nodes has the slower link. Idle: p stages
stand still for (p-1)/B of the time that a GPU computes, 6 W B s / N operations. Not counted:
activations' memory, and that communication may be hidden.

Sources of the volumes: Narayanan et al. 2021, section 3; Rajbhandari et al. 2020, section 7. The
labs count each.
"""

from typing import NamedTuple

from lib.collectives.cost import COST
from lib.cost.state import model_state_bytes


class Model(NamedTuple):
    """A dense transformer."""

    parameters: float
    layers: int
    hidden: int
    sequence: int  # tokens


class Cluster(NamedTuple):
    """Nodes of GPUs. A link is (seconds per message, seconds per byte), and each GPU has
    one of either kind."""

    nodes: int
    per_node: int  # GPUs
    memory: float  # bytes of a GPU
    flops: float  # per second and GPU, as training reaches them
    inside: tuple[float, float]
    across: tuple[float, float]


NVLINK, CARD, ETHERNET = (5e-6, 1 / 300e9), (10e-6, 1 / 50e9), (50e-6, 1 / 1.25e9)
NODE, NODES = (Cluster(nodes, 8, 80e9, 400e12, NVLINK, CARD) for nodes in (1, 8))
SITUATIONS = {  # name: (model, cluster, sequences in a step)
    "1.2B on a node": (Model(1.2e9, 24, 2048, 2048), NODE, 512),
    "7B on a node": (Model(6.7e9, 32, 4096, 2048), NODE, 512),
    "7B on a node, 4 long sequences": (Model(6.7e9, 32, 4096, 16384), NODE, 4),
    "7B on 2 workstations": (
        Model(6.7e9, 32, 4096, 2048),
        Cluster(2, 1, 80e9, 400e12, ETHERNET, ETHERNET),
        64,
    ),
    "13B on 8 nodes": (Model(13e9, 40, 5120, 2048), NODES, 128),
    "175B on 8 nodes": (Model(175e9, 96, 12288, 2048), NODES, 256),
}


# exercise: lab0.seconds_lost
def seconds_lost(model, cluster, batch):
    """{strategy: seconds of a step in which a GPU does not compute}, of the six strategies those
    that fit.

    batch: sequences in a step. Fits: the model state in a GPU's memory; no more stages than layers;
    no more copies of the model than sequences.
    """
    W, L, A = model.parameters, model.layers, 2 * model.sequence * model.hidden
    M, R = cluster.nodes, cluster.per_node
    N, inside, across = M * R, cluster.inside, cluster.across if M > 1 else cluster.inside
    ring, half = COST["ring"].time, COST["all_gather"].time
    compute = 6 * W * batch * model.sequence / N / cluster.flops
    pipeline = lambda p: (
        2 * batch * (across[0] + A * across[1]) * (p > 1) + (p - 1) / batch * compute
    )
    ways = {  # strategy: (what the state is divided by, is it possible, seconds)
        "data": (1, batch >= N, ring(2 * W, N, *across)),
        "sharded": (N, batch >= N, 3 * half(2 * W, N, *across)),
        "tensor": (N, True, 4 * L * batch * ring(A, N, *across)),
        "pipeline": (N, N <= L, pipeline(N)),
        "tensor inside, data across": (
            R, batch >= M, 4 * L * batch / M * ring(A, R, *inside) + ring(2 * W / R, M, *across)),
        "tensor inside, pipeline across": (N, M <= L,
        4 * L / M * batch * ring(A, R, *inside) + pipeline(M)),
    }  # fmt: skip
    state = model_state_bytes(W, "mixed")
    return {
        way: seconds
        for way, (parts, may, seconds) in ways.items()
        if may and state / parts <= cluster.memory
    }
