"""Lab 6, section 2: average_over_mesh(sets, mesh, ends, all_reduce), on 8 ranks.

First the gradients are made by hand, so that a wrong one is read as a sum of the ranks' shares;
then they are those of a real step, a GPT's on pp=2 dp=2 tp=2, next to a single-process baseline.
Rank 0 of pp=2 dp=2 tp=2, of sharded:

    expected  1/2 of rank 0, 1/2 of rank 2  it has the same part of the weight, and other rows
    got       1/2 of ranks 0 1 2 3          summed over tp too:
                                            rank 1's is another part of the weight
"""

from functools import partial

import torch
import torch.distributed as dist

from lib import hybrid
from lib.check import symptoms as s
from lib.check.attempt import attempted
from lib.check.cases import draw, in_step, seen
from lib.check.claims import claim, kept, noted, off
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import fraction, shares, who
from lib.check.lab6 import on_a_mesh as given
from lib.check.lab6.on_a_mesh import NAMES, REAL, WORLD, Before
from lib.check.traffic import only_calls
from lib.hybrid.mesh import axes_of, coordinates

CASES = given.cases()
# tied: of pp the two ends
AXES = {"sharded": {"dp"}, "replicated": {"dp", "tp"}, "tied": {"pp", "dp"}}
SAID = {"pp": "the ends", "dp": "dp", "tp": "tp"}


def _made_up(rank, step, name, number, shape):
    """Rank `rank`'s gradient of the parameter that is `number` in its list `name`; in step 1 rank
    1's are all zero."""
    return (step == 0 or rank != 1) * draw(
        1000 * step + 100 * NAMES.index(name) + 10 * number + rank, *shape
    )


def _summed_over(case, name, rank):
    """The ranks whose gradients are summed for a parameter of rank `rank` in the list `name`."""
    here, last = coordinates(rank, case.sizes), case.sizes["pp"] - 1
    places = {other: coordinates(other, case.sizes) for other in case.members}
    alike = [
        o for o, at in places.items() if all(at[x] == here[x] for x in here if x not in AXES[name])
    ]
    return [other for other in alike if name != "tied" or places[other]["pp"] in (0, last)]


def _measure(fn):
    held = []
    records = in_step(CASES, given.places_of, partial(_one, fn, held), wire=dist.new_group())
    for record, gradients in held:
        record["kept"] = not record["ok"] or all(torch.equal(now, then) for now, then in gradients)
    return records


def _one(fn, held, case, place):
    mesh, ends, control = place
    rank, right, gradients, expected = dist.get_rank(), None, [], {}
    if case.what == REAL:
        step = given.real_step(mesh, average=lambda sets, mesh, ends: None)
        sets, right = step.sets, given.one_process(step)[0]
    groups = [group for group in (mesh.group("tp"), mesh.group("dp"), ends) if group]
    recorder = Recorder(
        control, allowed=[tuple(dist.get_process_group_ranks(group)) for group in groups]
    )
    for number in range(1 if right else 2):
        if not right:
            sets = given.sets_by_hand(mesh, partial(_made_up, rank, number))
        where, before = f"{case.name}{', a second step' * number}: {case.rank(rank)}", Before(sets)
        _, problem = attempted(
            recorder, case.name, where, fn, sets, mesh, ends, recorder.all_reduce
        )
        _add(expected, before, mesh, ends)
        touched = before.changed(where, gradients=False)
        wrong = (
            partial(_beside_one_process, right) if right else partial(_by_hand, case, rank, number)
        )
        problem = problem or wrong(where, before)
        if problem:
            problem.facts |= {"touched": touched and touched.facts["what"]}
            problem.trace = [problem.kind, touched.facts["what"]] if touched else problem.trace
        if not recorder.agreed(problem is None):
            break
        gradients += [(p.grad, p.grad.clone()) for _, _, p in before.all()]
    record = {
        "ok": problem is None,
        "value": problem,
        "touched": touched,
        "want": expected,
    } | recorder.record()
    held.append((record, gradients))
    return record


def _add(expected, before, mesh, ends):
    """{global ranks: elements} of each of the groups to sum over: those of one call more."""
    tied, replicated, sharded = (
        sum(p.numel() for p in before.lists[name]) for name in ("tied", "replicated", "sharded")
    )
    for group, n in (
        (mesh.group("tp"), replicated),
        (mesh.group("dp"), sharded + replicated + tied),
        (ends, tied),
    ):
        ranks = tuple(dist.get_process_group_ranks(group)) if group else ()
        if len(ranks) > 1 and n:
            expected[ranks] = expected.get(ranks, 0) + n


def _beside_one_process(right, where, before):
    """The first gradient that is not one process's. right: {parameter: (its name, the gradient)}"""
    for p, (name, want) in right.items():
        if problem := off(f"{where}: {name}.grad", p.grad, want):
            problem.facts |= {
                "own": torch.is_tensor(p.grad) and torch.equal(p.grad, before.was[p][1])
            }
            return problem
    return None


def _by_hand(case, rank, step, where, before):
    """The first wrong gradient. facts: set; own, it is this rank's as it was; some, others have
    been summed.

    lacks, beside: the axes over which it is not summed, and those over which it is, too; factor:
    times expected.
    """
    wrong, some, touched = [], False, False
    for name, i, p in before.all():
        ranks = _summed_over(case, name, rank)
        want = sum(_made_up(other, step, name, i, p.shape) for other in ranks) / case.sizes["dp"]
        if problem := off(f"{where}: sets.{name}[{i}].grad", p.grad, want):
            wrong.append((name, i, p, ranks, problem))
            touched = touched or not (
                torch.is_tensor(p.grad) and torch.equal(p.grad, before.was[p][1])
            )
        else:
            some = some or len(ranks) > 1
    if not wrong:
        return None
    name, i, p, ranks, problem = wrong[0]
    problem.facts |= {
        "set": name,
        "some": some,
        "own": False,
        "lacks": set(),
        "beside": set(),
        "factor": None,
    }
    parts = [_made_up(r, step, name, i, p.shape) for r in range(WORLD)]
    if problem.kind != "value" or not (found := shares(p.grad, parts)):
        return problem
    should = dict.fromkeys(ranks, 1 / case.sizes["dp"])
    weights = {*(round(share, 9) for share in found.values())}
    own = [*found] == [rank] and weights == {1} and (some or not touched)
    problem.facts["own"] = own
    if own:
        words = f"this rank's own, as it was{', while others have been summed' * some}"
    elif len(weights) > 1:
        words = ""
    else:
        along, over = {*axes_of(found, case.sizes)}, {*axes_of(ranks, case.sizes)}
        factor = next(iter(weights)) * case.sizes["dp"] if {*found} == {*ranks} else None
        problem.facts |= {
            "lacks": over - along,
            "beside": along - over,
            "factor": factor and round(factor, 6),
        }
        words = [f"not summed over {SAID[axis]}" for axis in SAID if axis in over - along]
        words += [
            f"summed over {'pp' if axis == 'pp' else SAID[axis]} too"
            for axis in SAID
            if axis in along - over
        ]
        words = ", ".join(words) or f"{fraction(factor or 0)} times what is expected" * bool(factor)
    problem.text += f"\nIt is {_told(found)}; expected {_told(should)}{': ' * bool(words)}{words}."
    problem.facts |= {"dp": case.sizes["dp"], "tp": case.sizes["tp"]}
    return problem


def _told(found):
    """`1/2 of ranks 0 and 2's`."""
    said = {}
    for rank, share in found.items():
        said.setdefault(fraction(share), []).append(rank)
    return " + ".join(
        f"{'' if share == '1' else f'{share} of '}{who(ranks)}'s" for share, ranks in said.items()
    )


def _each_over_its_groups(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if (got := given.sums(record["calls"])) != record["want"]:
                text = (
                    f"{case.name}: {case.rank(rank)} summed {case.listed(got)}\nexpected "
                    f"{case.listed(record['want'])}"
                )
                return Problem("calls", text, {"case": case})
    return None


def _along(ends):
    """Did a call not fit whose ranks lie along pp: those of the ends, or more?"""

    def fits(p):
        if (
            p.kind != "clash"
            or not p.fact("case")
            or axes_of(p.facts["ranks"], p.facts["case"].sizes) != ("pp",)
        ):
            return False
        return (p.facts["ranks"] in p.facts["case"].ends()) == ends

    return fits


def _of(*sets, **facts):
    """Is it a gradient of these sets, with such facts: a number of times expected, or an
    axis among those?"""

    def fits(p):
        right = lambda name, want: (
            want in p.fact(name, ()) if name in ("lacks", "beside") else p.fact(name) == want
        )
        return (
            p.kind == "value"
            and p.fact("set") in (sets or NAMES)
            and all(right(*one) for one in facts.items())
        )

    return fits


def _times(factor, unless=lambda p: False):
    """Is it factor(dp, tp) times what is expected?"""

    def fits(p):
        got = p.fact("factor")
        return (
            got is not None
            and got == round(factor(p.facts["dp"], p.facts["tp"]), 6)
            and not unless(p)
        )

    return fits


def _all_ranks(p):
    return p.kind == "group" and len(p.facts["ranks"]) == WORLD


EXERCISE = Exercise(
    name="average_over_mesh", reference=hybrid.average_over_mesh, measure=_measure, worlds=(WORLD,),
    may_call=MAY_CALL,
    leaves_out=given.LEAVES_OUT | {
        "under way": "a call sums, divides and ends: nothing of it is under way when it returns",
        "returned": "it returns nothing",
        "memory": "gradients are summed where they are",
    },
    claims=(
        claim("the gradients of the mean loss", 8, "5 meshes of 8 ranks; pp, dp, tp of 1 to 4",
              noted(CASES, "value", CASES[:-1])),
        claim("as in a single process", 3, "a GPT's backward on pp=2 dp=2 tp=2",
              noted(CASES, "value", CASES[-1:])),
        claim("each set over its groups", 3,
              "elements: tied over ends, replicated over tp, all over dp",
              only_calls(CASES, None), _each_over_its_groups),
        claim("parameters left alone", 2, "only .grad changes; the lists stay as they were",
              noted(CASES, "touched"), kept(CASES)),
    ),
    hints=(
        s.CALLED_LIB,
        Hint("the parameter, not its gradient", s.either(s.fact("touched", "parameter"),
            s.fact("what", "parameter")),
             "a parameter itself has changed. Gradients are summed, p.grad; it is the optimizer "
             "that changes p."),
        Hint("a list was changed", s.either(s.fact("touched", "list"), s.fact("what", "list")),
             "a += b makes the list a longer, and it is the caller's. A new list of all: "
             "[*sets.sharded, *sets.replicated, *sets.tied]."),
        s.NARROW,
        Hint("no group", _all_ranks,
             'without a group all_reduce takes every rank there is. Hand one on with every call: '
             'mesh.group("dp"), mesh.group("tp"), or ends.'),
        Hint("an empty list",
             lambda p: s.raised("IndexError", "RuntimeError",
             "ValueError")(p) and not p.facts["failed"].refusals,
             "a list may be empty: stages between the first and the last have no tied ones, and "
             "without a pipeline no rank has."),
        Hint("over pp", s.either(s.kind("group"), _along(ends=False)),
             "the stages of a pipeline have different parameters, and nothing is to be summed "
             "along pp. Only the first and the last stage have one in common, the tied one: `ends` "
             "is their group."),
        Hint("stages sum different things", _along(ends=True),
             "`ends` are the first and the last stage of a pipeline, and they have different "
             "parameters but for the tied ones. Whatever else is summed is summed over ranks of "
             "one stage: along dp or tp."),
        Hint("some left out", s.both(s.fact("own"), s.fact("some")),
             "there are three lists, of none, one or several parameters; over dp go all parameters "
             "of all three."),
        Hint("nothing written back", s.fact("own"),
             "the gradient has nothing of the other ranks in it. all_reduce sums in the tensor "
             "that it is given: give it p.grad itself, no copy of it, and put a quotient back into "
             "p.grad."),
        Hint("sharded summed over tp", _of("sharded", beside="tp"),
             "each tp rank has another shard of the weight, so its gradient is of other elements. "
             "Sharded parameters are summed over dp alone."),
        Hint("tied summed over tp", _of("tied", beside="tp"),
             "the tied matrix is sharded over tp as well: a tp rank has other rows of it. Its two "
             "uses are on the first and the last stage, of the same tp rank: ends."),
        Hint("replicated not summed over tp", _of("replicated", lacks="tp"),
             "with sequence parallelism each tp rank has seen other tokens of its rows, so the "
             "gradient of a replicated parameter is a sum over tp, and after that a mean over dp."),
        Hint("tied not summed", _of("tied", lacks="pp"),
             "the first stage has the gradient of the embedding, the last one that of the head. "
             "One process has their sum: all_reduce(p.grad, ends)."),
        Hint("not summed over dp", _of(lacks="dp"),
             'data ranks had other rows, and each has the gradient of its own: sum all sets over '
             'mesh.group("dp").'),
        Hint("not divided", _times(lambda dp, tp: dp),
             "each data rank's loss is the mean over its own rows, and that of the whole batch is "
             "the mean of theirs: "
             'divide by mesh.size("dp").'),
        Hint("right for dp=2 only", _times(lambda dp, tp: dp / 2, unless=s.fact("some")),
             'mesh.size("dp") says how many data ranks there are: 1, 2, 4 ...'),
        Hint("tied averaged over the ends", s.both(_of("tied"), _times(lambda dp, tp: 1 / 2)),
             "autograd adds the gradients of both uses of a matrix. The two ends have one each: "
             "their sum, not their mean."),
        Hint("divided by all ranks",
             _times(lambda dp, tp: dp / WORLD,
                    unless=lambda p: p.facts["dp"] * p.facts["tp"] == WORLD),
             'only the data ranks have losses of their own: the mean is over mesh.size("dp") of '
             'them, not over the '
             "world."),
        Hint("divided by tp too", _times(lambda dp, tp: 1 / tp),
             "tp ranks share the rows: the loss is one loss, a mean over all of its tokens "
             "already. What its tokens give is a sum. Only over dp there are several losses."),
        Hint("divided twice", _times(lambda dp, tp: 1 / dp),
             'one division, by mesh.size("dp"), whatever the set. Is a parameter in two loops that '
             'divide?'),
        Hint("not on every rank", s.either(s.hung, s.kind("clash", "mismatch", "died")),
             "all ranks of a group must call it equally often, in one order, with equal sizes. "
             "Stages differ in their parameters: no group but ends may have ranks of two stages, "
             "and whether to call must not depend on the rank."),
        Hint("summed twice", _of(),
             "a gradient is once in each sum. What has been summed over a group is alike on all of "
             "its ranks: to sum it there again counts it once for each rank."),
        s.NOT_GIVEN,
        Hint("other elements", s.kind("calls"),
             "sum tied ones over ends, replicated ones over tp, and every gradient once over dp. "
             "Nothing else is sent."),
        s.NOT_KEPT,
        *s.ANYWHERE,
    ),
)  # fmt: skip
