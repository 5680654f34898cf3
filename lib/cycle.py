"""Finds a deadlock: a cycle of ranks that wait for each other, so that none of them can continue.
It is plain Python, because the ledger and the plots both use it."""


def find_cycle(edges):
    """The ranks of one cycle in the directed edges, or [] if there is none. It begins with the
    smallest rank and follows the edges.

    edges: (rank, a rank that it waits for), in any order. If there are several cycles, we return
    one with the smallest first rank, and among those a shortest one. The search takes at most
    (number of ranks) x (number of edges) steps.
    """
    after = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
    for start in sorted(after):
        paths, seen = [[start]], {start}
        for path in paths:  # breadth-first search: `paths` grows during the loop
            for b in after.get(path[-1], []):
                if b == start:
                    return path
                if b > start and b not in seen:
                    seen.add(b)
                    paths.append([*path, b])
    return []
