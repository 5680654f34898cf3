"""Inner pass: finds the cheapest plan exactly, by dynamic programming (Zheng et al. 2022, section
4, use integer programming instead).

A plan chooses a strategy for each operator, and its price is a sum of two kinds of costs. The
compute c of an operator depends on its own strategy only. The communication e that brings its
result to its readers depends on its strategy and on theirs. So each cost is a small table.

    x --> up --> gelu --> down --> output
    price = c(up) + e(up, gelu) + c(gelu) + e(gelu, down) + ...

We eliminate one operator after the other. To eliminate `gelu`, we add up all tables in which it
appears, and keep the cheapest strategy of gelu for every choice of its neighbours:

    table(up, down) = min over gelu of ( e(up, gelu) + c(gelu) + e(gelu, down) )

We also remember which strategy that was. When no operator is left, we read the plan backwards. On a
chain this is ordinary dynamic programming. A graph with branches has tables of more operators: x
and its readers q, k and v share one of four. We always eliminate the operator with the smallest
table. The order does not change the result, only the work, which is choices ^ (operators in the
largest table), whereas trying every plan would take choices ^ (all operators). (The method is
called variable elimination: Bertele & Brioschi 1972, "Nonserial dynamic programming".)
"""

import itertools

import numpy as np

from lib.hybrid.automatic.layouts import REPLICATE
from lib.hybrid.automatic.price import compute_seconds, move_seconds, price, weight_moves
from lib.hybrid.automatic.strategies import elements, strategies


def choose(operators, cluster, given=REPLICATE, wanted=REPLICATE):
    """The fastest Plan for `operators`, those of a Traced, on a Cluster.

    given, wanted: the layout of the input, and the one that the output must have. If several plans
    are equally fast, it always returns the same one. Raises ValueError if N does not divide the
    input or output on the dim on which it is given or wanted.
    """
    shapes = {op.name: op.shape for op in operators}
    ways = {op.name: strategies(op, shapes, cluster.N, given, wanted) for op in operators}
    sizes = {name: len(found) for name, found in ways.items()}
    best = smallest(sizes, tables(operators, ways, cluster))
    return price(operators, {name: ways[name][i] for name, i in best.items()}, cluster)


def tables(operators, ways, cluster):
    """[(names, array), ...]: the tables whose sum is the price. array[i, j, ...] are the seconds
    for strategy i of operator names[0], strategy j of names[1], and so on."""
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
        cost = {}  # {(gives, reads): seconds}, because there are few pairs and many choices
        for at in itertools.product(*map(range, behind.shape)):
            gives = ways[op.name][at[0]].gives
            for reads in {ways[name][i].reads for name, i in zip(readers, at[1:], strict=True)}:
                if (gives, reads) not in cost:
                    cost[gives, reads] = move_seconds(gives, reads, n, cluster)
                behind[at] += cost[gives, reads]
        found.append((names, behind))
    return found


def smallest(sizes, tables):
    """{name: choice}, the choices with the smallest sum of all tables. sizes: {name: how many
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
        # table(neighbours) = min over name of the sum of all tables in which it appears
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
    """The table's array with one axis for each of `names`; the axis has size 1 if the name does not
    appear in the table, so that arrays can be added."""
    known, array = table
    array = array.transpose(sorted(range(len(known)), key=lambda axis: names.index(known[axis])))
    return array.reshape([sizes[name] if name in known else 1 for name in names])
