"""Six ways to distribute a dense transformer over a cluster: which of them fit in memory, and how
long does a GPU wait in a step?

    W parameters, L layers, hidden size h, sequences of s tokens, B of them in a step;
    M nodes of R GPUs, N = M R

                                    state over  sent in a step, by each GPU
    data                            1           all-reduce of the gradients, 2W bytes, over N
    sharded                         N           2 all-gathers and a reduce-scatter of 2W bytes,
                                                over N, for each of its B/N sequences
    tensor                          N           4 all-reduces of A per layer and sequence, over N
    pipeline                        N           A to a neighbour, twice per sequence; idle time
    tensor inside, data across      R           4 all-reduces of A per layer and own sequence, over
                                                the node's R; all-reduce of 2W/R bytes over M
    tensor inside, pipeline across  N           4 all-reduces of A per own layer and sequence, over
                                                the node's R;
                                                A to a neighbour, twice per sequence; idle time

A = 2 s h is the size of a sequence's activation between two layers, in bytes, with 16 bits per
element. A micro-batch is one sequence, and a copy of the model processes its share of the sequences
one after the other. The state takes 16 bytes per parameter. Collectives use ring algorithms, and a
group of GPUs on several nodes has the slower link. A pipeline of p stages is idle for (p-1)/B of
the time that a GPU computes, which is 6 W B s / N operations. We neither count the memory of
activations nor consider that communication may be hidden. A node is an NVLink domain here.

Sources of the volumes: Narayanan et al. 2021, section 3; Rajbhandari et al. 2020, section 7. You
count each of them in a lab.
"""

from math import inf
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
    """Nodes of GPUs. A link is (seconds per message, seconds per byte), and each GPU has one link
    inside its node and one across nodes."""

    nodes: int
    per_node: int  # GPUs
    memory: float  # bytes of a GPU
    flops: float  # per second and GPU, as reached in training
    inside: tuple[float, float]
    across: tuple[float, float]


NVLINK, CARD, ETHERNET = (5e-6, 1 / 300e9), (10e-6, 1 / 50e9), (50e-6, 1 / 1.25e9)
NODE, NODES = (Cluster(nodes, 8, 80e9, 400e12, NVLINK, CARD) for nodes in (1, 8))
SITUATIONS = {  # name: (model, cluster, sequences in a step)
    "1.2B on a node": (Model(1.2e9, 24, 2048, 2048), NODE, 512),
    "7B on a node, 16 sequences": (Model(6.7e9, 32, 4096, 8192), NODE, 16),
    "7B on a node, 4 long sequences": (Model(6.7e9, 32, 4096, 16384), NODE, 4),
    "7B on 2 workstations": (
        Model(6.7e9, 32, 4096, 2048),
        Cluster(2, 1, 80e9, 400e12, ETHERNET, ETHERNET),
        64,
    ),
    "13B on 8 nodes": (Model(13e9, 40, 5120, 2048), NODES, 128),
    "175B on 8 nodes": (Model(175e9, 96, 12288, 2048), NODES, 256),
}


# a 7B model on two nodes of 8 H100, with a million tokens in a step
JOB = (Model(6.7e9, 32, 4096, 4096), Cluster(2, 8, 80e9, 400e12, NVLINK, CARD), 256)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORT = {  # the names of the six strategies in the header of a table
    "data": "data", "sharded": "sharded", "tensor": "tensor", "pipeline": "pipeline",
    "tensor inside, data across": "t + data", "tensor inside, pipeline across": "t + pipe",
}  # fmt: skip


# exercise: lab0.seconds_lost
def seconds_lost(model, cluster, batch):
    """{strategy: seconds of a step in which a GPU does not compute}, for those of the six
    strategies that fit.

    batch: sequences in a step. A strategy fits if the model state fits into a GPU's memory, if
    there are no more stages than layers, and if there are no more copies of the model than
    sequences.
    """
    W, L, A = model.parameters, model.layers, 2 * model.sequence * model.hidden
    M, R = cluster.nodes, cluster.per_node
    N, inside, across = M * R, cluster.inside, cluster.across if M > 1 else cluster.inside
    ring, half = COST["ring"].time, COST["all_gather"].time
    compute = 6 * W * batch * model.sequence / N / cluster.flops
    pipeline = lambda p: (
        2 * batch * (across[0] + A * across[1]) * (p > 1) + (p - 1) / batch * compute
    )
    ways = {  # strategy: (what divides the state, whether it is possible, seconds)
        "data": (1, batch >= N, ring(2 * W, N, *across)),
        "sharded": (N, batch >= N, batch / N * 3 * half(2 * W, N, *across)),
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


def compared(seconds_lost, situations):
    """(a table, [the strategy that waits least in each situation]).

    seconds_lost: as above. situations: {name: (model, cluster, sequences in a step)}, up to 26. The
    table has a row for each, with the seconds that a step computes and those that it waits. If
    several strategies wait equally long, the first of the six counts as the best. With one GPU per
    node, for example, "tensor inside, pipeline across" is the same as a pipeline.
    """
    head = f"{'':<34} {'computes':>9} " + " ".join(f"{name:>8}" for name in SHORT.values())
    lines, best = [head], []
    for letter, (name, situation) in zip(LETTERS, situations.items(), strict=False):
        lost, (model, cluster, batch) = seconds_lost(*situation), situation
        shortest = min(lost.values()) * (1 + 1e-9)  # a tie up to rounding
        best.append(next(way for way in SHORT if lost.get(way, inf) <= shortest))
        gpus = cluster.nodes * cluster.per_node
        computes = 6 * model.parameters * batch * model.sequence / gpus / cluster.flops
        cells = (f"{lost[way]:>8.3f}" if way in lost else f"{'-':>8}" for way in SHORT)
        lines.append(f"({letter}) {name:<30} {computes:>7.2f} s {' '.join(cells)}")
    lines += [f"best in ({letter}): {way}" for letter, way in zip(LETTERS, best, strict=False)]
    return "\n".join(lines), best


def sent_by(hidden, sequence, N, experts_per_token=2):
    """{a way to distribute a step over N devices: (bytes that a device sends once in a step, bytes
    that it sends for each sequence of the step)}, for one layer and in 16 bits.

    The layer is dense and has 12 h^2 parameters, keys and values have full width, and a micro-batch
    is one sequence. If devices have sequences of their own, each has 1/N of them. The row of the
    pipeline is for a boundary between two stages instead of a layer, and that of the experts is for
    an MoE layer in which each token visits `experts_per_token` experts.
    """
    weights, activation = 2 * 12 * hidden**2, 2 * sequence * hidden
    ring, half = COST["ring"].sent, COST["all_gather"].sent
    routed = half(experts_per_token * activation, N)
    return {
        "data: gradients": (ring(weights, N), 0),
        "sharded: 2 all-gathers, 1 reduce-scatter": (0, 3 * half(weights, N) / N),
        "tensor: 4 all-reduces of an activation": (0, 4 * ring(activation, N)),
        "context: keys and values; weights' gradients": (
            ring(weights, N), 3 * half(2 * activation, N)),
        "pipeline: activation and gradient, at a cut": (0, 2 * activation),
        f"expert: 4 all-to-alls of {experts_per_token} activations": (0, 4 * routed / N),
    }  # fmt: skip


def table_of_bytes(hidden, sequence, N, sequences):
    """`sent_by` as a table, with a column for each of `sequences`, the numbers per step."""
    head = f"{'sent by a device per step, for one layer':<45}"
    lines = [head + "".join(f" {f'{B} sequences':>15}" for B in sequences)]
    for way, (once, each) in sent_by(hidden, sequence, N).items():
        cells = (f"{(once + B * each) / 1e6:,.0f} MB" for B in sequences)
        lines.append(f"{way:<45}" + "".join(f" {cell:>15}" for cell in cells))
    return "\n".join(lines)


def waits(seconds_lost, job, tokens):
    """A text that says how long a step of `job`, (model, cluster, sequences in a step), waits with
    each strategy, and how many days training on `tokens` tokens then takes; the shortest wait comes
    first."""
    model, cluster, batch = job
    gpus = cluster.nodes * cluster.per_node
    computes = 6 * model.parameters * batch * model.sequence / gpus / cluster.flops
    steps = tokens / (batch * model.sequence)
    days = lambda seconds: f"{steps * (computes + seconds) / 86_400:5.1f} days"
    lines = [f"a step      computes {computes:.2f} s, which makes {days(0).strip()}, and waits"]
    for way, seconds in sorted(seconds_lost(*job).items(), key=lambda item: item[1]):
        lines.append(f"{seconds:>11.2f} s with {way:<32} {days(seconds)}")
    return "\n".join(lines)
