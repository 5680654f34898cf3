"""What a plan costs: its compute, its messages, and the layout changes between operators.

    seconds = sum over operators  3 share (flops / F + touched bytes / M)  forward 1, backward 2
            + sum over weights    home -> as it is used                    a COPY's gradient summed
            + sum over results    gives -> reads, once per layout wanted   both ways: layouts.py

    all-reduce n bytes: 2(N-1)(alpha + n/N beta); all-gather, reduce-scatter: half of it
    (lib.collectives.cost)

N ranks, F operations and M bytes per second of one, alpha seconds per message, beta per byte.

A result that three layers read in one layout is brought there once: q, k and v share one f, as
Megatron-LM's do. Nothing overlaps, and memory is not counted; Alpa's inner pass leaves both out
too, and compute: it counts messages alone, and never lets a matrix product be done twice.
"""

from typing import NamedTuple

from lib.collectives.cost import COST
from lib.hybrid.automatic.layouts import REPLICATE, both_ways
from lib.hybrid.automatic.strategies import elements, home, strategies

RING = {"all_reduce": "ring"}  # the name in COST where it is another


class Cluster(NamedTuple):
    """The ranks that one stage is split over, all alike."""

    N: int
    flops: float  # per second and rank, in matrix products
    memory: float  # bytes per second and rank, in all else
    alpha: float  # seconds per message
    beta: float  # seconds per byte
    itemsize: int  # bytes per element


class Move(NamedTuple):
    """A tensor whose layout is changed to another one; `layouts.both_ways(old,
    new)` says by what."""

    what: str  # "up": the result of up; "up.weight": a weight
    old: object
    new: object
    n: int  # elements of the full tensor


class Plan(NamedTuple):
    """A Strategy for each operator, and what it costs."""

    strategies: dict  # {operator: Strategy}
    seconds: float  # forward and backward
    compute: float  # seconds of it
    sent: int  # elements, over all ranks, forward and backward
    moves: list  # [Move, ...] that send something, in the order of the operators

    def __str__(self):
        return "\n".join(
            f"{name:24} {each.name}" for name, each in self.strategies.items() if each.share
        )


def price(operators, chosen, cluster):
    """The Plan of these strategies, {operator: Strategy}. A pure function."""
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
    """The Plan that a person wrote: {operator: name of its strategy}; operators left out are
    "replicate".

    Raises ValueError for a strategy that the operator does not have on so many ranks; it lists
    those it has.
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
    """[Move, ...] of an operator's weights, from where each lives to how it is used."""
    used = chosen[op.name].weights
    return [
        Move(f"{op.name}.{name}", home(layout), layout, elements(op.weights[name]))
        for name, layout in used.items()
    ]


def result_moves(op, operators, chosen):
    """[Move, ...] of an operator's result: one for each layout that is read."""
    wanted = dict.fromkeys(
        chosen[other.name].reads for other in operators if op.name in other.inputs
    )
    return [Move(op.name, chosen[op.name].gives, layout, elements(op.shape)) for layout in wanted]


def compute_seconds(op, strategy, cluster):
    """Forward and backward of an operator on one rank. Backward has a product for the input and one
    for the weight."""
    forward = op.flops / cluster.flops + op.touched * cluster.itemsize / cluster.memory
    return 3 * strategy.share * forward


def move_seconds(old, new, n, cluster):
    """Forward and backward of bringing n elements from one layout to another."""
    times = 0.0
    for name, given in _collectives(old, new, n, cluster.N):
        times += COST[RING.get(name, name)].time(
            given * cluster.itemsize, cluster.N, cluster.alpha, cluster.beta
        )
    return times


def move_elements(old, new, n, N):
    """Elements that all ranks together send for it, forward and backward."""
    return sum(
        COST[RING.get(name, name)].total(given, N) for name, given in _collectives(old, new, n, N)
    )


def _collectives(old, new, n, N):
    """[(name, the elements that its formula counts in)]: the full tensor; of an all-to-all
    what one rank has."""
    return [(name, n // N if name == "all_to_all" else n) for name in both_ways(old, new) if name]
