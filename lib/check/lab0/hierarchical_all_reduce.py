"""Lab 0, section 7: hierarchical_all_reduce(tensor, inside, across), in place; few elements cross
between nodes."""

from dataclasses import replace
from math import ceil

import torch
import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import WORLD, Case, part, seen, sizes_and_dtypes, total
from lib.check.claims import claim, kept, values
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import in_place_sum
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.traffic import sent
from lib.collectives.hierarchical import hierarchical_all_reduce

F32, F64 = torch.float32, torch.float64
# name -> (M nodes, R ranks in each)
LAYOUTS = {
    "2 nodes of 2": (2, 2), "2 nodes of 4": (2, 4), "4 nodes of 2": (4, 2), "1 node of 4": (1, 4),
    "4 nodes of 1": (4, 1),
}  # fmt: skip


def _cases():
    for layout, (M, R) in LAYOUTS.items():
        sizes = sizes_and_dtypes(M * R)
        # All dtypes on the first layout; on 8 ranks what N divides, what it does not, and a long
        # one.
        few = [*sizes[:2], (1000, F64)] if M * R == WORLD else [(8, F64)]
        for n, dtype in sizes if (M, R) == (2, 2) else few:
            yield Case(tuple(range(M * R)), n, dtype, layout)
    yield Case(tuple(range(4)), 0, F32, "2 nodes of 2")


CASES = tuple(_cases())
CASES += (replace(CASES[0], again=1),)


def _pairs_of_groups(cases):
    """Each case's (inside, across) groups of this rank: nodes are runs of R ranks."""
    mine = {}
    for layout, (M, R) in LAYOUTS.items():
        inside = [tuple(range(node * R, node * R + R)) for node in range(M)]
        across = [tuple(range(place, M * R, R)) for place in range(R)]
        made = [[dist.new_group(members) for members in kind] for kind in (inside, across)]
        rank = dist.get_rank()
        if rank < M * R:
            mine[layout] = (made[0][rank // R], made[1][rank % R])
    return {case: mine.get(case.what) for case in cases}


CALLS = Calls(
    CASES,
    give=lambda case, rank: {"tensor": part(rank, case.n, case.dtype)},
    want=lambda case, rank: total(case.world_size, case.n, case.dtype),
    into="tensor",
    groups=_pairs_of_groups,
)


def _crossing(run, case):
    """(elements that each rank sends to other nodes, elements that all ranks send
    inside their nodes)"""
    R = LAYOUTS[case.what][1]
    across, inside = [0] * case.world_size, 0
    for rank, mine in enumerate(sent(run, case)):
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
            text = (
                f"{case.name}: {sum(across)} elements crossed between nodes, expected 2(M-1)n = "
                f"{facts['expected']}"
            )
            return Problem("crossing", f"{text}\nBy node: {by_node}, M = {M}", facts)
        share = 2 * (M - 1) * n // M
        if case.divides and by_node != [share] * M:
            node = next(i for i, got in enumerate(by_node) if got != share)
            text = (
                f"{case.name}: node {node} sent {by_node[node]} elements to other nodes, expected "
                f"{share}"
            )
            return Problem("one node", f"{text}, 2(M-1)/M n\nBy node: {by_node}", facts)
    return None


def _shared(runs):
    for run, case, _ in seen(runs, CASES):
        (M, R), n = LAYOUTS[case.what], case.n
        across, inside = _crossing(run, case)
        most, all_inside = 2 * (M - 1) * ceil(ceil(n / R) / M), 2 * M * (R - 1) * n
        if max(across) > most:
            rank = across.index(max(across))
            text = (
                f"{case.name}: {case.rank(rank)} sent {max(across)} elements to other nodes, "
                f"expected at most {most}"
            )
            return Problem("one rank", f"{text}\nBy rank: {across}", {"case": case})
        if inside != all_inside:
            text = (
                f"{case.name}: {inside} elements were sent inside the nodes, expected "
                f"{all_inside}, 2M(R-1)n"
            )
            return Problem("inside", text, {"case": case})
    return None


def _partly(fits):
    """Is it about a sum without some ranks? Then fits(the ranks that are in it, those of
    the rank's own node)."""

    def about(p):
        if p.kind != "value" or not p.fact("absent") or p.fact("own"):
            return False
        case, R = p.facts["case"], LAYOUTS[p.facts["case"].what][1]
        node = p.facts["rank"] // R
        present = [r for r in range(case.world_size) if r not in p.facts["absent"]]
        return fits(present, list(range(node * R, node * R + R)))

    return about


def _whole(p):
    return (
        p.kind == "crossing"
        and p.facts["sent"] == p.facts["expected"] * LAYOUTS[p.facts["case"].what][1]
    )


def _swapped(p):
    return (
        _whole(p)
        and p.facts["inside"] == 2 * (LAYOUTS[p.facts["case"].what][1] - 1) * p.facts["case"].n
    )


EXERCISE = Exercise(
    name="hierarchical_all_reduce", reference=hierarchical_all_reduce, measure=CALLS,
    worlds=(WORLD,), bonus=True,
    may_call=(*s.P2P, "ring.ring_reduce_scatter", "ring.ring_all_reduce", "ring.ring_all_gather"),
    leaves_out=BUILT | IN_PLACE,
    claims=(
        claim("sum on every rank", 6,
              "nodes x ranks 2x2, 2x4, 4x2, 1x4, 4x1; sizes 0 to 1000; float32, float64, int64",
              values(CALLS, in_place_sum), kept(CASES)),
        claim("elements between nodes", 4, "2(M-1)/M n from each of M nodes, 2(M-1)n in all",
              _between_nodes),
        claim("every rank does its share", 2,
              "2M(R-1)n inside M nodes of R; across, a chunk per rank", _shared),
    ),
    hints=(
        s.BUILT_IN,
        Hint("outside of both groups", s.whose_ranks,
             "a rank talks to ranks that are not in these nodes. Every call needs a group: "
             "`inside` or `across`, never none."),
        s.NARROW, s.IN_PLACE, s.DIVIDED,
        Hint("counted twice", s.either(s.fact("doubled"), s.fact("factor")),
             "after step 1 and 2 the chunk is finished. The last step only copies chunks, it adds "
             "nothing."),
        Hint("the nodes are not joined", _partly(lambda present, node: present == node),
             "this is the sum of the rank's own node. Step 2 sums the chunk over the nodes: "
             "all-reduce it on `across`, and use its result."),
        Hint("one place of every node", _partly(lambda present, node: True),
             "the sum holds some ranks of every node, as it does when the sum inside the node is "
             "missing or lost. Step 1: reduce-scatter on `inside`."),
        s.nothing_there(CASES), s.remainder_hint(CASES),
        Hint("the last step is missing", s.both(s.fact("own"), s.fact("finished")),
             "each rank has its own chunk finished, and the others' not. Step 3: all-gather on "
             "`inside`."),
        s.NOTHING_ADDED,
        Hint("gathered over the wrong group",
             s.either(s.kind("value", "mismatch"), s.both(s.kind("raised"), s.refused("shape"))),
             "the ranks of `inside` hold the different chunks, those of `across` all hold the same "
             "one. Scatter and gather on `inside`."),
        s.NOT_PAIRED,
        Hint("the two levels are swapped", _swapped,
             "you scatter and gather on `across`, the slow links. First reduce-scatter on "
             "`inside`; then only a chunk of n/R has to cross."),
        Hint("gathered and added across", s.both(_whole,
            lambda p: LAYOUTS[p.facts["case"].what][0] > 2),
             "each rank fetches the chunks of all other nodes and adds them: M-1 chunks come to "
             "every rank. An all-reduce on `across` sends less than two, whatever M is."),
        Hint("the whole tensor crosses", _whole,
             "every rank sends all n elements to the other nodes. Reduce-scatter inside first: "
             "then each rank sums only its chunk, n/R elements, on `across`."),
        Hint("one rank carries it all", s.kind("one rank", "one node"),
             "one rank does what its node could share: the sums are right, but only one link of "
             "each node works. After reduce-scatter every rank has a chunk to take across."),
        s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
