"""Inner pass: the cheapest plan, exactly (Zheng et al. 2022, section 4; there by integer
programming).

A plan's price is a sum of small tables. An operator's compute depends on its own strategy; what it
costs to bring its result to its readers depends on its strategy and on theirs.

    x --> up --> gelu --> down --> output
    price = c(up) + e(up, gelu) + c(gelu) + e(gelu, down) + ...

Operators are removed one by one. To remove `gelu`, add up all tables that know it, and keep for
every choice of its neighbours the best that it can do:

    table(up, down) = min over gelu of ( e(up, gelu) + c(gelu) + e(gelu, down) )

and remember which it was. When none is left, the plan is read backwards. This is dynamic
programming along a chain; a graph with branches gives tables of more operators, q, k and v one of
four. The one with the smallest table goes first. The result does not depend on the order, only the
work: choices ^ (operators in the largest table), where trying every plan takes choices ^ (all
operators). (Variable elimination: Bertele & Brioschi 1972, "Nonserial dynamic programming".)
"""

import itertools

import numpy as np

from lib.hybrid.automatic.layouts import REPLICATE
from lib.hybrid.automatic.price import compute_seconds, move_seconds, price, weight_moves
from lib.hybrid.automatic.strategies import elements, strategies


def choose(operators, cluster, given=REPLICATE, wanted=REPLICATE):
    """The Plan of fewest seconds for `operators`, of a Traced, on a Cluster.

    given, wanted: the layouts in which the input comes and the output must leave. Of equal plans
    any, always the same. Raises ValueError where N does not divide the input or output on a dim
    given or wanted.
    """
    shapes = {op.name: op.shape for op in operators}
    ways = {op.name: strategies(op, shapes, cluster.N, given, wanted) for op in operators}
    sizes = {name: len(found) for name, found in ways.items()}
    best = smallest(sizes, tables(operators, ways, cluster))
    return price(operators, {name: ways[name][i] for name, i in best.items()}, cluster)


def tables(operators, ways, cluster):
    """[(names, array)]: the price's parts; array[i, j, ...] is for strategy i of names[0], j of
    names[1], and so on."""
    found = []
    for op in operators:
        own = [
            compute_seconds(op, way, cluster)
            + sum(
                move_seconds(move.old, move.new, move.n, cluster)
                for move in weight_moves(op, {op.name: way})
            )
            for way in ways[op.name]
        ]
        found.append(((op.name,), np.array(own)))
        readers = [other.name for other in operators if op.name in other.inputs]
        if not readers:
            continue
        names, n = (op.name, *readers), elements(op.shape)
        behind = np.zeros([len(ways[name]) for name in names])
        cost = {}  # many choices, few pairs of layouts
        for at in itertools.product(*map(range, behind.shape)):
            gives = ways[op.name][at[0]].gives
            for reads in {ways[name][i].reads for name, i in zip(readers, at[1:], strict=True)}:
                if (gives, reads) not in cost:
                    cost[gives, reads] = move_seconds(gives, reads, n, cluster)
                behind[at] += cost[gives, reads]
        found.append((names, behind))
    return found


def smallest(sizes, tables):
    """{name: choice} that makes the sum of all tables smallest. sizes: {name: how many
    choices it has}."""
    tables, removed, left = list(tables), [], list(sizes)

    def around(name):
        return dict.fromkeys(
            each for names, _ in tables if name in names for each in names if each != name
        )

    while left:
        name = min(
            left, key=lambda each: np.prod([sizes[other] for other in around(each)]) * sizes[each]
        )
        names = (name, *around(name))
        # table(neighbours) = min over name of the sum of all tables that know it
        total = sum(_spread(table, names, sizes) for table in tables if name in table[0])
        removed.append((name, names[1:], np.argmin(total, axis=0)))
        tables = [table for table in tables if name not in table[0]] + [
            (names[1:], np.min(total, axis=0))
        ]
        left.remove(name)
    best = {}
    for name, others, choice in reversed(removed):
        best[name] = int(choice[tuple(best[other] for other in others)])
    return {name: best[name] for name in sizes}


def _spread(table, names, sizes):
    """The table's array with one axis for each of `names`, of size 1 where it does
    not know the name."""
    known, array = table
    array = array.transpose(sorted(range(len(known)), key=lambda axis: names.index(known[axis])))
    return array.reshape([sizes[name] if name in known else 1 for name in names])
