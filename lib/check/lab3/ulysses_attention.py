"""Lab 3, section 18: ulysses_attention(q, k, v, layout, group, all_to_all, causal=), where sequence
shards are exchanged for heads, and back. sequence_cut.py has the cases and the script.
"""

from collections import Counter

from lib.check import symptoms as s
from lib.check.cases import seen
from lib.check.causes import another, hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise, Problem
from lib.check.lab3 import groups as g
from lib.check.lab3 import sequence_cut as cut
from lib.check.shown import claims
from lib.check.traffic import beside
from lib.tensor_parallel.ulysses import ulysses_attention


def exchanged(runs):
    """A judge: each rank sends the others as many elements as lib's own, forward and backward, in
    as many messages as it likes; and nothing by what it was not given."""
    section = lambda case, way: (cut.backward(case) if way else case).name
    for run, case, records in seen(runs, cut.PLAIN):
        for rank, record in enumerate(records):
            where, me = f"{case.name}: {case.rank(rank)}", case.members[rank]
            if found := beside(run, case, where, rank, record, ("", cut.BACKWARD), section):
                return found
            got, want = (_leaving(record[key], me) for key in ("calls", "wanted"))
            way = next((way for way in ("forward", cut.BACKWARD) if got[way] != want[way]), None)
            if way:
                text = f"{where} sent the others {got[way]} elements {way}, expected {want[way]}"
                facts = {"case": case, "more": got[way] > want[way]}
                return Problem("elements", text, facts, [case.name, sorted(got.items())])
    return None


def _leaving(calls, me):
    """{"forward": how many elements leave this rank, "backward": ...}"""
    sent = Counter()
    for call in calls:
        to, here = call.counts[: len(call.ranks)], call.ranks.index(me)
        sent[call.phase] += call.elements * (sum(to) - to[here]) // max(1, sum(to))
    return sent


def _fewer(case):
    return case.world_size > case.K


def script(make, case, groups, show):
    return cut.script(make, case, groups, show, all_to_all=show.all_to_all)


MEASURE = cut.measure(
    ulysses_attention,
    script,
    excused={"alive": "each rank has all tokens of some heads, and keeps of them what it likes"},
)
EXERCISE = Exercise(
    name="ulysses_attention", reference=ulysses_attention, measure=MEASURE, worlds=(g.WORLD,),
    bonus=True,
    may_call=(*MAY_CALL, "ulysses.forward", "ulysses.backward"),  # what edits of lib's call
    leaves_out=g.FUNCTION | {
        "empty rank": "in every layout each rank has a token",
        "memory": "each rank has all tokens of some heads: what it makes of them is its own choice",
    },
    claims=claims(
        MEASURE,
        ("attention over the sequence", 4, cut.SAY, "out"),
        ("gradients of q, k and v", 3, "the exchanges, the other way round",
         *cut.names("q"), *cut.names("k"), *cut.names("v"), "graph"),
        ("numbers exchanged", 2, "q, k, v and out, once each way; nothing else", exchanged),
        ("q, k and v left alone", 1, "", "arguments"),
    ),
    hints=hints(
        "lab3", "ulysses_attention", "attention_of_a_shard",
        the_group_is_not_passed_on=s.kind("group"),
        shards_differ_in_length=cut.DIFFER_IN_LENGTH,
        **cut.OF_A_GROUP,
        **{"ranks of the world, not of the group": s.whose_ranks},
        a_head_that_several_ranks_read=s.both(
            another(cut.CASES, "the gradient of"), cut.in_case(_fewer)),
        **{"fewer key/value heads than ranks": cut.in_case(
            _fewer, *s.SHAPES, "clash", "returned")},
        counts=s.raised("ValueError"),
        the_order_of_the_tokens=another(cut.PLAIN[1:2], "out"),
        not_what_it_was_given=s.kind("another way"),
        without_a_backward=s.either(of_name("graph"), s.refused("no graph")),
        no_way_back=s.either(
            another(cut.CASES, "the gradient of"), s.kind("clash", phase=cut.BACKWARD),
            cut.in_case(lambda case: case.what.endswith(cut.BACKWARD), *s.SHAPES)),
        another_shape=cut.ANOTHER_SHAPE,
        elements_in_the_wrong_order=another(cut.PLAIN[:1], "out"),
        heads_repeated_more_than_is_needed=lambda p: (
            p.kind == "elements" and p.fact("more") and p.fact("case").K < p.fact("case").H),
        more_than_is_needed=s.kind("elements", more=True),
        not_on_every_rank=s.either(s.kind("clash"), s.hung),
        right_on_two_ranks_only=s.TWO_ONLY.fits,
        changed_what_it_was_given=of_name("arguments"),
    ),
)  # fmt: skip
