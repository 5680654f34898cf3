"""Lab 0, section 7: hierarchical_all_reduce(tensor, inside, across), in place; few elements cross
between nodes."""

from math import ceil

import torch
import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.cases import WORLD, Case, part, seen
from lib.check.exercise import Exercise, Problem
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, groups_and_controls
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
    by.result(show, "the sum", tensor, show.run(make, tensor, *groups))


def explain(wrong):
    """As of any sum that is to be in place. It may also be divided by the number of one group."""
    text, facts = by.in_place_sum(wrong)
    for size in sorted({*LAYOUTS[wrong.case.what]} - {1, wrong.case.world_size}):
        if torch.equal(wrong.got * size, wrong.want) and len(wrong.got):
            line = text.partition("\n")[0]
            return f"{line}\nIt is expected / {size}: a sum is not divided.", facts
    return text, facts


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
    """A judge: 2(M-1)n elements in all and, where N divides n, as many from each node."""
    for run, case, _ in seen(runs, CASES):
        (M, R), n = LAYOUTS[case.what], case.n
        across, inside = crossing(run, case)
        by_node = [sum(across[node * R : node * R + R]) for node in range(M)]
        facts = {"case": case, "sent": sum(across), "expected": 2 * (M - 1) * n, "inside": inside}
        if sum(across) != facts["expected"]:
            text = (
                f"{case.name}: {sum(across)} elements crossed between nodes, expected 2(M-1)n = "
                f"{facts['expected']}\nBy node: {by_node}, M = {M}"
            )
            return Problem("crossing", text, facts)
        share = 2 * (M - 1) * n // M
        if case.divides and by_node != [share] * M:
            node = next(i for i, got in enumerate(by_node) if got != share)
            text = (
                f"{case.name}: node {node} sent {by_node[node]} elements to other nodes, expected "
                f"{share}, 2(M-1)/M n\nBy node: {by_node}"
            )
            return Problem("one node", text, facts)
    return None


def shared(runs):
    """A judge: no rank sends more across than its chunk needs, and inside is sent what it takes."""
    for run, case, _ in seen(runs, CASES):
        (M, R), n = LAYOUTS[case.what], case.n
        across, inside = crossing(run, case)
        most, all_inside = 2 * (M - 1) * ceil(ceil(n / R) / M), 2 * M * (R - 1) * n
        if max(across) > most:
            text = (
                f"{case.name}: {case.rank(across.index(max(across)))} sent {max(across)} elements "
                f"to other nodes, expected at most {most}\nBy rank: {across}"
            )
            return Problem("one rank", text, {"case": case})
        if inside != all_inside:
            text = (
                f"{case.name}: {inside} elements were sent inside the nodes, expected "
                f"{all_inside}, 2M(R-1)n"
            )
            return Problem("inside", text, {"case": case})
    return None


def of_layout(fits):
    """Fits if it is told of a case, and fits(the Problem, M, R)."""
    return lambda p: (
        (layout := LAYOUTS.get(getattr(p.fact("case"), "what", ""))) and fits(p, *layout)
    )


def one_node_only(p, M, R):
    """Does the sum hold the ranks of the rank's own node, and no others?"""
    present = {*range(M * R)} - {*p.fact("absent", ())}
    node = p.fact("rank", 0) // R
    return p.fact("absent") and not p.fact("own") and present == {*range(node * R, node * R + R)}


def all_of_it(p, M, R):
    return p.kind == "crossing" and p.facts["sent"] == p.facts["expected"] * R


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
         by.told(MEASURE, "the sum", explain), "the sum", *by.PROBES),
        ("elements between nodes", 4, "2(M-1)/M n from each of M nodes, 2(M-1)n in all",
         between_nodes),
        ("every rank does its share", 2, "2M(R-1)n inside M nodes of R; across, a chunk per rank",
         shared),
    ),
    hints=by.hints_of(
        "hierarchical_all_reduce", CASES, "chunks",
        first={"outside of both groups": s.whose_ranks},
        not_in_place=s.fact("in_place", False),
        divided_by_N=by.divided,
        counted_twice=s.either(s.fact("doubled"), s.fact("factor")),
        the_nodes_are_not_joined=of_layout(one_node_only),
        one_place_of_every_node=s.both(s.fact("absent"), lambda p: not p.fact("own")),
        the_last_step_is_missing=s.both(s.fact("own"), s.fact("finished")),
        unsummed=s.NOTHING_ADDED.fits,
        gathered_over_the_wrong_group=s.either(
            s.kind("mismatch"), s.both(s.kind("raised"), s.refused("shape"))
        ),
        the_two_levels_are_swapped=of_layout(
            lambda p, M, R: all_of_it(p, M, R)
            and p.facts["inside"] == 2 * (R - 1) * p.facts["case"].n
        ),
        gathered_and_added_across=of_layout(lambda p, M, R: M > 2 and all_of_it(p, M, R)),
        the_whole_tensor_crosses=of_layout(all_of_it),
        one_rank_carries_it_all=s.kind("one rank", "one node"),
    ),
)  # fmt: skip
