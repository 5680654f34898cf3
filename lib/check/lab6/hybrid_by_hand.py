"""Lab 6, section 2: HybridByHand, a class that trains a GPT on a mesh, on 2 and on 8 ranks, beside
one process.

    step     0                            1
    clipped  with a pipeline: to 0.5 |g|  to 2 |g|
             without: to 2 |g|, so not
    shows    loss, norm                   the update: who scaled what is short,
                                          who did not scale what is long,
                                          who kept gradients, copies that part

Losses and norms, equal on all ranks to 12 digits of one process's, are all that is looked at: every
parameter that an update has got wrong is in the next loss. What step 0 sends is compared with
lib.cost.volume, axis by axis.
"""

import functools

import torch
import torch.distributed as dist

from lib import hybrid
from lib.check import symptoms as s
from lib.check.cases import form_of, in_step, seen
from lib.check.claims import CAUSES, claim, is_number
from lib.check.comm import COLLECTIVES
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab6.hybrid_by_hand_cases import (
    CALLS,
    RATE,
    STEPS,
    Counted,
    batch_of,
    called,
    cases,
    clipped_to,
    label,
    one_process,
    volume,
)  # fmt: skip
from lib.check.lab6.hybrid_by_hand_cases import rows_of_microbatch as rows_of
from lib.check.lab6.on_a_mesh import SHAPE, PlainSGD, new_mesh, small_gpt
from lib.hybrid import local_batch
from lib.hybrid.mesh import axes_of, sent_along

NAME = "HybridByHand"
TOLERANCE = 1e-12
FEW = 8  # numbers on each rank beside the formula's: the loss, the norm, in whatever way
OF_OTHER_LABS = (
    "links.connect", "stage.__init__", "stage.execute", "stage.run",
    "vocabulary.vocab_parallel_cross_entropy", "gpt.loss", "gpt.sum_gradients",
    "sequence.sum_gradients", "bucketed.reduce_bucket", "clip.squared_norm", "clip.clip_gradients",
    "sets.global_norm", "by_hand.average_over_mesh", "by_hand.norm_over_mesh",
)  # fmt: skip


def _meshes(cases_):
    made = {}
    return {case: new_mesh(case.sizes, made) for case in cases_}


def _measure(fn):
    return in_step(
        cases(dist.get_world_size()), _meshes, functools.partial(_one, fn), wire=dist.new_group()
    )


def _one(fn, case, mesh):
    """All steps of a case, up to the first that is wrong on this rank: seen,
    [[loss, norm], ...]."""
    average, norm_of = Counted(hybrid.average_over_mesh), Counted(hybrid.norm_over_mesh)
    batches = [[local_batch(each, mesh) for each in batch_of(step)] for step in range(STEPS)]
    given = (small_gpt(), mesh, batches[0][0], rows_of(case), functools.partial(PlainSGD, lr=RATE))
    answer = called(label(case, CALLS[0]), fn, *given, average=average, norm_of=norm_of)
    record = {"ok": False, "value": None, "seen": [], "used": [], "all of pp": False}
    if _is_libs(answer):
        return record | {
            "value": Problem(
                "built-in", "it is lib's Hybrid, which does what this exercise asks for"
            )
        }
    for step, (batch, (loss, norm, most)) in enumerate(
        zip(batches, one_process(clipped_to(case)), strict=True)
    ):
        average.count = norm_of.count = 0
        got = [called(label(case, "backward", step), answer.backward, *batch)]
        got.append(called(label(case, "clip", step), answer.clip, most))
        called(label(case, "step", step), answer.step)
        record["used"].append((average.count, norm_of.count))
        record["all of pp"] |= case.sizes["pp"] > 1 and any(
            one is mesh.group("pp") for one in average.args[2:]
        )
        record["seen"].append([_number(each) for each in got])
        where = f"{case.name}: {case.rank(dist.get_rank())}, step {step}"
        record["value"] = record["value"] or _wrong(where, step, got, (loss, norm))
    return record | {"ok": record["value"] is None}


def _is_libs(answer):
    theirs = (hybrid.Hybrid, hybrid.HybridByHand)
    return isinstance(answer, theirs) or any(
        isinstance(one, theirs) for one in vars(answer).values()
    )


def _number(got):
    """A plain float of one number; None of anything else."""
    if torch.is_tensor(got) and got.numel() == 1:
        return got.item()
    return float(got) if is_number(got) else None


def _wrong(where, step, got, want):
    """The Problem of a loss or a norm. facts: what, step, ratio to what is expected."""
    for what, one, right in zip(("loss", "norm"), got, want, strict=True):
        facts, number = {"what": what, "step": step, "none": one is None}, _number(one)
        if number is None:
            said = form_of(one) if torch.is_tensor(one) or one is None else type(one).__name__
            return Problem("form", f"{where}: {what}: expected one number, got {said}", facts)
        if not abs(number - right) <= TOLERANCE * abs(right):
            facts |= {"ratio": number / right, "narrowed": abs(number / right - 1) < 1e-6}
            return Problem(
                "value", f"{where}: {what}: expected {right:.9f}, got {number:.9f}", facts
            )
    return None


def _as_one_process(runs):
    """The Problem of the rank that is wrong earliest; facts: apart, ranks differ; stage, only those
    of a stage are."""
    for run in runs:
        for _, case, records in seen([run], cases):
            wrong = {
                rank: record["value"] for rank, record in enumerate(records) if record["value"]
            }
            if not wrong:
                continue
            first = min(wrong, key=lambda rank: (CAUSES.get(wrong[rank].kind, 2),
                wrong[rank].fact("step", 0),
                                                 wrong[rank].fact("what") != "loss",
                                                 rank))  # fmt: skip
            problem = wrong[first]
            step, which = (
                problem.fact("step", 0),
                ("loss", "norm").index(problem.fact("what", "loss")),
            )
            numbers = [
                record["seen"][step][which] if record["seen"] else None for record in records
            ]
            right = [rank for rank in range(case.world_size) if rank not in wrong]
            problem.facts |= {"case": case, "apart": _differ(numbers), "right": right}
            if problem.kind == "value" and problem.facts["apart"]:
                problem.text += "\n" + _listed(problem.facts["what"], numbers)
            if problem.kind in ("value", "form"):
                problem.trace = [
                    case.name,
                    problem.facts["what"],
                    step,
                    [r["seen"][: step + 1] for r in records],
                ]
            return problem
    return None


def _differ(numbers):
    known = [number for number in numbers if number is not None]
    return len(known) < len(numbers) or max(known) - min(known) > TOLERANCE * max(map(abs, known))


def _listed(what, numbers):
    said = ", ".join("nothing" if n is None else f"{n:.4f}" for n in numbers)
    return f"The ranks' {'losses' if what == 'loss' else 'norms'}: {said}"


def _over_its_axes(runs):
    """Elements of step 0 along each axis; facts: axis, more, among."""
    for run, case, _ in seen(runs, cases):
        sent = {}
        for call in CALLS[1:]:
            for axes, n in sent_along(
                run.ledger.section(label(case, call, 0)).entries, case.sizes
            ).items():
                sent[axes] = sent.get(axes, 0) + n
        want, few = volume(case), FEW * case.world_size
        odd = next((axes for axes, n in sent.items() if len(axes) != 1 and n > few), None)
        if odd:
            text = (
                f"{case.name}: step 0 sent {sent[odd]} elements along {' and '.join(odd)} "
                f"together, expected none"
            )
            return Problem(
                "elements",
                text,
                {"case": case, "axis": odd, "more": True},
                [case.name, odd, sent[odd]],
            )
        for axis, n in want.items():
            got = sent.get((axis,), 0)
            if abs(got - n) > few:
                text = (
                    f"{case.name}: step 0 sent {got} elements along {axis}, expected {n}, give or "
                    f"take {few}"
                )
                return Problem(
                    "elements",
                    text,
                    {"case": case, "axis": axis, "more": got > n},
                    [case.name, axis, got],
                )
    return None


def _with_what_is_given(runs):
    for _, case, records in seen(runs, cases):
        for rank, record in enumerate(records):
            if (used := record["used"][0]) != (1, 1):
                text = (
                    f"{case.name}: {case.rank(rank)} called average {used[0]} times in step 0, "
                    f"norm_of {used[1]} times"
                )
                return Problem(
                    "another way", f"{text}; expected once each", {"case": case}, [case.name, used]
                )
            where = f"{case.name}: {case.rank(rank)}"
            if record["all of pp"]:
                return Problem(
                    "ends",
                    f"{where} called average with the group of all stages for that of the ends",
                )
    return None


def _in_micro_batches(runs):
    """On pp=2 what one micro-batch sends on is b rows, not more and not less."""
    for run, case, _ in seen(runs, cases):
        if case.sizes["pp"] > 1:
            entries = run.ledger.section(label(case, "backward", 0)).entries
            got = max(
                one.numel
                for one in entries
                if one.op == "send" and axes_of(one.members, case.sizes) == ("pp",)
            )
            want = rows_of(case) * SHAPE.seq_len * SHAPE.hidden // case.sizes["tp"]
            if got != want:
                text = (
                    f"{case.name}: the largest message along pp has {got} numbers; {rows_of(case)} "
                    f"rows have {want}"
                )
                return Problem("micro-batches", text)
    return None


def _of(what, step=None, **facts):
    """Is it a wrong loss or norm: of this step, or of any after the first; with such facts?"""

    def fits(p):
        at = p.fact("step")
        return (
            p.kind == "value"
            and p.fact("what") == what
            and (at == step if step is not None else at is not None and at > 0)
            and all(bool(p.fact(name)) == want for name, want in facts.items())
        )

    return fits


def _ratio(*ratios):
    return lambda p: (
        p.fact("ratio") is not None and any(abs(p.facts["ratio"] - one) < 1e-9 for one in ratios)
    )


def _raised(where, *types):
    """Did a step raise one of these, on a mesh whose name begins so?"""
    return lambda p: (
        s.raised(*types)(p) and s.failed(p).case.startswith(where) and not _in_making(p)
    )


def _in_making(p):
    return s.failed(p) is not None and CALLS[0] in s.failed(p).case


HINTS = (
    s.CALLED_LIB,
    s.NARROW,
    Hint("another pipeline", s.either(_raised("", "ScheduleError"), _raised("pp=2", "ValueError")),
         "one_f_one_b(p, m): p stages, mesh.size(\"pp\"), and m micro-batches of this rank's rows. "
         "And links lie along pp: all_groups([\"pp\"], mesh.sizes)."),
    Hint("another tensor group", _raised("pp=1", "ValueError"),
         'the part of the model and its loss are sharded over the same ranks: mesh.group("tp") for '
         'both.'),
    Hint("a part of the vocabulary", s.raised("IndexError"),
         "a tp rank has the logits of a part of the words: vocab_parallel_cross_entropy(logits, "
         "target, tp)."),
    Hint("nothing on other stages", s.kind("form", what="loss"),
         "only the last stage knows a loss: execute returns {} elsewhere. The others add 0 where "
         "the losses are summed along pp, and every rank returns one number."),
    Hint("no norm returned", s.kind("form", what="norm"),
         "clip returns the norm, as norm_of gave it."),
    Hint("a part of the parameters", s.both(s.refused("None"), lambda p: not _in_making(p)),
         "a parameter without a gradient is another stage's: free_other_stages(part, blocks, "
         "[your stage]) first, then sets_of(part, pipeline.tied)."),
    Hint("cannot be made", _in_making,
         "in order: part of the model over tp, blocks of each stage, links along pp, the pipeline, "
         "the sets of this stage's parameters, the optimizer on all of them."),
    Hint("not on every rank", s.either(s.hung, s.kind("mismatch", "died")),
         "every rank of a group calls all_reduce, in one order, with equal sizes: a stage without "
         "a loss too, with 0."),
    Hint("its own rows' loss", _of("loss", 0, apart=True),
         "each data rank has a loss of its own rows, and the last stage alone has it: sum it along "
         "pp, where the others add 0, then along dp, and divide by the size of dp."),
    Hint("each micro-batch's mean", s.both(_of("loss", 0, apart=False),
        lambda p: not _ratio(2, 0.5)(p)),
         "micro-batches have unequal numbers of rows: a micro-batch's mean loss counts with its "
         "share of this rank's rows, len(target) / len(targets)."),
    Hint("divided too often", s.both(_of("loss", 0), _ratio(0.5)),
         'one division, by mesh.size("dp"): along pp the other stages add 0, and micro-batches\' '
         'shares add up to 1.'),
    Hint("summed, not averaged", s.both(_of("loss", 0), _ratio(2)),
         "along dp ranks have losses of their own, and the whole batch's is their mean: divide by "
         "mesh.size(\"dp\")."),
    Hint("gradients of a part", _of("norm", 0),
         "the losses are right, so are the gradients of this rank's rows. After execute() they are "
         "summed by average, once, and the tied ones in it; then comes the norm, of the sums."),
    Hint("gradients are kept", s.both(_of("norm"), lambda p: p.fact("step") == 1),
         "the next step adds to what is in .grad: zero_grad after each update."),
    Hint("another update", _of("loss"),
         "losses of the first step are right, those of the next are not: the update was another "
         "one. First the norm, then all gradients are scaled, every list of them, by min(1, "
         "max_norm / norm), then the optimizer steps."),
    Hint("too much along an axis", s.kind("elements", more=True),
         "the values are right, and more was sent than they need: something is summed twice, or "
         "over ranks that have it already."),
    Hint("too little along an axis", s.kind("elements"),
         "the values are right, and less was sent along this axis than a hybrid step of these "
         "degrees sends: do its ranks share the work?"),
    Hint("two stages only", s.kind("ends"),
         "of two stages both are ends. With more, those between have no tied ones: links.ends is "
         "the group of both."),
    Hint("other micro-batches", s.kind("micro-batches"),
         "b is the number of rows of a micro-batch, tokens.split(b), and not how many there are, "
         "tokens.chunk(b)."),
    s.NOT_GIVEN.saying(
        "average and norm_of are arguments: call each once a step, and neither lib's nor your own "
        "of another cell."),
    *s.ANYWHERE,
)  # fmt: skip

EXERCISE = Exercise(
    name=NAME, reference=hybrid.HybridByHand, measure=_measure, worlds=(2, 8),
    may_call=(*COLLECTIVES, *OF_OTHER_LABS, "framework._measure_all",
    "hybrid_by_hand_cases.__call__"),
    leaves_out={
        "under way": "a step ends before the next begins",
        "empty rank": "every rank has rows and a stage",
        "alone": "a mesh is of several ranks; each axis has one rank in some mesh",
        "generators": "no argument is an iterator",
        "memory": "the schedule says what is kept: Lab 2 looks at it",
        "attributes": "no later cell reads one",
    },
    claims=(
        claim("losses and norms", 11, "as in a single process: two steps, 2 and 8 ranks",
              _as_one_process),
        claim("elements sent", 5, "along tp, pp and dp, as lib.cost.volume says",
              _over_its_axes,
              _in_micro_batches),
        claim("calls average and norm_of", 2, "each of them once per step", _with_what_is_given),
    ),
    hints=HINTS,
)  # fmt: skip
