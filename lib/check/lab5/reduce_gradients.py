"""Lab 5, section 7: reduce_gradients(model, expert_dp_group, world, all_reduce), on N = dp ep
ranks.

Gradients are made by hand first: a wrong one is read as a sum of the ranks' shares. Then they are
those of a real backward, beside one process that takes the mean of all ranks' losses.
"""

from functools import partial

import torch
import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.attempt import attempted
from lib.check.cases import in_step, seen
from lib.check.claims import claim, kept, noted, off
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import fraction, shares, who
from lib.check.lab5 import reduce_model as m
from lib.check.traffic import only_calls
from lib.moe import expert_parameters
from lib.moe import gradients as libs


def _measure(fn):
    held = []
    records = in_step(m.CASES, m.groups_of, partial(_one, fn, held), wire=dist.new_group())
    for record, gradients in held:
        record["kept"] = not record["ok"] or all(torch.equal(now, then) for now, then in gradients)
    return records


def _one(fn, held, case, groups):
    rank, right = case.members.index(dist.get_rank()), None
    recorder = Recorder(groups.control, allowed=[case.members, groups.copies])
    net = m.Net(case.what != m.NO_EXPERTS).over(groups.ep)
    if case.what == m.REAL:
        net.loss(rank).backward()
        right = m.mean_loss(case)
    for parameter in net.parameters():
        parameter.data += rank  # or nobody would see that the parameters are averaged instead
    before, gradients = {name: p.detach().clone() for name, p in net.named_parameters()}, []
    for step in range(1 if right else 2):
        where = f"{case.name}{', a second step' * step}: {case.rank(rank)}"
        for name, parameter in net.named_parameters():
            if not right:
                parameter.grad = m.made_up(case, name, parameter, rank, step)
        _, problem = attempted(
            recorder,
            case.name,
            where,
            partial(fn, all_reduce=recorder.all_reduce),
            net,
            groups.expert_dp,
            groups.world,
        )
        problem = problem or _wrong(case, where, net, rank, step, right)
        if not recorder.agreed(problem is None):
            break
        gradients += [(p.grad, p.grad.clone()) for p in net.parameters() if p.grad is not None]
    name = next(
        (name for name, p in net.named_parameters() if not torch.equal(p.detach(), before[name])),
        None,
    )
    touched = name and Problem("touched", f"{where}: {name} itself has changed, not its gradient")
    if problem:
        problem.facts |= {"touched": bool(touched), "calls": len(recorder.calls)}
        if problem.kind == "value":
            problem.trace = [problem.text, len(recorder.calls), bool(touched)]
    want = [(case.members, _size(net, False)), (groups.copies, _size(net, True))]
    record = {
        "ok": problem is None,
        "value": problem,
        "touched": touched,
        "want": want * (step + 1),
    }
    record |= recorder.record()
    held.append((record, gradients))
    return record


def _wrong(case, where, net, rank, step, right):
    """A Problem with the first wrong gradient; facts: expert; of a sum: shares {rank: how much of
    its}, whose ranks."""
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            old = None if right else m.made_up(case, name, parameter, rank, step)
            if (parameter.grad is None) != (old is None) or (
                old is not None and not torch.equal(parameter.grad, old)
            ):
                return Problem(
                    "frozen", f"{where}: {name}.grad has changed, and {name} is not trained"
                )
            continue
        shared, holders = (None, None) if right else m.parts(case, name, parameter, rank, step)
        want = right[name] if right else sum(shared[r] for r in holders) / case.world_size
        problem = off(
            f"{where}: {name}.grad",
            parameter.grad,
            want if holders or right else torch.zeros_like(parameter),
        )
        if problem is None:
            continue
        problem.facts |= {
            "expert": ".experts." in name,
            "holders": holders,
            "rank": rank,
            "sizes": m.sizes(case),
        }
        if (
            problem.kind == "value"
            and not right
            and (found := shares(parameter.grad, shared)) is not None
        ):
            told = lambda found: " and ".join(
                f"{share} of {who([r for r in found if found[r] == share])}'s"
                for share in sorted({*found.values()})
            )
            problem.facts["shares"] = {r: fraction(share) for r, share in found.items()}
            right_ones = dict.fromkeys(holders, f"1/{case.world_size}")
            problem.text += (
                f"\nIt is {told(problem.facts['shares']) or 'zeros'}; expected {told(right_ones)}"
            )
        return problem
    return None


def _size(net, of_experts):
    """Elements of the gradients, of experts or of all else."""
    experts = {id(p) for p in expert_parameters(net)}
    return sum(
        p.numel() for p in net.parameters() if p.requires_grad and (id(p) in experts) == of_experts
    )


def _one_of_each_kind(runs):
    for _, case, records in seen(runs, m.CASES):
        for rank, record in enumerate(records):
            # Over one rank, or of nothing: it may be called or not.
            got, want = [(call.ranks, call.elements) for call in record["calls"]], record["want"]
            got, want = (
                sorted((ranks, n) for ranks, n in one if len(ranks) > 1 and n)
                for one in (got, want)
            )
            if got != want:
                text = (
                    f"{case.name}: {case.rank(rank)} called all_reduce for "
                    f"{_listed(got)}\nexpected {_listed(want)}"
                )
                same = sum(n for _, n in got) == sum(n for _, n in want)
                return Problem("calls", text, {"case": case, "same": same}, [case.name, got])
    return None


def _listed(calls):
    if len(calls) > 4:
        return f"{_listed(calls[:2])}; and {len(calls) - 2} more"
    return "; ".join(f"{n} elements over ranks {[*ranks]}" for ranks, n in calls) or "nothing"


def _shares(fits, expert=None):
    """For hints: fits({rank: share}, facts) of a sum, of an expert's gradient or not."""

    def of(p):
        found = p.fact("shares")
        return found is not None and expert in (None, p.facts["expert"]) and fits(found, p.facts)

    return of


def _by(fits):
    """Those that should be in the sum are, with one share 1/n: fits(n as a
    fraction's text, N, facts)."""
    return lambda found, facts: (
        [*found] == facts["holders"]
        and len({*found.values()}) == 1
        and fits(next(iter(found.values())), facts)
    )


def _of_sizes(share, facts):
    return share in {f"1/{n}" for n in (*facts["sizes"], m.WORLD)}


EXERCISE = Exercise(
    name="reduce_gradients", reference=libs.reduce_gradients, measure=_measure, worlds=(m.WORLD,),
    may_call=MAY_CALL,
    leaves_out={
        "under way": "a call sums, divides and ends: nothing of it is under way when it returns",
        "generators": "no argument is an iterator; the model's own are asked for anew",
        "returned": "it returns nothing",
        "memory": "one flat buffer of each kind is what it is asked to make",
    },
    claims=(
        claim("the mean over all ranks", 8, "dp, ep of 1 to 4; tied, unused, frozen ones",
              noted(m.CASES, "value", m.CASES[:-1])),
        claim("as one process", 3, "a real backward, dp 2, ep 2",
              noted(m.CASES, "value", m.CASES[-1:])),
        claim("one all-reduce of each kind", 4, "the experts' over their copies, all else over all",
              only_calls(m.CASES, None), _one_of_each_kind),
        claim("parameters left alone", 1, "only .grad changes", noted(m.CASES, "touched"),
              kept(m.CASES)),
    ),
    hints=(
        s.CALLED_LIB,
        s.NO_GROUP.saying(
            "without a group all_reduce takes every rank there is. Pass `world` with what is no "
            "expert's, and expert_dp_group with the experts'."),
        Hint("the parameter, not its gradient", s.either(s.kind("touched"), s.fact("touched")),
             "a parameter itself has changed. Gradients are reduced, p.grad; it is the optimizer "
             "that changes p."),
        s.NARROW,
        Hint("no experts here", s.in_case(m.CASES, lambda case: case.what == m.NO_EXPERTS,
            "raised"),
             "a model without experts has no second flat buffer, and torch.cat takes no empty "
             "list: go on where there is nothing to reduce."),
        Hint("a rank without gradients", s.in_case(m.CASES, lambda case: case.what == m.NOTHING,
            *s.SHAPES, "clash"),
             "a rank may have no gradient at all: it counts as zeros, takes part in both sums, and "
             "has the mean afterwards."),
        Hint("a parameter without gradient",
             s.either(s.kind("form", got="None"), s.both(s.kind("raised"), s.refused("None"))),
             "where this rank did not use a parameter, p.grad is None. It counts as zeros, and "
             "must hold the mean afterwards: p.grad = torch.zeros_like(p)."),
        Hint("frozen ones too", s.kind("frozen"),
             "a parameter with requires_grad False has no gradient: leave it alone, and do not "
             "send it."),
        Hint("looked for by ==", s.both(s.raised("RuntimeError"), s.fact("calls", 0)),
             "`p in experts` compares tensors element by element. Look for id(p) in the set of the "
             "experts' ids."),
        Hint("one kind alone", s.both(s.fact("calls", 1), _shares(
            lambda found, facts: [*found] == [facts["rank"]] != facts["holders"])),
             "both kinds are summed: experts over expert_dp_group, all others over `world`. Here "
             "was one all_reduce."),
        Hint("nothing written back", _shares(lambda found,
            facts: [*found] == [facts["rank"]] != facts["holders"]),
             "the gradient has nothing of the other ranks in it. The flat buffer that was reduced "
             "is a copy: copy its slices back, p.grad.copy_(part.view_as(p))."),
        Hint("experts mixed", _shares(lambda found, facts: not {*found} <= {*facts["holders"]},
            expert=True),
             "other ranks of the expert-parallel group hold other experts. An expert's gradient is "
             "summed over expert_dp_group, the ranks that have the same one."),
        Hint("not divided", _shares(_by(lambda share, facts: share == "1")),
             "all_reduce sums. The loss is the mean of the ranks' losses: divide by N, whichever "
             "the kind."),
        Hint("experts divided by dp", _shares(_by(_of_sizes), expert=True),
             "right where ep is 1. An expert's gradient has come from the tokens of all ranks of "
             "its ep group already: summed over dp ranks, it is the sum over all N = dp ep of "
             "them. Divide it by N."),
        Hint("another group's size", _shares(_by(_of_sizes)),
             "N is the number of ranks of `world`: dist.get_world_size(world)."),
        Hint("divided twice", _shares(_by(lambda share, facts: share != "1")),
             "divide before the all-reduce or after it, not both."),
        Hint("the rest over the experts' group",
             _shares(lambda found, facts: {*found} < {*facts["holders"]}, expert=False),
             "what is no expert's, by moe.expert_parameters and by no name, is replicated, and "
             "each rank has the gradient of its own tokens alone: sum over all ranks, "
             "`world`."),
        Hint("sizes that differ between ranks", s.either(s.hung,
            s.kind("clash", "mismatch", "died")),
             "the ranks of one sum must call it equally often, with flat buffers of one size: a "
             "parameter that this rank did not use keeps its slice, with zeros, and different "
             "experts are not in one sum."),
        Hint("pieces in the wrong places", s.kind("value", "form", "raised"),
             "write back in the order in which you put end to end: each slice begins where the one "
             "before it ends, and has p.numel() elements."),
        s.NOT_GIVEN,
        Hint("one message per parameter", s.kind("calls", same=True),
             "every message costs its latency: put all gradients of a kind end to end, and "
             "all-reduce that once."),
        Hint("other elements", s.kind("calls"),
             "two flat buffers: the experts' trained gradients, over expert_dp_group, and all "
             "others, over `world`. Nothing else is sent, and nothing twice."),
        s.NOT_KEPT,
        *s.ANYWHERE,
    ),
)  # fmt: skip
