"""Lab 0, section 7: hierarchical_all_reduce(tensor, inside, across), in place; few elements cross between nodes."""

from math import ceil

import torch
import torch.distributed as dist

from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import SIZES_SAY, WORLD, Case, seen, sizes_and_dtypes
from lib.check.lab0.in_place import DIVIDED, IN_PLACE, NOTHING_ADDED, measured, sums, value
from lib.collectives import hierarchical

LAYOUTS = {"2 nodes of 2": (2, 2), "2 nodes of 4": (2, 4), "4 nodes of 2": (4, 2)}  # name -> (M nodes, R ranks in each)
CASES = [
    Case(tuple(range(M * R)), n, dtype, layout)
    for layout, (M, R) in LAYOUTS.items()
    # All dtypes on the first layout; on 8 ranks what N divides, what it does not, and a long one.
    for n, dtype in (sizes_and_dtypes(M * R) if M * R == 4 else sizes_and_dtypes(M * R)[:2] + [(1000, torch.float64)])
]


def _pairs_of_groups(cases):
    """Each case's (inside, across) groups of this rank: nodes are runs of R ranks."""
    mine = {}
    for layout, (M, R) in LAYOUTS.items():
        inside = [tuple(range(node * R, node * R + R)) for node in range(M)]
        across = [tuple(range(place, M * R, R)) for place in range(R)]
        made = {members: dist.new_group(members) for members in inside + across}
        mine[layout] = [group for members, group in made.items() if dist.get_rank() in members]
    return {case: mine[case.what] for case in cases}


def _measure(fn):
    return measured(CASES, _pairs_of_groups, lambda tensor, groups: fn(tensor, *groups))


def _crossing(run, case):
    """(elements that each rank sends to other nodes, elements that all ranks send inside their nodes)"""
    R = LAYOUTS[case.what][1]
    across, inside = [0] * case.world_size, 0
    for rank, mine in enumerate(wire.sent(run, case)):
        for to, numel in mine:
            if to // R == rank // R:
                inside += numel
            else:
                across[rank] += numel
    return across, inside


def _between_nodes(runs):
    for run, case, _ in seen(runs, CASES):
        (M, R), n = LAYOUTS[case.what], case.n
        across, inside = _crossing(run, case)
        by_node = [sum(across[node * R : node * R + R]) for node in range(M)]
        facts = {"case": case, "sent": sum(across), "expected": 2 * (M - 1) * n, "inside": inside}
        if sum(across) != facts["expected"]:
            text = f"{case.name}: {sum(across)} elements crossed between nodes, expected 2(M-1)n = {facts['expected']}"
            return Problem("crossing", f"{text}\nBy node: {by_node}, M = {M}", facts)
        share = 2 * (M - 1) * n // M
        if case.divides and by_node != [share] * M:
            node = next(i for i, got in enumerate(by_node) if got != share)
            text = f"{case.name}: node {node} sent {by_node[node]} elements to other nodes, expected {share}"
            return Problem("one node", f"{text}, 2(M-1)/M n\nBy node: {by_node}", facts)
    return None


def _shared(runs):
    for run, case, _ in seen(runs, CASES):
        (M, R), n = LAYOUTS[case.what], case.n
        across, inside = _crossing(run, case)
        most = 2 * (M - 1) * ceil(ceil(n / R) / M)
        if max(across) > most:
            rank = across.index(max(across))
            text = f"{case.name}: {case.rank(rank)} sent {max(across)} elements to other nodes, expected at most {most}"
            return Problem("one rank", f"{text}\nBy rank: {across}", {"case": case})
        if inside != 2 * M * (R - 1) * n:
            text = (
                f"{case.name}: {inside} elements were sent inside the nodes, expected {2 * M * (R - 1) * n}, 2M(R-1)n"
            )
            return Problem("inside", text, {"case": case})
    return None


def _present(p):
    """The ranks that are in the wrong sum, and those of the node of the rank that has it."""
    case, R = p.facts["case"], LAYOUTS[p.facts["case"].what][1]
    node = p.facts["rank"] // R
    return [r for r in range(case.world_size) if r not in p.facts["absent"]], list(range(node * R, node * R + R))


def _whole(p):
    return p.kind == "crossing" and p.facts["sent"] == p.facts["expected"] * LAYOUTS[p.facts["case"].what][1]


def _swapped(p):
    case = p.facts.get("case")
    return _whole(p) and p.facts["inside"] == 2 * (LAYOUTS[case.what][1] - 1) * case.n


EXERCISE = Exercise(
    name="hierarchical_all_reduce",
    reference=hierarchical.hierarchical_all_reduce,
    measure=_measure,
    worlds=(WORLD,),
    may_call=(*mistakes.P2P, "ring.ring_reduce_scatter", "ring.ring_all_reduce", "ring.ring_all_gather"),
    claims=(
        Claim("sum on every rank", 6, f"nodes x ranks 2x2, 2x4, 4x2; {SIZES_SAY}", sums(CASES)),
        Claim("elements between nodes", 4, "2(M-1)/M n from each of M nodes, 2(M-1)n in all", _between_nodes),
        Claim("every rank does its share", 2, "2M(R-1)n inside M nodes of R; across, a chunk per rank", _shared),
    ),
    hints=(
        mistakes.BUILT_IN,
        Hint(
            "outside of both groups",
            mistakes.WHOSE_RANKS.fits,
            "a rank talks to ranks that are not in these nodes. Every call needs a group: `inside` or `across`, "
            "never none.",
        ),
        IN_PLACE,
        DIVIDED,
        Hint(
            "counted twice",
            lambda p: value(p, "doubled") or value(p, "factor"),
            "after step 1 and 2 the chunk is finished. The last step only copies chunks, it adds nothing.",
        ),
        Hint(
            "the nodes are not joined",
            lambda p: value(p, "absent") and not value(p, "own") and _present(p)[0] == _present(p)[1],
            "this is the sum of the rank's own node. Step 2 sums the chunk over the nodes: all-reduce it on "
            "`across`, and use its result.",
        ),
        Hint(
            "one place of every node",
            lambda p: value(p, "absent") and not value(p, "own"),
            "the sum holds some ranks of every node, as it does when the sum inside the node is missing or lost. "
            "Step 1: reduce-scatter on `inside`.",
        ),
        mistakes.REMAINDER,
        Hint(
            "the last step is missing",
            lambda p: value(p, "own") and p.facts["finished"],
            "each rank has its own chunk finished, and the others' not. Step 3: all-gather on `inside`.",
        ),
        NOTHING_ADDED,
        Hint(
            "gathered over the wrong group",
            lambda p: p.kind in ("value", "mismatch", "raised"),
            "the ranks of `inside` hold the different chunks, those of `across` all hold the same one. Scatter and "
            "gather on `inside`.",
        ),
        mistakes.NOT_PAIRED,
        Hint(
            "the two levels are swapped",
            _swapped,
            "you scatter and gather on `across`, the slow links. First reduce-scatter on `inside`; then only a chunk "
            "of n/R has to cross.",
        ),
        Hint(
            "the whole tensor crosses",
            _whole,
            "every rank sends all n elements to the other nodes. Reduce-scatter inside first: then each rank sums only "
            "its chunk, n/R elements, on `across`.",
        ),
        Hint(
            "one rank carries it all",
            lambda p: p.kind in ("one rank", "one node"),
            "one rank does what its node could share: the sums are right, but only one link of each node works. After "
            "reduce-scatter every rank has a chunk to take across.",
        ),
    ),
)
