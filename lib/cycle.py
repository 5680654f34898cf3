"""A cycle of ranks that wait for each other: none of them can move. Plain Python, for the ledger
and for the plots."""


def find_cycle(edges):
    """The ranks of one cycle in the directed edges, smallest first, or [] if there is none.

    edges: (rank, a rank that it waits for), in any order. The shortest cycle through the smallest
    rank that is the smallest of one; time: ranks times edges.
    """
    after = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
    for start in sorted(after):
        paths, seen = [[start]], {start}
        for path in paths:  # breadth first: it grows while we go through it
            for b in after.get(path[-1], []):
                if b == start:
                    return path
                if b > start and b not in seen:
                    seen.add(b)
                    paths.append([*path, b])
    return []
