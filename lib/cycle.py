"""Finds a deadlock: a cycle of ranks that wait for each other, so that none of them can continue.
It is plain Python, because the ledger and the plots both use it."""


def find_cycle(edges):
    """The ranks of one cycle in the directed edges, smallest first, or [] if there is none.

    edges: (rank, a rank that it waits for), in any order. Of several cycles we return one with the
    smallest first rank, and of those the shortest. This takes at most ranks times edges steps.
    """
    after = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
    for start in sorted(after):
        paths, seen = [[start]], {start}
        for path in paths:  # breadth first, as `paths` grows while we go through it
            for b in after.get(path[-1], []):
                if b == start:
                    return path
                if b > start and b not in seen:
                    seen.add(b)
                    paths.append([*path, b])
    return []
