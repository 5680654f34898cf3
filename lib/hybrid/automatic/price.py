"""The price of a plan in seconds: the compute of its operators, and the messages that change the
layouts of weights and of results, forward and backward.

    seconds = sum over operators  3 share (flops / F + touched bytes / M)  forward 1, backward 2
            + sum over weights    home -> as it is used                    a COPY's gradient summed
            + sum over results    gives -> reads, once per layout wanted   both ways: layouts.py

    all-reduce n bytes: 2(N-1)(alpha + n/N beta); all-gather, reduce-scatter: half of it
    (lib.collectives.cost)

N ranks; a rank does F operations and touches M bytes per second; a message takes alpha seconds and
beta per byte.

If several layers read a result in the same layout, it is brought there once. So q, k and v share
one f, as in Megatron-LM. We assume that nothing overlaps, and do not count memory. Alpa's inner
pass leaves out both as well, and also compute: it counts messages only, and never lets two ranks
compute the same matmul.
"""

from typing import NamedTuple

from lib.collectives.cost import COST
from lib.hybrid.automatic.layouts import REPLICATE, both_ways
from lib.hybrid.automatic.strategies import elements, home, strategies

RING = {"all_reduce": "ring"}  # collectives that have another name in COST


class Cluster(NamedTuple):
    """The ranks over which one stage is split. All are equally fast."""

    N: int
    flops: float  # per second and rank, in matmuls
    memory: float  # bytes per second and rank, in all other operators
    alpha: float  # seconds per message
    beta: float  # seconds per byte
    itemsize: int  # bytes per element


class Move(NamedTuple):
    """A change of a tensor's layout. `layouts.both_ways(old, new)` names its collectives."""

    what: str  # "up": the result of up; "up.weight": a weight
    old: object
    new: object
    n: int  # elements of the full tensor


class Plan(NamedTuple):
    """A Strategy for each operator, and what it costs."""

    strategies: dict  # {operator: Strategy}
    seconds: float  # forward and backward
    compute: float  # the part of `seconds` that is not communication
    sent: int  # elements, over all ranks, forward and backward
    moves: list  # [Move, ...] that send something, in the order of the operators

    def __str__(self):
        return "\n".join(
            f"{name:24} {each.name}" for name, each in self.strategies.items() if each.share
        )


def price(operators, chosen, cluster):
    """The Plan with these strategies, {operator: Strategy}, and its price. This is a pure
    function."""
    compute = sum(compute_seconds(op, chosen[op.name], cluster) for op in operators)
    moves = [
        move
        for op in operators
        for move in [*weight_moves(op, chosen), *result_moves(op, operators, chosen)]
    ]
    seconds = compute + sum(move_seconds(move.old, move.new, move.n, cluster) for move in moves)
    sent = sum(move_elements(move.old, move.new, move.n, cluster.N) for move in moves)
    return Plan(
        chosen,
        seconds,
        compute,
        sent,
        [move for move in moves if any(both_ways(move.old, move.new))],
    )


def named(operators, names, cluster, given=REPLICATE, wanted=REPLICATE):
    """The Plan that you write yourself as names = {operator: name of its strategy}. Operators that
    you leave out are replicated.

    Raises ValueError for an unknown operator, or for a strategy that the operator does not have on
    N ranks, and lists the valid ones.
    """
    shapes, found = {op.name: op.shape for op in operators}, {}
    if unknown := sorted(names.keys() - shapes.keys()):
        raise ValueError(
            f"no operator is called {', '.join(unknown)}: there are {', '.join(shapes)}"
        )
    for op in operators:
        ways = {way.name: way for way in strategies(op, shapes, cluster.N, given, wanted)}
        name = names.get(op.name, next(iter(ways)))
        if name not in ways:
            raise ValueError(
                f"{op.name} has no strategy {name} on {cluster.N} ranks: use {', '.join(ways)}"
            )
        found[op.name] = ways[name]
    return price(operators, found, cluster)


def weight_moves(op, chosen):
    """[Move, ...] of an operator's weights, from the layout in which each is stored to the one in
    which it is used."""
    used = chosen[op.name].weights
    return [
        Move(f"{op.name}.{name}", home(layout), layout, elements(op.weights[name]))
        for name, layout in used.items()
    ]


def result_moves(op, operators, chosen):
    """[Move, ...] of an operator's result, one for each layout in which it is read."""
    wanted = dict.fromkeys(
        chosen[other.name].reads for other in operators if op.name in other.inputs
    )
    return [Move(op.name, chosen[op.name].gives, layout, elements(op.shape)) for layout in wanted]


def compute_seconds(op, strategy, cluster):
    """Seconds of an operator on one rank, forward and backward. We count backward as twice forward,
    because a linear layer has one matmul there for the gradient of the input and one for that of
    the weight."""
    forward = op.flops / cluster.flops + op.touched * cluster.itemsize / cluster.memory
    return 3 * strategy.share * forward


def move_seconds(old, new, n, cluster):
    """Seconds to change the layout of n elements in forward, and of their gradient in backward."""
    times = 0.0
    for name, given in _collectives(old, new, n, cluster.N):
        times += COST[RING.get(name, name)].time(
            given * cluster.itemsize, cluster.N, cluster.alpha, cluster.beta
        )
    return times


def move_elements(old, new, n, N):
    """Elements that all ranks together send for this change, forward and backward."""
    return sum(
        COST[RING.get(name, name)].total(given, N) for name, given in _collectives(old, new, n, N)
    )


def _collectives(old, new, n, N):
    """[(name of the collective, n of its formula in COST), ...], forward and backward. n is the
    size of the full tensor, except for an all-to-all, where it is what one rank has."""
    return [(name, n // N if name == "all_to_all" else n) for name in both_ways(old, new) if name]
