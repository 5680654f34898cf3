"""Lab 6, section 2: norm_over_mesh(sets, mesh, all_reduce), on 8 ranks.

First the gradients are made by hand, so that the square of a wrong norm tells whose squares are in
it, and how often:

    the set of          S 0,0  S 0,1  S 1,0  S 1,1  R 0   R 1   T 0   T 1
    its squares sum to  1      16     16^2   16^3   16^4  16^5  16^6  16^7

S, R and T are sharded, replicated and tied. The mesh is pp=2 tp=2, and numbers are stage, tp. Digit
d of the square, in base 16, says how often set d was counted; right is 1 of each. The sums along dp
have been made before.

Then gradients are those of a real step, a GPT's on pp=2 dp=2 tp=2, next to a single-process
baseline.
"""

import math
from functools import partial

import torch
import torch.distributed as dist

from lib import backend, hybrid
from lib.check import symptoms as s
from lib.check.attempt import attempted
from lib.check.cases import form_of, in_step, seen
from lib.check.claims import claim, kept, noted
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import two
from lib.check.lab6 import on_a_mesh as given
from lib.check.lab6.on_a_mesh import NAMES, REAL, WORLD, Before
from lib.check.traffic import only_calls
from lib.hybrid.mesh import axes_of, coordinates

CASES = given.cases((2, 2, 2))  # first, where a rank alone lacks parts of both kinds
MOST = 3  # numbers over a group: one of each set
TOLERANCE = 1e-12  # relative


def _squares(case):
    """{(set, stage, tp): the sum of its gradients' squares}: the whole model, each once. tp: None
    for replicated ones."""
    stages, tps = range(case.sizes["pp"]), range(case.sizes["tp"])
    found = [("sharded", stage, t) for stage in stages for t in tps] + [
        ("replicated", stage, None) for stage in stages
    ]
    found += [("tied", 0, t) for t in tps if len(stages) > 1]
    found = [key for key in found if given.shapes_of(key[1], len(stages))[key[0]]]
    # with more sets, the smallest must still be seen beside the largest
    base = 16 if len(found) < 10 else 4
    return {key: base**digit for digit, key in enumerate(found)}


def _made_up(case, here, name, number, shape):
    """The gradient of a parameter in the list `name`, of a rank at these coordinates."""
    key = (name, 0 if name == "tied" else here["pp"], None if name == "replicated" else here["tp"])
    elements = sum(
        torch.Size(one).numel() for one in given.shapes_of(here["pp"], case.sizes["pp"])[name]
    )
    element = math.sqrt(_squares(case)[key] / elements)
    return torch.full(shape, element, dtype=torch.float64, device=backend.device())


def _measure(fn):
    held = []
    records = in_step(CASES, given.places_of, partial(_one, fn, held), wire=dist.new_group())
    for record, got in held:
        record["kept"] = not record["ok"] or torch.equal(got.cpu(), record["got"])
    return records


def _one(fn, held, case, place):
    mesh, _, control = place
    rank, recorder = dist.get_rank(), Recorder(control)
    if case.what == REAL:
        step = given.real_step(mesh, average=hybrid.average_over_mesh)
        sets, want = step.sets, given.one_process(step)[1].item()
    else:
        sets, want = (
            given.sets_by_hand(mesh, partial(_made_up, case, mesh.here)),
            math.sqrt(sum(_squares(case).values())),
        )
    where, before = f"{case.name}: {case.rank(rank)}", Before(sets)
    got, problem = attempted(recorder, case.name, where, fn, sets, mesh, recorder.all_reduce)
    touched = before.changed(where, gradients=True)
    problem = problem or _wrong(case, rank, where, got, want)
    if problem:
        problem.facts |= {
            "touched": bool(touched),
            "all": any(len(call.ranks) == WORLD for call in recorder.calls),
        }
    record = {"ok": problem is None, "value": problem, "touched": touched} | recorder.record()
    record["got"] = got.detach().cpu().clone() if torch.is_tensor(got) else None
    held.append((record, got))
    return record


def _wrong(case, rank, where, got, want):
    """facts: counts, {set: how often its members are counted}; out, the axes that
    are not summed over."""
    if not torch.is_tensor(got) or got.shape != () or got.dtype != torch.float64:
        facts = {"dtype": torch.is_tensor(got) and got.dtype != torch.float64}
        return Problem("form", f"{where}: |g|: expected float64 (), got {form_of(got)}", facts)
    got = got.item()
    if abs(got - want) <= TOLERANCE * want:
        return None
    x, y = two(want, got)
    problem = Problem(
        "value", f"{where}: |g|: expected {x}, got {y}", {}, [case.name, case.rank(rank), got]
    )
    counts = None if case.what == REAL else _counts(_squares(case), got)
    if counts is None:
        problem.facts["narrowed"] = abs(got - want) < 1e-6 * want
        return problem
    here, sizes = coordinates(rank, case.sizes), case.sizes
    of = {name: {n for key, n in counts.items() if key[0] == name} or {1} for name in NAMES}
    left_out = {key for key, n in counts.items() if n == 0}
    stages, parts = (
        {k for k in counts if k[1] != here["pp"]},
        {k for k in counts if k[2] not in (None, here["tp"])},
    )
    known = {
        ("pp", "tp"): stages | parts if stages and parts else None,
        ("pp",): stages,
        ("tp",): parts,
    }
    out = next((axes for axes, keys in known.items() if left_out == keys), ())
    problem.facts |= {
        "counts": of,
        "out": out if left_out else (),
        "dp": sizes["dp"],
        "tp": sizes["tp"],
    }
    known = left_out == set() or problem.facts["out"] or of["tied"] == {0}
    problem.facts["narrowed"] = not known and abs(got - want) < 1e-6 * want
    if not problem.facts["narrowed"]:
        off = [f"{_words(key)} {n} times" for key, n in counts.items() if n != 1]
        more = f" and {len(off) - 4} more" if len(off) > 4 else ""
        problem.text += (
            f"\nIt is the root of a sum that has {', '.join(off[:4])}{more}; expected each once."
        )
    return problem


def _words(key):
    name, stage, t = key
    return (
        f"{name} ("
        f"{', '.join([f'stage {stage}'] * (name != 'tied') + [f'tp {t}'] * (t is not None))})"
    )


def _counts(squares, got):
    """{set: how often it is in the square}, or None where that has other things in it."""
    if not got**2 < 2.0**60 or abs(got**2 - round(got**2)) > 0.1:
        return None
    number, counts, base = round(got**2), {}, 16 if len(squares) < 10 else 4
    for key in squares:
        number, counts[key] = divmod(number, base)
    return None if number else counts


def _numbers_alone(runs):
    """A number or a few were summed along tp, and along pp, and no more."""
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            found = given.sums(record["calls"])
            for ranks, n in found.items():
                if axes_of(ranks, case.sizes) not in (("tp",), ("pp",)) or n > MOST:
                    text = f"{case.name}: {case.rank(rank)} summed {case.listed(found)}"
                    text += "\nexpected one number along tp and one along pp, or one of each set"
                    return Problem("calls", text, {"many": n > MOST})
    return None


def _same_bits(runs):
    for _, case, records in seen(runs, CASES):
        first, *others = (record["got"] for record in records)
        for rank, other in enumerate(others, 1):
            if not torch.equal(first, other):
                text = (
                    f"{case.name}: {case.rank(rank)} has {other.item()!r}, rank 0 {first.item()!r}"
                )
                return Problem("bits", text)
    return None


def _counted(**times):
    """For hints: how often each set is counted, of those named; others once. A number, or a
    function of dp, tp."""

    def fits(p):
        of = p.fact("counts")
        wanted = {name: times.get(name, 1) for name in NAMES}
        value = lambda n: n(p.facts["dp"], p.facts["tp"]) if callable(n) else n
        return of is not None and of == {name: {value(n)} for name, n in wanted.items()}

    return fits


def _by_dp(dp, tp):
    return dp


EXERCISE = Exercise(
    name="norm_over_mesh", reference=hybrid.norm_over_mesh, measure=_measure, worlds=(WORLD,),
    may_call=MAY_CALL,
    leaves_out=given.LEAVES_OUT | {
        "under way": "a call sums and ends: nothing of it is under way when it returns",
        "memory": "numbers alone travel, which is a claim",
    },
    claims=(
        claim("the norm of the whole model", 6, "5 meshes of 8 ranks; pp, dp, tp of 1 to 4",
              noted(CASES, "value", CASES[:-1])),
        claim("as in a single process", 2, "a GPT's gradients on pp=2 dp=2 tp=2",
              noted(CASES, "value", CASES[-1:])),
        claim("only sums of squares are sent", 2, "one to three values along tp and along pp",
              only_calls(CASES, None), _numbers_alone),
        claim("the same bits on every rank", 1, "or ranks would clip differently", _same_bits),
        claim("gradients left alone", 1, "and so are parameters and lists", noted(CASES, "touched"),
              kept(CASES)),
    ),
    hints=(
        s.CALLED_LIB,
        Hint("what it was given has changed", s.either(s.kind("touched"), s.fact("touched")),
             "the norm only looks at gradients: p.grad.square(), not square_(), and a new list, "
             "[*sets.sharded, *tied], not sets.sharded += tied."),
        Hint("another form", s.kind("form", dtype=False),
             "squares() gives (1,), for all_reduce wants a tensor. Its one number is total[0], (), "
             "and that has a .sqrt()."),
        Hint("over all ranks", s.fact("all"),
             "without a group all_reduce takes every rank there is, and adds what data ranks have "
             "alike. Hand on "
             'mesh.group("tp"), then mesh.group("pp").'),
        Hint("also summed over dp", _counted(sharded=_by_dp, replicated=_by_dp, tied=_by_dp),
             "after average_over_mesh data ranks have the same gradients: there is nothing to sum "
             "over dp."),
        Hint("tied left out", _counted(tied=0),
             "the tied matrix is a parameter of the model: it counts once, on one of its two "
             "ends."),
        Hint("tied counted twice", _counted(tied=2),
             'it is one parameter, and two stages have it. Count it where mesh.here["pp"] is 0, '
             'and nowhere else.'),
        Hint("replicated counted tp times", _counted(replicated=lambda dp, tp: tp),
             "a replicated parameter has the same gradient on all tp ranks. Add its squares after "
             "the sum over tp."),
        Hint("not summed over tp", s.fact("out", ("tp",)),
             "a tp rank has one shard of each sharded weight, so the squares of the other shards "
             "are on the other tp ranks."),
        Hint("not summed over pp", s.fact("out", ("pp",)),
             'a rank has one stage. The other stages\' squares are along mesh.group("pp").'),
        Hint("its own alone", s.fact("out", ("pp", "tp")),
             "each rank has a norm of its own, and would clip by it: sum the squares over tp, and "
             "over pp."),
        Hint("in float32", s.either(s.fact("narrowed"), s.kind("wire dtype", "form"),
            s.refused("dtype")),
             "squares() is float64, and so must be all that comes after: no .float(), no "
             "torch.zeros(1), which is float32."),
        Hint("not on every rank", s.either(s.hung, s.kind("clash", "mismatch", "died")),
             "all ranks of a group must call all_reduce, equally often and with equal sizes. A "
             "rank with nothing to count adds 0."),
        Hint("once each", s.kind("value"),
             "write down for 2 x 2 x 2 which rank has what: sharded and tied ones are split over "
             "tp, replicated ones are alike on all tp ranks, every stage has its own, and the tied "
             "ones are on two stages. Each square counts once."),
        Hint("a stage with nothing", s.in_case(CASES, lambda case: case.sizes["pp"] == 4, "raised"),
             "a stage may have no parameters at all: its sum is 0, a tensor of (1,) in float64, "
             "and is added too."),
        s.NOT_GIVEN,
        Hint("gradients sent", s.kind("calls", many=True),
             "to send all gradients takes as long as to average them. A rank squares and adds what "
             "it has, and sends the one number."),
        Hint("a needless sum", s.kind("calls"),
             "data ranks have the same gradients: what is summed over dp, and divided again, need "
             "not travel."),
        Hint("another rounding", s.kind("bits"),
             "ranks that clip by norms that differ in the last bit part slowly. All must do the "
             "same arithmetic on what all_reduce gave them."),
        s.NOT_KEPT,
        *s.ANYWHERE,
    ),
)  # fmt: skip
