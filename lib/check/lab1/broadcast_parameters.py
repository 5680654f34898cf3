"""Lab 1, section 3: broadcast_parameters(module, group), after which all ranks hold rank 0's model."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0.cases import called, form_of, groups_of, in_step, is_a, number, seen
from lib.check.lab0.mistakes import hung
from lib.check.lab1.cases import GROUPS, GROUPS_SAY, Case, group_argument
from lib.check.lab1.models import Small
from lib.check.lab1.wire import COLLECTIVES, elements_broadcast
from lib.data_parallel import replicate

CASES = [Case("broadcast_parameters", members) for members in GROUPS]


def _tensors(model):
    """{name: tensor} of parameters and buffers; a tied one has its first name."""
    return dict([*model.named_parameters(), *model.named_buffers()])


def _model(rank):
    return Small(seed=20 + rank)


def _measure(fn):
    def one(case, group):
        rank = case.members.index(dist.get_rank())
        model = _model(rank).to(backend.device())
        before, places = _tensors(model), {name: t.data_ptr() for name, t in _tensors(model).items()}
        wants = {name: t.requires_grad for name, t in before.items()}
        called(case, fn, model, *group_argument(group))
        after = _tensors(model)
        values = {name: t.detach().cpu() for name, t in after.items()}
        root = _tensors(_model(0).cpu())
        return {
            "ok": all(is_a(values.get(name), t) for name, t in root.items()),
            "values": values,
            "replaced": [n for n, t in before.items() if after.get(n) is not t or t.data_ptr() != places[n]],
            "asks": [n for n, t in after.items() if t.requires_grad != wants.get(n)],
        }  # fmt: skip

    return in_step(CASES, groups_of, one, dist.new_group())


def _what_arrives(runs):
    for _, case, records in seen(runs, CASES):
        wrong = [rank for rank, record in enumerate(records) if not record["ok"]]
        if wrong:
            return _what_is_wrong(case, wrong, records[wrong[0]]["values"])
    return None


def _what_is_wrong(case, wrong, values):
    rank, N = wrong[0], case.world_size
    models = [_tensors(_model(r)) for r in range(N)]
    off = [name for name in models[0] if not is_a(values.get(name), models[0][name])]
    out, want = values.get(off[0]), models[0][off[0]].detach()
    line = f"{case.where}: {case.rank(rank)}, {off[0]}"
    facts = {"case": case, "off": off, "all": len(off) == len(models[0])}
    if out is None or out.shape != want.shape or out.dtype != want.dtype:
        return Problem("replaced", f"{line}: expected {form_of(want)}, got {form_of(out)}")
    element = tuple((out != want).nonzero()[0].tolist())
    at = f"element {element[0] if len(element) == 1 else element}"
    line += f", {at}: expected {number(want[element])}, got {number(out[element])}"
    facts["source"] = next((r for r in range(N) if torch.equal(out, models[r][off[0]])), None)
    total = sum(model[off[0]] for model in models).detach()
    facts["sum"] = torch.equal(out, total) or torch.allclose(out.double(), total / N)
    facts["own"] = facts["source"] == rank
    whose = {None: "no rank's", rank: "still its own"}.get(facts["source"], f"rank {facts['source']}'s")
    text = f"It is {whose}; expected rank 0's. Wrong on this rank: {_some(off, len(models[0]))}."
    return Problem("value", f"{line}\n{text}", facts)


def _some(names, total):
    return f"all {total} tensors" if len(names) == total else ", ".join(names)


def _in_place(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            where = f"{case.where}: {case.rank(rank)}"
            if record["replaced"]:
                name = record["replaced"][0]
                text = f"{where}, {name}: there is another tensor in its place; expected the old one, written to"
                return Problem("replaced", text)
            if record["asks"]:
                return Problem("requires_grad", f"{where}, {record['asks'][0]}: its requires_grad has changed")
    return None


def _messages(runs):
    n = sum(tensor.numel() for tensor in _tensors(_model(0)).values())
    for run, case, _ in seen(runs, CASES):
        problem = elements_broadcast(run, case, n)
        if problem:
            return problem
    return None


def _value(p, fits):
    return p.kind == "value" and bool(fits(p.facts))


def _twice(p):
    model = _model(0)
    listed = sum(t.numel() for t in model.state_dict().values())
    return p.kind == "wire" and p.facts["got"] == (p.facts["N"] - 1) * listed


BUFFERS, FROZEN = {"mean", "seen"}, {"scale"}

EXERCISE = Exercise(
    name="broadcast_parameters",
    reference=replicate.broadcast_parameters,
    measure=_measure,
    worlds=(4,),
    may_call=COLLECTIVES,
    claims=(
        Claim("rank 0's model on every rank", 3, f"{GROUPS_SAY}; tied, frozen, buffers", _what_arrives),
        Claim("in place", 1, "the same tensors, their requires_grad unchanged", _in_place),
        Claim("elements on the wire", 2, "(N-1)n over all ranks", _messages),
    ),
    hints=(
        Hint("called lib's", lambda p: p.kind == "built-in", "build it from collectives.broadcast or dist.broadcast."),
        Hint(
            "a root of the world, not of the group",
            lambda p: p.kind == "raised" and "group" in p.text and "rank" in p.text.lower() and "leaf" not in p.text,
            "dist.broadcast's src is a rank of the world. Rank 0 of the group is group_src=0, or use "
            "collectives.broadcast(tensor, 0, group).",
        ),
        Hint(
            "in place on a leaf",
            lambda p: p.kind == "raised" and "leaf" in p.text,
            "autograd guards parameters: write to them under @torch.no_grad(), or to p.detach(), which shares their "
            "memory.",
        ),
        Hint(
            "not every rank takes part",
            lambda p: hung(p) or p.kind in ("mismatch", "died"),
            "a broadcast is called by every rank of the group, with the same root, the same tensors in the same order, "
            "and `group`.",
        ),
        Hint(
            "buffers forgotten",
            lambda p: _value(p, lambda f: set(f["off"]) == BUFFERS),
            "the buffers still differ. module.parameters() has no buffers: module.buffers() are needed too.",
        ),
        Hint(
            "frozen ones forgotten",
            lambda p: _value(p, lambda f: FROZEN <= set(f["off"]) <= FROZEN | BUFFERS),
            "a parameter with requires_grad False has no gradient, but it has a value, which must be rank 0's too.",
        ),
        Hint(
            "the sum or the mean of all",
            lambda p: _value(p, lambda f: f["sum"]),
            "that is all ranks' values summed or averaged. Every rank must get rank 0's.",
        ),
        Hint(
            "nothing is delivered",
            lambda p: _value(p, lambda f: f["own"] and f["all"]),
            "no tensor of the model was written. Broadcast into the parameters themselves: `p = ...` and p.clone() "
            "leave the model as it was.",
        ),
        Hint(
            "another rank's",
            lambda p: _value(p, lambda f: f["source"] is not None and not f["own"]),
            "the root is rank 0 of the group.",
        ),
        Hint("some are left out", lambda p: p.kind == "value", "all parameters and all buffers, one by one."),
        Hint(
            "another tensor in its place",
            lambda p: p.kind == "replaced",
            "the optimizer and the tied layers hold the old tensor. Receive into it, or copy: p.copy_(received).",
        ),
        Hint("requires_grad changed", lambda p: p.kind == "requires_grad", "leave requires_grad as it was."),
        Hint(
            "tied ones twice",
            _twice,
            "module.state_dict() lists a tied parameter under both its names. module.parameters() gives it once.",
        ),
        Hint(
            "everyone sends",
            lambda p: (
                p.kind == "wire" and (p.facts["got"] == 0 or p.facts["got"] >= 2 * (p.facts["N"] - 1) * p.facts["n"])
            ),
            "only rank 0's values are needed: a broadcast sends (N-1)n. An all-gather sends N(N-1)n, an all-reduce "
            "2(N-1)n.",
        ),
    ),
)
