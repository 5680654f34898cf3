"""Lab 0, section 7, bonus: hierarchical_all_reduce(tensor, inside, across), an in-place all-reduce
that sends few elements between nodes."""

import torch
import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.cases import WORLD, Case, part, seen
from lib.check.exercise import Problem
from lib.check.explain import who
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.side_by_side import SideBySide
from lib.check.traffic import sent
from lib.collectives.hierarchical import hierarchical_all_reduce

# name -> (M nodes, R ranks in each)
LAYOUTS = {
    "2 nodes of 2": (2, 2), "2 nodes of 4": (2, 4), "4 nodes of 2": (4, 2), "1 node of 4": (1, 4),
    "4 nodes of 1": (4, 1),
}  # fmt: skip
SIZES = {"2 nodes of 2": (8, 7, 1, 1000, 0), "2 nodes of 4": (16, 7), "4 nodes of 2": (16, 7)}
CASES = tuple(
    Case(tuple(range(M * R)), n, torch.int64 if n == 7 else torch.float64, layout)
    for layout, (M, R) in LAYOUTS.items()
    for n in SIZES.get(layout, (8,))
)


def pairs_of_groups(cases):
    """{case: (inside, across) of this rank}. A node is R consecutive ranks."""
    mine, rank = {}, dist.get_rank()
    for layout, (M, R) in LAYOUTS.items():
        inside = [dist.new_group(range(node * R, node * R + R)) for node in range(M)]
        across = [dist.new_group(range(place, M * R, R)) for place in range(R)]
        if rank < M * R:
            mine[layout] = inside[rank // R], across[rank % R]
    # a variant of probes.py appends its name to that of the layout
    of = lambda case: mine.get(case.what.partition(",")[0])
    return {case: of(case) for case in cases}


def script(make, case, groups, show):
    tensor = show.give("tensor", part(show.place, case.n, case.dtype))
    show.run(make, tensor, *groups)
    by.result(show, "the sum", tensor)


def explain(case, rank, got, want):
    """For `told`: explains a wrong sum. facts: those of a full sum; "of its node", if exactly the
    ranks of other nodes are absent."""
    text, facts = by.sum_of_chunks(case, rank, got, want)
    R = LAYOUTS[case.what.partition(",")[0]][1]
    others = [r for r in range(case.world_size) if r // R != rank // R]
    return text, facts | {"of its node": facts["absent"] == others != []}


def crossing(run, case):
    """([elements that rank 0, 1, ... sends to other nodes], elements that all ranks together send
    inside their nodes)"""
    R, logs = LAYOUTS[case.what][1], sent(run, case)
    across = [sum(n for to, n in logs[r] if to // R != r // R) for r in range(case.world_size)]
    return across, sum(n for mine in logs for _, n in mine) - sum(across)


def between_nodes(runs):
    """A judge: 2(M-1)n elements are sent between nodes in total."""
    for run, case, _ in seen(runs, CASES):
        M, R = LAYOUTS[case.what]
        across, inside = crossing(run, case)
        got, want = sum(across), 2 * (M - 1) * case.n
        if got != want:
            text = (
                f"{case.name}: {got} elements crossed between nodes, expected 2(M-1)n = {want}\n"
                f"By rank: {across}; {inside} more inside the nodes"
            )
            facts = {"case": case, "across": True, "whole": got == want * R}
            return Problem("elements", text, facts)
    return None


def shared(runs):
    """A judge: together, the ranks at the same position in their nodes send to other nodes what an
    all-reduce of their chunk takes, 2(M-1) times its elements. Inside the nodes, 2M(R-1)n elements
    are sent."""
    for run, case, _ in seen(runs, CASES):
        (M, R), n = LAYOUTS[case.what], case.n
        across, inside = crossing(run, case)
        for place, chunk in enumerate(torch.empty(n).tensor_split(R)):
            got, want = sum(across[place::R]), 2 * (M - 1) * len(chunk)
            if got != want:
                ranks = who(range(place, case.world_size, R))
                text = (
                    f"{case.name}: {ranks} sent {got} elements to other nodes, expected {want} for "
                    f"chunk {place}\nBy rank: {across}"
                )
                return Problem("one rank", text, {"case": case})
        if inside != 2 * M * (R - 1) * n:
            text = (
                f"{case.name}: {inside} elements were sent inside the nodes, expected "
                f"2M(R-1)n = {2 * M * (R - 1) * n}"
            )
            return Problem("elements", text, {"case": case, "inside": True})
    return None


MEASURE = SideBySide(
    script, hierarchical_all_reduce, CASES, groups=pairs_of_groups, excused=by.IN_PLACE
)
EXERCISE = MEASURE.exercise(
    ("sum on every rank", 6,
     "nodes x ranks 2x2, 2x4, 4x2, 1x4, 4x1; sizes 0 to 1000; float32, float64, int64",
     by.told(MEASURE, "the sum", explain), "the sum", *by.PROBES),
    ("elements between nodes", 4, "2(M-1)n in all", between_nodes),
    ("every rank does its share", 2, "2M(R-1)n inside M nodes of R; across, its own chunk",
     shared),
    hints=by.hints_of("nodes", "messages", "chunks", "hierarchical_all_reduce"), worlds=(WORLD,),
    bonus=True,
    may_call=(*s.P2P, "ring.ring_reduce_scatter", "ring.ring_all_reduce", "ring.ring_all_gather"),
    leaves_out=BUILT | IN_PLACE,
)  # fmt: skip
