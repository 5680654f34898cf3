"""Lab 4, section 2: Zero1(parameters, make_optimizer, group, reduce_scatter, all_gather), a rank's
shard of the update.

Parameters are those of one process on the whole batch; `zero_runs.py` has how a step is looked at.
"""

from functools import partial
from math import isclose

import torch
import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.cases import groups_and_control, in_step, seen
from lib.check.claims import claim
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab4.zero_chain import EACH, SLACK
from lib.check.lab4.zero_models import SEVERAL, STEPS, Setup
from lib.check.lab4.zero_runs import (
    MOMENTS,
    Run,
    built_in,
    by,
    first,
    in_case,
    is_libs,
    numbers,
    value,
)
from lib.check.overlap import Alive
from lib.check.traffic import only_calls
from lib.zero import zero1
from lib.zero.flat import padded_size

NAME, WORLD = "Zero1", 4
TWO = Setup("SGD", models=2)
SETUPS = {
    setup.case(members): setup
    for members, setup in (
        ((0, 1, 2), Setup("SGD", 72)), ((0, 1, 2), Setup("SGD")), ((0, 1, 2, 3), Setup("AdamW")),
        ((1, 3), Setup("AdamW")), ((2,), Setup("AdamW")), ((0, 1, 2), Setup("SGD", idle=1)),
        ((0, 1, 2), TWO),
        ((0, 1, 2), Setup("AdamW", microbatches=2)),
    )
}  # fmt: skip
CASES = tuple(SETUPS)
COUNTED = CASES[2]  # its memory, with AdamW on 4 ranks
TAKEN_APART = CASES[
    1
]  # its two halves of average_gradients() are called by themselves, as Zero2 does
HALVES = ("flatten_gradients", "add_gradient")
AVERAGE, STEP = "average_gradients()", "step()"


class Given(Recorder):
    """gathered: copies of the shards that were to be gathered."""

    gathered = ()

    def all_gather(self, chunk, group=None, out=None):
        self.gathered += (chunk.detach().clone(),)
        return super().all_gather(chunk, group, out)


def _measure(fn):
    return in_step(CASES, groups_and_control, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, places):
    """All steps of a case, up to the first that is wrong on any rank."""
    (group, control), setup = places, SETUPS[case]
    if is_libs(fn, NAME):
        return {"ok": False, "value": built_in(NAME)}
    given = Given(control, [case.members], raises=False)
    alive = Alive() if case == COUNTED else None
    ready = alive.begin if alive else lambda: None
    setups = [setup, Setup("SGD", 72)][: setup.models]
    runs = [Run(case, one, fn, group, given, ready=ready) for one in setups]
    if is_libs(type(runs[0].answer), NAME):
        return {"ok": False, "value": built_in(NAME)}
    for step in range(STEPS):
        if not given.agreed(all(run.value is None for run in runs)):
            break
        for run in runs:
            run.part(step, AVERAGE, partial(run.backward, step))
        for run in runs:
            run.part(step, AVERAGE, run.answer.average_gradients)
            run.averaged(step)
        for run in runs:
            _update(run, step)
    if case == TAKEN_APART and given.agreed(all(run.value is None for run in runs)):
        runs[0].part(STEPS, "by themselves", partial(_halves, runs[0]))
    # one rank alone may send to itself
    made, calls = runs[0].made, given.calls if case.world_size > 1 else []
    return given.record() | {
        "ok": all(run.value is None for run in runs),
        "value": next((run.value for run in runs if run.value), None),
        "mean": next((run.mean for run in runs if run.mean), None),
        "given": sum(shard.numel() for shard in made.shards),
        "state": made.state,
        "bytes": alive.look(*runs[0].model.parameters()) if alive else 0,
        "optimizer": getattr(runs[0].answer, "optimizer", None) is made.optimizer,
        "calls": calls,
        "halves": runs[0].halves,
    }


def _halves(run):
    """What is wrong with flatten_gradients() and add_gradient() is noted in run.halves."""
    trained = [p for p in run.model.parameters() if p.requires_grad]
    want = sum(p.numel() for p in trained) / run.case.world_size
    padded = padded_size(run.case.n, run.case.world_size)
    where, flats = f"{run.case.name}: {run.case.rank(run.rank)}", [run.answer]
    flats = getattr(run.answer, "flats", flats)  # lib's has flats
    for name in HALVES:
        if not all(hasattr(flat, name) for flat in flats):
            run.halves = Problem("halves", f"{where}: Zero1 has no {name}()", {"lacks": name})
            return
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    buffers = [flat.flatten_gradients() for flat in flats]
    left = any(p.grad is not None for p in trained)
    for parameter in trained:
        parameter.grad = None
    form = [tuple(b.shape) if torch.is_tensor(b) else type(b).__name__ for b in buffers]
    if form != [(padded,)] or buffers[0].dtype != run.case.dtype:
        text = f"{where}: flatten_gradients() returns {form[0]}, expected a buffer {(padded,)}"
    elif not isclose(buffers[0].sum().item(), want):
        text = (
            f"{where}: all gradients are 1, and the buffer of flatten_gradients() sums to "
            f"{buffers[0].sum().item():g}, expected {want:g}"
        )
    elif left:
        text = f"{where}: flatten_gradients() leaves a .grad that is not None"
    else:
        text, shard = "", flats[0].shard
        for times in (1, 2):
            flats[0].add_gradient(torch.ones_like(shard))
            if not text and (shard.grad is None or bool((shard.grad != times).any())):
                had = "none" if shard.grad is None else f"{shard.grad[0].item():g}"
                text = (
                    f"{where}: after {times} add_gradient() of ones the shard's .grad is {had}, "
                    f"expected {times}"
                )
        shard.grad = None
    run.halves = Problem("halves", text) if text else None


def _update(run, step):
    shards, given = [shard.detach().clone() for shard in run.made.shards], run.recorder
    gradients = [shard.grad.clone() for shard in run.made.shards if shard.grad is not None]
    given.gathered = ()
    run.part(step, STEP, run.answer.step)
    after = [shard.detach() for shard in run.made.shards]
    run.updated(
        step,
        moved=not all(map(torch.equal, shards, after)),
        gathers=len(given.gathered),
        gathers_new=any(
            torch.equal(gathered, shard) for gathered in given.gathered for shard in after
        ),
        gathers_gradient=any(
            torch.equal(gathered, grad) for gathered in given.gathered for grad in gradients
        ),
        gathers_other=any(
            gathered.numel() != sum(map(torch.numel, after)) for gathered in given.gathered
        ),
        reduces="reduce_scatter" in [call.op for call in given.calls],
        late="reduce_scatter" in [call.op for call in given.calls if call.phase.endswith(STEP)],
    )
    given.gathered = ()


def _state(runs):
    """Each rank's optimizer has a shard and its state, and no more."""
    for _, case, records in seen(runs, CASES):
        N, name = case.world_size, SETUPS[case].optimizer
        padded, given = padded_size(case.n, N), sum(record["given"] for record in records)
        facts = {"case": case, "unpadded": N > 1 and given == case.n < padded}
        for rank, record in enumerate(records):
            where, want = f"{case.name}: {case.rank(rank)}", padded // N
            facts |= {"whole": record["given"] >= case.n > want}
            if record["given"] != want:
                text = (
                    f"{where}: make_optimizer was given {record['given']} elements, expected a "
                    f"shard: "
                )
                return Problem("kept", f"{text}{padded}/{N} = {want}", facts)
            if record["state"] != MOMENTS[name] * want:
                text = (
                    f"{where}: {name} keeps {record['state']} elements of state, expected "
                    f"{MOMENTS[name]} x {want}"
                )
                return Problem("kept", text, facts)
            if not record["optimizer"]:
                text = (
                    f"{where}: self.optimizer is not what make_optimizer has returned; later cells "
                    f"ask for it"
                )
                return Problem("attribute", text, facts)
            # the shard, its gradient, what was sent last may be copies
            allowed = EACH * (MOMENTS[name] + 3) * want
            if record["bytes"] > allowed + SLACK:
                text = (
                    f"{where}: after the last step {record['bytes']} bytes are kept beside the "
                    f"parameters, "
                )
                text += f"expected {allowed} at most"
                return Problem("memory", text, facts)
    return None


def _expected(case, rank):
    sizes = [case.n, 72][: SETUPS[case].models] if case.world_size > 1 else []
    padded = [padded_size(n, case.world_size) for n in sizes]
    return [
        call
        for step in range(1, STEPS + 1)
        for call in (
            *(("reduce_scatter", f"step {step}, {AVERAGE}", n) for n in padded),
            *(("all_gather", f"step {step}, {STEP}", n // case.world_size) for n in padded),
        )
    ]


def _several(case):
    return SEVERAL in case.what


EXERCISE = Exercise(
    name=NAME,
    reference=zero1.Zero1,
    measure=_measure,
    worlds=(WORLD,),
    # A flat of lib's may be part of an answer.
    may_call=(
        *MAY_CALL, "zero1.all_gather", "flat.__init__", "zero1.reduce_gradients",
        "zero1.gather_parameters", "flat.gather",
    ),
    leaves_out={
        "memory": "every rank has full weights and gradients; what stays after a step is "
                  "counted",
        "returned": "nothing is returned: the model and the shard hold the result",
    },
    claims=(
        claim("as one process, step by step", 7,
              "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused",
            first(CASES, "value", lambda case: not _several(case))),
        claim("micro-batches add up", 2, "two of them, then one step", first(CASES, "value")),
        claim("1/N of the optimizer's state", 8,
              "padded/N elements, and AdamW's two moments of them", _state),
        claim("the mean in the shard", 3, "in its .grad; the parameters' gradients are gone",
              first(CASES, "mean")),
        claim("one message each way", 4, "padded elements each, by those it was given",
              only_calls(CASES, _expected), first(CASES, "halves")),
    ),
    hints=(
        s.BUILT_IN.saying(
            "build it yourself: a flat buffer of zeros, the parameters copied into it, and a shard "
            "of it for the optimizer."),
        s.NO_GROUP.saying(
            "pass `self.group` on: self.reduce_scatter(buffer, self.group), "
            "self.all_gather(shard, self.group)."),
        Hint("a parameter without gradient", s.refused("None"),
             "a parameter that this rank did not use has .grad None. Its part of the buffer "
             "stays zero."),
        Hint("not on every rank",
             lambda p: p.kind == "clash" and bool(p.fact("over") or len({*p.facts["ops"]}) > 1),
             "every rank of the group calls reduce_scatter once in average_gradients(), and "
             "all_gather once in step(), also one that has no gradients."),
        s.NARROW,
        s.WRONG_DTYPE.also(s.refused("dtype")),
        Hint("ranks of the world, not of the group",
             s.either(s.both(numbers, in_case(CASES, lambda case: case.members == (1, 3))),
                      by(lambda N: N / WORLD)),
             "ranks are counted within the group: dist.get_rank(group), "
             "dist.get_world_size(group), also where you divide."),
        Hint("the padding is missing",
            s.either(
                s.fact("unpadded"),
                s.both(
                    numbers,
                    lambda p: p.kind != "value",
                    in_case(CASES, lambda case: case.n == 77 and SETUPS[case].models == 1),
                ),
            ),
             "with 72 parameters it was right: N divides them. Make the buffer as long as the next "
             "multiple of N, -(-n // N) * N, with zeros at its end: then all shards are of one "
             "size."),
        Hint("kept for all of the class", s.both(numbers, in_case(CASES,
            lambda case: SETUPS[case].models > 1)),
            "two models are trained side by side, each by a Zero1 of its own, and one's state went "
            "to the other. Keep everything on self: nothing on the class, in a global or in a "
            "default argument."),
        Hint("not the one it was given",
            s.either(s.kind("another way"), s.both(s.kind("calls"), lambda p: not p.facts["got"])),
             "the caller of your class chooses the collectives: call self.reduce_scatter and "
             "self.all_gather."),
        Hint("gradients sent in step()",
             s.either(value(lambda f: f["late"]), s.both(s.kind("calls"), lambda p: any(
                 op == "reduce_scatter" and phase.endswith(STEP)
                 for op, phase, _ in p.facts["got"]))),
             "average_gradients() sums them and frees them, once; clipping comes between. step() "
             "updates and gathers."),
        Hint("more than one message", s.both(s.kind("calls"),
            lambda p: len(p.facts["got"]) > len(p.facts["want"])),
             "one buffer for all parameters: one reduce_scatter, one all_gather, however many "
             "parameters there are."),
        Hint("other elements", s.either(s.kind("calls"), value(lambda f: f["gathers_other"])),
             "reduce_scatter takes the padded buffer, all_gather this rank's shard, padded/N."),
        Hint("values lost", s.kind("lost"),
             "the model is to compute what it did: copy every parameter into its part of the "
             "buffer, and only then make it a view of that part."),
        Hint("a frozen parameter", value(lambda f: f["frozen"]),
             "parameters without requires_grad are left alone. They are not in the buffer: "
             "weight decay would move them."),
        Hint("no gradient in the shard", value(lambda f: f["still"] and not f["has_gradients"]),
             "the optimizer steps on what it was given, the shard. Put the mean gradient in "
             "`self.shard.grad`."),
        Hint("gradients of zeros", value(lambda f: f["zeros"]),
             "the mean in the shard is zeros: read the parameters' .grad into the buffer before "
             "they become None."),
        Hint("the optimizer does not step", value(lambda f: not f["state"]),
            "step() calls self.optimizer.step() first, then gathers what it has changed."),
        Hint("the gradient gathered", value(lambda f: f["gathers_gradient"]),
             "what the other ranks lack are this rank's new values: all_gather(self.shard, group), "
             "not its gradient."),
        Hint("the model does not see it",
             value(lambda f: (f["still"] or f["partly"]) and f["gathers_new"]),
             "the new values were gathered, but the model's parameters are elsewhere. Make every "
             "parameter a view of the buffer, p.data = buffer[begin:end].view(p.shape), and copy "
             "what is gathered into that same buffer."),
        Hint("the optimizer's shard is a copy",
             value(lambda f: f["moved"] and f["gathers"]
                   and (f["still"] or not (f["partly"] or f["gathers_new"]))),
             "the optimizer has changed one tensor, and another one was gathered. The shard must "
             "share memory with the buffer (chunk and detach do, clone does not), or be what you "
             "gather."),
        Hint("gathered before the step",
             value(lambda f: f["step"] == 0 and f["partly"] and f["gathers"]),
             "this rank's shard is new, the others' are old: first self.optimizer.step(), then "
             "all_gather."),
        Hint("not gathered", value(lambda f: f["step"] == 0 and not f["gathers"] and f["partly"]),
             "each rank has updated its shard, and no other rank has it: step() ends with an "
             "all_gather of the shards."),
        Hint("the ranks' gradients are not summed",
             value(lambda f: not f["reduces"] or f["one_rank"]),
             "each rank has updated its shard by its own gradient. Reduce-scatter the buffer in "
             "average_gradients(), and keep what that returns."),
        Hint("averaged twice", by(lambda N: 1 / N),
             "the sum is divided by N once: before reduce_scatter or after it, not both."),
        Hint("not averaged", value(lambda f: f["factor"] is not None),
             "reduce_scatter sums. Divide the buffer by the number of ranks."),
        Hint("a new optimizer in each step", value(lambda f: f["made"] > 1),
             "an optimizer that is made anew has forgotten its moments. Call make_optimizer once, "
             "in __init__."),
        Hint("only the last micro-batch", s.both(numbers, in_case(CASES, _several)),
             "gradients of several backwards add up in .grad. Read them in average_gradients(), "
             "when all are there, or add."),
        Hint("left over from the step before", value(lambda f: f["step"] > 0),
             "right in the first step. The buffer of gradients begins with zeros in every step."),
        Hint("another offset in the buffer", s.either(s.kind("value", "form"), s.refused("shape")),
             "a parameter, its gradient and its part of what is gathered have the same offset in "
             "the buffer, from `begin` to `begin + p.numel()`. Advance `begin` by p.numel() for "
             "every parameter, also for one without gradient."),
        Hint("the full state", s.kind("kept", whole=True),
             "the optimizer keeps state for all that it is given. Give it only this rank's shard: "
             "make_optimizer([self.shard])."),
        Hint("a shard of another size", s.kind("kept"),
             "pad the buffer once, to the next multiple of N, and split it into N equal shards, "
             "wherever parameters begin and end."),
        Hint("a full buffer is kept", s.kind("memory"),
             "only one buffer is as long as all parameters, of which they are views. The buffer of "
             "gradients and what is gathered are allocated in each step, and freed."),
        Hint("another name for the optimizer", s.kind("attribute"),
             "later cells call sharded.optimizer.zero_grad(): keep what make_optimizer returns as "
             "self.optimizer."),
        Hint("gradients not dropped", s.kind("left"),
             "the next backward would add to what is left. Set every parameter's .grad to None in "
             "average_gradients()."),
        Hint("its halves by themselves", s.kind("halves"),
             "Zero2 calls the two halves of average_gradients() by itself: flatten_gradients() "
             "returns a new buffer, (padded,), divided by N, and sets every .grad to None; "
             "add_gradient(shard) adds to self.shard.grad."),
        Hint("no mean in the shard", s.kind("no mean"),
             "clipping and logging read it there: after average_gradients() the mean is in the "
             "shard's .grad, not the sum."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
