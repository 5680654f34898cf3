"""A layered drawing of a graph without circles: who stands where, so that few arrows cross
(Sugiyama et al. 1981).

1. rows    a node stands above all that it points at; with more arrows to it than from it, as high
           as they allow
2. bends   an arrow that passes rows has a place in each of them, so that it runs between the nodes
3. order   of a row: by the mean place of the neighbours, then neighbours exchanged; the fewest
           crossings stay
4. places  as near to the mean of the neighbours as the order and the widths allow
"""

import functools
import itertools

SWEEPS = 60  # down and up through the rows

Graph = dict[str, set[str]]  # {node: the nodes that it points at}


def reduced(graph: Graph) -> Graph:
    """The graph without the arrows that only repeat where a longer way leads."""

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
    # from above: what points at it has its row already
    for node in sorted(rows, key=rows.get, reverse=True):
        above = [rows[other] for other in graph if node in graph[other]]
        if len(above) > len(graph[node]):
            rows[node] = min(above) - 1
    return rows


class Layers:
    """A graph, laid out. rows: the nodes of each row from left to right, the lowest row first; x:
    {node: its middle}.

    Bends are nodes, too: (node, other, row). lines: for each arrow [node, bend, ..., other].
    """

    def __init__(self, graph: Graph, widths: dict[str, float], gap: float):
        """widths: of the nodes, and gap: between two in a row, both in the unit of x."""
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
        """Put each row into the order with the fewest crossings that was met."""
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
        """Exchange neighbours in a row as long as that takes crossings away."""
        place, done = self.place(), False
        while not done:
            done = True
            for row in self.rows:
                for i in range(len(row) - 1):
                    a, b = row[i : i + 2]
                    if self.crossed(b, a, place) < self.crossed(a, b, place):
                        row[i : i + 2], place[a], place[b], done = [b, a], i + 1, i, False

    def crossed(self, a, b, place):
        """How many arrows of a cross arrows of b, where a stands left of b."""
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
        """The places nearest to those wanted, by least squares, in which the nodes of a row keep
        order and distance."""
        steps = [(self.width[a] + self.width[b]) / 2 + self.gap for a, b in itertools.pairwise(row)]
        offsets = [0.0, *itertools.accumulate(steps)]
        # of neighbours that touch: each block stands at the mean of what its nodes want
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
