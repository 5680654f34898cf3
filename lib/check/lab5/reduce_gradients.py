"""Lab 5, section 7: reduce_gradients(model, expert_dp_group, world, all_reduce), on N = dp ep
ranks.

Gradients are made by hand first, in two steps; then they are those of a real backward.
"""

from dataclasses import replace

from lib.check import symptoms as s
from lib.check.cases import seen
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise, Problem
from lib.check.lab5 import reduce_model as m
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide
from lib.check.traffic import beside
from lib.moe import expert_parameters
from lib.moe import gradients as libs

EXPERTS, OTHERS = "the experts' gradients", "the other gradients"


def script(make, case, groups, show):
    show.allowed = [case.members, groups.copies]
    net, rank = m.Net(m.NO_EXPERTS not in case.what).over(groups.ep), show.place
    if case.what == m.REAL:
        net.loss(rank).backward()
    for parameter in net.parameters():
        parameter.data += rank  # or nobody would see that the parameters are averaged instead
    ids = {id(p) for p in expert_parameters(net)}
    for step in range(1 if case.what == m.REAL else 2):
        for number, (name, p) in enumerate(net.named_parameters()):
            if case.what != m.REAL:
                p.grad = m.made_up(case, number, name, p, rank, step)
        with show.during("a second step" * step) as run:
            run(make, net, groups.expert_dp, groups.world, show.all_reduce)
        yield
        found = [*net.named_parameters()]
        show(EXPERTS, [(f"of {name}", p.grad) for name, p in found if id(p) in ids])
        show(OTHERS, [(f"of {name}", p.grad) for name, p in found if id(p) not in ids])
        show("parameters", found)


MEASURE = SideBySide(
    script, libs.reduce_gradients, m.CASES, groups=m.groups_of,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model")
    | {"once more": "nothing is returned; two models are reduced in turn",
       "storage": "nothing is returned", "alive": "a gradient may be a part of the flat buffer",
       "alive at the end": "a gradient may be a part of the flat buffer"},
    together=(m.TWO_TWO, replace(m.TWO_TWO, again=1)),
)  # fmt: skip


def one_of_each_kind(runs):
    """A judge: over more than one rank, each rank sums what lib's own does, in any order."""
    for run, case, records in seen(runs, tuple(MEASURE.runs())):
        for rank, record in enumerate(records):
            where = f"{case.name}: {case.rank(rank)}"
            if found := beside(run, case, where, rank, record):
                return found
            got, want = (
                sorted(
                    (c.ranks, c.elements) for c in record[key] if len(c.ranks) > 1 and c.elements
                )
                for key in ("calls", "wanted")
            )
            if got != want:
                text = f"{where} called all_reduce for {_told(got)}\nexpected {_told(want)}"
                same = sum(n for _, n in got) == sum(n for _, n in want)
                return Problem("calls", text, {"case": case, "same": same}, [case.name, got])
    return None


def _told(calls):
    if len(calls) > 4:
        return f"{_told(calls[:2])}; and {len(calls) - 2} more"
    return "; ".join(f"{n} elements over ranks {[*ranks]}" for ranks, n in calls) or "nothing"


def _times(factor, name=""):
    """Is it factor(dp, ep) times what is expected?"""

    def fits(p):
        got, case = p.fact("factor"), p.fact("case")
        right = got is not None and case and factor(*m.sizes(case))
        is_it = bool(right) and abs(got / right - 1) < 1e-6 and not p.fact("narrowed")
        return is_it and of_name(name)(p)

    return fits


BY_HAND = [case for case in MEASURE.runs() if not case.what.startswith(m.REAL)]
EXERCISE = Exercise(
    name="reduce_gradients", reference=libs.reduce_gradients, measure=MEASURE, worlds=(m.WORLD,),
    may_call=MAY_CALL,
    leaves_out={
        "under way": "a call sums, divides and ends: nothing of it is under way when it returns",
        "generators": "no argument is an iterator; the model's own are asked for anew",
        "returned": "it returns nothing",
        "memory": "one flat buffer of each kind is what it is asked to make",
    },
    claims=claims(
        MEASURE,
        ("the mean over all ranks", 8, "dp, ep of 1 to 4; tied, unused, frozen ones",
         (EXPERTS, BY_HAND), (OTHERS, BY_HAND)),
        ("as one process", 3, "a real backward, dp 2, ep 2", EXPERTS, OTHERS),
        ("one all-reduce of each kind", 4, "the experts' over their copies, all else over all",
         one_of_each_kind),
        ("parameters left alone", 1, "only .grad changes"),
    ),
    hints=hints(
        "lab5", "reduce_gradients",
        the_group_is_not_passed_on=s.kind("group"),
        **{"the parameter, not its gradient": of_name("parameters")},
        no_experts_here=s.in_case(m.CASES, lambda case: case.what == m.NO_EXPERTS, "raised"),
        a_rank_without_gradients=s.in_case(
            m.CASES, lambda case: case.what == m.NOTHING, *s.SHAPES, "clash"
        ),
        a_parameter_without_gradient=s.either(s.kind("returned"), s.refused("None")),
        **{"looked for by ==": s.raised("RuntimeError")},
        not_divided=_times(lambda dp, ep: dp * ep),
        experts_divided_by_dp=_times(lambda dp, ep: ep, EXPERTS),
        divided_twice=_times(lambda dp, ep: 1 / (dp * ep)),
        sizes_that_differ_between_ranks=s.kind("clash"),
        pieces_in_the_wrong_places=s.both(
            s.kind("value", "form", "raised"), lambda p: not p.fact("narrowed")
        ),
        not_what_it_was_given=s.kind("another way"),
        one_message_per_parameter=s.kind("calls", same=True),
        other_elements=s.kind("calls"),
    ),
)  # fmt: skip
