"""Lab 0, section 7: hierarchical_all_reduce(tensor, inside, across), in place; few elements cross
between nodes."""

import torch
import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.cases import WORLD, Case, part, seen
from lib.check.exercise import Exercise, Problem
from lib.check.explain import who
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, groups_and_controls
from lib.check.traffic import sent
from lib.collectives.hierarchical import hierarchical_all_reduce

# name -> (M nodes, R ranks in each)
TALL = "4 nodes of 2"
LAYOUTS = {
    "2 nodes of 2": (2, 2), "2 nodes of 4": (2, 4), TALL: (4, 2), "1 node of 4": (1, 4),
    "4 nodes of 1": (4, 1),
}  # fmt: skip
SIZES = {"2 nodes of 2": (8, 7, 1, 1000, 0), "2 nodes of 4": (16, 7), TALL: (16, 7)}
CASES = tuple(
    Case(tuple(range(M * R)), n, torch.int64 if n == 7 else torch.float64, layout)
    for layout, (M, R) in LAYOUTS.items()
    for n in SIZES.get(layout, (8,))
)


def pairs_of_groups(cases):
    """{case: ((inside, across) of this rank, two more groups of the case's ranks)}; nodes are runs
    of R ranks."""
    mine, rank = {}, dist.get_rank()
    for layout, (M, R) in LAYOUTS.items():
        inside = [dist.new_group(range(node * R, node * R + R)) for node in range(M)]
        across = [dist.new_group(range(place, M * R, R)) for place in range(R)]
        if rank < M * R:
            mine[layout] = inside[rank // R], across[rank % R]
    # the word of a probe may be behind the layout
    of = lambda case: mine.get(case.what.partition(",")[0])
    return {
        case: (of(case), *controls) for case, (_, *controls) in groups_and_controls(cases).items()
    }


def script(make, case, groups, show):
    tensor = show.give("tensor", part(show.place, case.n, case.dtype))
    show.run(make, tensor, *groups)
    by.result(show, "the sum", tensor)


def crossing(run, case):
    """(elements that each rank sends to other nodes, elements that all ranks send inside their
    nodes)"""
    R = LAYOUTS[case.what][1]
    across, inside = [0] * case.world_size, 0
    for rank, mine in enumerate(sent(run, case)):
        for to, numel in mine:
            inside += numel if to // R == rank // R else 0
            across[rank] += numel if to // R != rank // R else 0
    return across, inside


def between_nodes(runs):
    """A judge: 2(M-1)n elements in all."""
    for run, case, _ in seen(runs, CASES):
        M, R = LAYOUTS[case.what]
        across, inside = crossing(run, case)
        got, want = sum(across), 2 * (M - 1) * case.n
        if got != want:
            text = (
                f"{case.name}: {got} elements crossed between nodes, expected 2(M-1)n = {want}\n"
                f"By rank: {across}; {inside} more inside the nodes"
            )
            return Problem("crossing", text, {"case": case, "whole": got == want * R})
    return None


def shared(runs):
    """A judge: ranks of one place send across what an all-reduce of their chunk takes, however
    they share it, and inside is sent what it takes."""
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
            return Problem("inside", text, {"case": case})
    return None


def alike(of):
    """Is it a sum without some ranks, and of(rank, R) the same for those that are in it?"""

    def fits(p):
        absent = p.fact("absent")
        if not absent or p.fact("own"):
            return False
        case, R = p.facts["case"], LAYOUTS[p.facts["case"].what.partition(",")[0]][1]
        return len({of(r, R) for r in range(case.world_size) if r not in absent}) == 1

    return fits


MEASURE = SideBySide(
    script, hierarchical_all_reduce, CASES, groups=pairs_of_groups, excused=by.IN_PLACE
)
EXERCISE = Exercise(
    name="hierarchical_all_reduce", reference=hierarchical_all_reduce, measure=MEASURE,
    worlds=(WORLD,), bonus=True,
    may_call=(*s.P2P, "ring.ring_reduce_scatter", "ring.ring_all_reduce", "ring.ring_all_gather"),
    leaves_out=BUILT | IN_PLACE,
    claims=claims(
        MEASURE,
        ("sum on every rank", 6,
         "nodes x ranks 2x2, 2x4, 4x2, 1x4, 4x1; sizes 0 to 1000; float32, float64, int64",
         by.told(MEASURE, "the sum", by.sum_of_chunks), "the sum", *by.PROBES),
        ("elements between nodes", 4, "2(M-1)n in all", between_nodes),
        ("every rank does its share", 2, "2M(R-1)n inside M nodes of R; across, its own chunk",
         shared),
    ),
    hints=by.hints_of(
        "hierarchical_all_reduce", CASES, "chunks",
        first={"outside of both groups": s.whose_ranks},
        not_in_place=s.fact("unchanged"),
        divided_by_N=s.fact("divided"),
        counted_twice=s.either(s.fact("doubled"), s.fact("factor")),
        the_nodes_are_not_joined=alike(lambda rank, R: rank // R),
        one_place_of_every_node=alike(lambda rank, R: rank % R),
        the_last_step_is_missing=s.both(s.fact("own"), s.fact("finished")),
        gathered_over_the_wrong_group=s.either(
            s.kind("mismatch"), s.both(s.kind("raised"), s.refused("shape"))
        ),
        gathered_and_added_across=s.in_case(CASES, lambda case: case.what == TALL, "crossing"),
        the_whole_tensor_crosses=s.kind("crossing", whole=True),
        one_rank_carries_it_all=s.kind("one rank"),
        all_reduced_inside=s.kind("inside"),
    ),
)  # fmt: skip
