"""Lab 5, section 6: exchange_tokens(routed_tokens, send_counts, receive_counts, group, all_to_all),
routed tokens and their gradients.

Two exchanges may be in flight when backward begins: the rows sent back again, or others in a
smaller group.
"""

from collections import Counter
from dataclasses import replace

from lib.check import symptoms as s
from lib.check.cases import Setting, seen
from lib.check.causes import another, hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise, Problem
from lib.check.lab3 import groups as g
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.check.traffic import beside
from lib.moe import exchange as libs

D, WAYS = 3, ("", "backward")
TO_ONE, HOME, NONE = "all to rank 0", "a second exchange, home", "no rows"
# rows from rank i to rank j, where the group has so many ranks
UNEVEN = [[2, 3, 1, 2], [1, 4, 2, 0], [0, 0, 0, 0], [5, 1, 0, 3]]
COUNTS = {  # rank 2 has nothing to do in TO_ONE
    TO_ONE: [[3, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]],
    NONE: [[0] * g.WORLD] * g.WORLD,
}
CASES = tuple(Setting(m) for m in g.GROUPS) + tuple(
    Setting(g.ALL, what=what) for what in (TO_ONE, HOME, g.AT_ONCE, NONE)
)


def lists(case, N, rank):
    """[rows to each rank], [rows from each]"""
    counts = COUNTS.get(case.what, UNEVEN)
    return counts[rank][:N], [counts[i][rank] for i in range(N)]


def given(case, show, N, rank, of):
    """A rank's routed tokens. of: what tells a second exchange from the first; a pair's have
    another width."""
    n, seed = sum(lists(case, N, rank)[0]), 100 * N + 10 * rank + 5 * bool(of) + case.again
    return show.give(f"routed_tokens{of}", draw(seed, n, D - of.endswith("pair")), learns=True)


def script(make, case, groups, show):
    show.begin("forward")
    ys = []
    for group, N, rank, of in g.calls(show, groups):
        send, receive = lists(case, N, rank)
        x = given(case, show, N, rank, of)
        y = show.run(make, x, [*send], [*receive], group, show.all_to_all)
        show(f"what arrived{of}", y)
        if show.wrong(f"what arrived{of}"):
            return
        if case.what == HOME:
            y = show.run(make, y, [*receive], [*send], group, show.all_to_all)
            show("what came home", y)
            if show.wrong("what came home"):
                return
        ys.append(y)
    yield
    show.begin("backward")
    show.backward(*ys, section=True)


def part(case, way):
    """What begins a section of its own in the ranks' logs: "backward"."""
    return replace(case, what=", ".join(filter(None, [case.what, way])))


def as_many(measure):
    """A judge: each rank sends the others as many elements as lib's own, in forward and in
    backward, in as many messages as it likes; and nothing by what it was not given."""

    def judge(runs):
        for run, case, records in seen(runs, tuple(measure.runs())):
            for rank, record in enumerate(records):
                where, section = f"{case.name}: {case.rank(rank)}", lambda *of: part(*of).name
                if found := beside(run, case, where, rank, record, WAYS, section):
                    return found
                if record["unseen"]:  # it ended early, of which the shown names tell
                    continue
                me = case.members[rank]
                got, want = (_leaving(record[key], me) for key in ("calls", "wanted"))
                if got != want:
                    text = f"{where} sent the others {_told(got)}\nexpected {_told(want)}"
                    return Problem("elements", text, {"case": case}, [case.name, _told(got)])
        return None

    return judge


def _leaving(calls, me):
    """{"elements of rows in forward": how many leave this rank, ...}"""
    sent = Counter()
    for call in calls:
        if call.elements:
            to, here = call.counts[: len(call.ranks)], call.ranks.index(me)
            what = "elements of rows" if call.dtype.is_floating_point else "counts"
            n = call.elements * (sum(to) - to[here]) // sum(to)
            sent[f"{what} in {call.phase}"] += n
    return +sent


def _told(sent):
    return ", ".join(f"{n} {what}" for what, n in sorted(sent.items())) or "nothing"


def everywhere(cases):
    """The cases, and the sections of their backward, where a run may have failed."""
    return [part(case, way) for case in cases for way in WAYS]


def in_backward(cases):
    """Was it in backward that a call failed, or did not fit?"""
    failed = s.in_case(everywhere(cases), lambda case: case.what.endswith("backward"))
    return s.either(failed, s.kind("clash", phase="backward"))


def lists_do_not_fit(p):
    """Were counts given that do not fit the rows, or the other ranks' counts?"""
    clash = p.kind == "clash" and not p.facts["over"] and {*p.facts["ops"]} == {"all_to_all"}
    return clash or s.raised("ValueError")(p)


def scaled(p):
    """Is it a gradient that is too large or too small by one factor?"""
    return of_name("the gradient of")(p) and p.fact("factor") and not p.fact("narrowed")


def without_a_graph(p):
    return of_name("graph")(p) or (p.kind == "returned" and of_name("the gradient of")(p))


MEASURE = SideBySide(
    script, libs.exchange_tokens, CASES, groups=g.groups,
    excused={"alive": "what backward keeps is free"},
    together=(CASES[0], replace(CASES[0], again=1)),  # of one shape: a buffer of it is kept
)  # fmt: skip
EXCHANGE_TOKENS = Exercise(
    name="exchange_tokens", reference=libs.exchange_tokens, measure=MEASURE, worlds=(g.WORLD,),
    may_call=MAY_CALL,
    leaves_out={
        "generators": "the counts are lists, as the notebook gives them",
        "memory": "it makes what it returns",
    },
    claims=claims(
        MEASURE,
        ("rows to their ranks", 3, f"{g.GROUPS_SAY}; uneven, none",
         "what arrived", "what came home", "what arrived, the pair"),
        ("gradients the same way back", 4, "also through two exchanges",
         "routed_tokens", "routed_tokens, the pair", "graph"),
        ("each row once, each way", 2, "elements, by the all_to_all it was given",
         as_many(MEASURE)),
        ("rows and counts left alone", 1, ""),
    ),
    hints=hints(
        "lab5", "exchange_tokens",
        the_group_is_not_passed_on=s.kind("group"),
        counts_of_another_exchange=s.in_case(
            everywhere(CASES), lambda case: case.what.startswith((HOME, g.AT_ONCE)),
            *s.SHAPES, "clash",
        ),
        **{"ranks of the world, not of the group": s.both(s.kind(*s.SHAPES), s.mixed_up_ranks)},
        backward_without_the_swap=s.both(in_backward(CASES), lists_do_not_fit),
        the_lists_the_wrong_way_round=lists_do_not_fit,
        not_every_rank_calls=s.kind("clash"),
        without_a_backward=without_a_graph,
        gradient_scaled=scaled,
        another_gradient=another(CASES, "the gradient of"),
        nobody=s.in_case(everywhere(CASES), lambda case: case.what or case != CASES[0], "raised"),
        not_what_it_was_given=s.kind("another way"),
        more_than_the_rows=s.kind("elements"),
        changed_in_place=of_name("arguments"),
        shapes_do_not_fit=s.either(s.kind("form", dtype=False), s.refused("shape")),
        rows_in_another_order=another(CASES, "what "),
    ),
)  # fmt: skip
