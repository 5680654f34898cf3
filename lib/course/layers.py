"""Lays out an acyclic graph in rows, so that all arrows point down and few of them cross (Sugiyama
et al. 1981). There are four steps:

1. rows    Each node is above all nodes that it points at. A node with more incoming than outgoing
           arrows is placed as high as the incoming ones allow.
2. bends   An arrow that passes through other rows gets a position in each of them, called a bend,
           so that it runs between the nodes there.
3. order   Each row is sorted by the mean position of its nodes' neighbours. Then adjacent nodes are
           exchanged, and the order with the fewest crossings is kept.
4. places  Each node is as close to the mean of its neighbours as the order and the widths allow.
"""

import functools
import itertools

SWEEPS = 60  # passes through the rows, down and up in turn

Graph = dict[str, set[str]]  # {node: the nodes that it points at}


def reduced(graph: Graph) -> Graph:
    """The transitive reduction of the graph, which has no arrow between two nodes that a longer
    path also connects."""

    @functools.cache
    def reached(node):
        return set().union(*({other} | reached(other) for other in graph[node]))

    return {
        node: {other for other in others if not any(other in reached(way) for way in others)}
        for node, others in graph.items()
    }


def rows_of(graph: Graph) -> dict[str, int]:
    """{node: its row, from 0 at the bottom}."""

    @functools.cache
    def lowest(node):
        return 1 + max(map(lowest, graph[node]), default=-1)

    rows = {node: lowest(node) for node in graph}
    # from the top down, so that all nodes that point at this one have their rows already
    for node in sorted(rows, key=rows.get, reverse=True):
        above = [rows[other] for other in graph if node in graph[other]]
        if len(above) > len(graph[node]):
            rows[node] = min(above) - 1
    return rows


class Layers:
    """The layout of a graph. rows: the nodes of each row from left to right, the lowest row first.
    x: {node: the x of its middle}. lines: [node, bend, ..., other] for each arrow.

    Bends count as nodes. Each is (node, other, row).
    """

    def __init__(self, graph: Graph, widths: dict[str, float], gap: float):
        """widths: {node: its width}. gap: the space between two nodes in a row. Both are in the
        unit of x."""
        row_of = rows_of(graph)
        self.rows: list[list] = [[] for _ in range(1 + max(row_of.values()))]
        for node in sorted(graph):
            self.rows[row_of[node]].append(node)
        self.lines = []
        for high, low in sorted((node, other) for node in graph for other in graph[node]):
            bends = [(high, low, row) for row in range(row_of[high] - 1, row_of[low], -1)]
            for bend in bends:
                self.rows[bend[-1]].append(bend)
            self.lines.append([high, *bends, low])
        self.gap, self.width = (
            gap,
            {node: widths.get(node, 0.0) for row in self.rows for node in row},
        )
        steps = [step for line in self.lines for step in itertools.pairwise(line)]
        self.below = {node: [low for high, low in steps if high == node] for node in self.width}
        self.above = {node: [high for high, low in steps if low == node] for node in self.width}
        self.order()
        self.x = self.places()

    def order(self):
        """Order the nodes of each row. Of all orders that are tried, the one with the fewest
        crossings is kept."""
        best = self.crossings(), [list(row) for row in self.rows]
        for sweep in range(SWEEPS):
            upward = sweep % 2
            near = self.below if upward else self.above
            for row in self.rows if upward else self.rows[::-1]:
                share = {node: i / len(r) for r in self.rows for i, node in enumerate(r)}
                row.sort(key=lambda node: mean([share[n] for n in near[node]] or [share[node]]))
            self.exchange()
            best = min(
                best, (self.crossings(), [list(row) for row in self.rows]), key=lambda one: one[0]
            )
        self.rows = best[1]

    def exchange(self):
        """Exchange adjacent nodes of a row as long as this reduces the number of crossings."""
        place, done = self.place(), False
        while not done:
            done = True
            for row in self.rows:
                for i in range(len(row) - 1):
                    a, b = row[i : i + 2]
                    if self.crossed(b, a, place) < self.crossed(a, b, place):
                        row[i : i + 2], place[a], place[b], done = [b, a], i + 1, i, False

    def crossed(self, a, b, place):
        """How often arrows of a cross arrows of b if a is to the left of b."""
        pairs = [
            pair
            for near in (self.below, self.above)
            for pair in itertools.product(near[a], near[b])
        ]
        return sum(place[m] > place[n] for m, n in pairs)

    def crossings(self) -> int:
        """How often arrows cross."""
        place = self.place()
        return (
            sum(
                self.crossed(a, b, place)
                for row in self.rows
                for a, b in itertools.combinations(row, 2)
            )
            // 2
        )

    def place(self):
        return {node: i for row in self.rows for i, node in enumerate(row)}

    def places(self):
        x = dict.fromkeys(self.width, 0.0)
        for sweep in range(SWEEPS):
            for row in self.rows if sweep % 2 else self.rows[::-1]:
                near = [
                    [x[n] for n in self.below[node] + self.above[node]] or [x[node]] for node in row
                ]
                x |= zip(row, self.apart(row, map(mean, near)), strict=True)
        return x

    def apart(self, row, wanted):
        """The positions closest to those wanted, by least squares, at which the nodes of a row keep
        their order and do not overlap."""
        steps = [(self.width[a] + self.width[b]) / 2 + self.gap for a, b in itertools.pairwise(row)]
        offsets = [0.0, *itertools.accumulate(steps)]
        # blocks of nodes that touch; a block is placed at the mean of the positions its nodes want
        blocks = []
        for want, offset in zip(wanted, offsets, strict=True):
            blocks.append([want - offset])
            while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
                last = blocks.pop()
                blocks[-1] += last
        return [
            mean(block) + offset for block in blocks for _ in block for offset in [offsets.pop(0)]
        ]


def mean(values):
    return sum(values) / len(values)
