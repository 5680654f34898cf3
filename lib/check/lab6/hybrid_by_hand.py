"""Lab 6, section 2: HybridByHand, a class that trains a GPT on a mesh, on 2 and on 8 ranks.

    step 0    shows the loss and the norm of the gradient g. With a pipeline, max_norm is 0.5 |g|,
              so g is clipped. Without one it is 2 |g|, so g is not clipped
    step 1    shows whether the update of step 0 was right: whether g was scaled if, and only if, it
              exceeded max_norm, whether gradients were left over, and whether the copies of a
              parameter differ

We judge the updated parameters by losses and norms alone, because a wrong update of any parameter
changes the next loss. Losses and norms have to agree with lib's to 12 digits on every rank. What
step 0 sends is compared with lib.cost.volume, axis by axis.
"""

import functools
from collections import Counter
from dataclasses import replace

import torch

from lib import hybrid
from lib.check.cases import seen
from lib.check.causes import hints
from lib.check.claims import is_number
from lib.check.comm import COLLECTIVES
from lib.check.exercise import Problem
from lib.check.lab6 import on_a_mesh
from lib.check.lab6.on_a_mesh import SHAPE, batch_of, mesh_case
from lib.check.side_by_side import SideBySide
from lib.cost.volume import step_volume
from lib.hybrid import by_hand, local_batch, train
from lib.hybrid.mesh import axes_of, sent_along

# No axis has more than 2 ranks, so an all-reduce sends 2 n elements in all with any algorithm.
ALL_AXES = mesh_case(2, 2, 2, on_a_mesh.TURNED)
CASES = (mesh_case(2, 1, 1), mesh_case(1, 2, 1), mesh_case(1, 1, 2), ALL_AXES)
WORLDS = (2, 8)
ROWS, STEPS, RATE = 6, 2, 0.5
CLIPPED, SHORT = 0.5, 2  # max_norm, in units of the norm of step 0's gradient
FEW = 8  # values per rank beyond the formula's: the loss and the norm, however they are sent
USED, ENDS = "calls of average and norm_of", "the group of the ends"
OF_OTHER_LABS = (
    "links.connect", "stage.__init__", "stage.execute", "stage.run",
    "vocabulary.vocab_parallel_cross_entropy", "gpt.loss", "gpt.sum_gradients",
    "sequence.sum_gradients", "bucketed.reduce_bucket", "clip.squared_norm", "clip.clip_gradients",
    "sets.global_norm", "by_hand.average_over_mesh", "by_hand.norm_over_mesh",
)  # fmt: skip


@functools.cache
def norm_of_step_0():
    """The norm of step 0's gradient, in a single process."""
    model = on_a_mesh.small_gpt()
    model.loss(*batch_of(ROWS)).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item()


def rows_of_microbatch(case):
    """2 of the 3 rows on a rank, or 4 of 6, so that the last micro-batch has fewer rows."""
    return 2 if case.sizes["dp"] == 2 else 4


def script(make, case, place, show):
    """Two steps."""
    (mesh, _), used, trained = place, Counter(), []

    def make_optimizer(parameters):
        optimizer = on_a_mesh.PlainSGD(parameters, lr=RATE)
        trained.extend(p for group in optimizer.param_groups for p in group["params"])
        return optimizer

    def average(*args, **named):
        all_of_pp = any(one is mesh.group("pp") for one in (*args, *named.values()))
        used.update(average=1, all_of_pp=all_of_pp and case.sizes["pp"] > 1)
        return hybrid.average_over_mesh(*args, **named)

    def norm_of(*args, **named):
        used.update(norm_of=1)
        return hybrid.norm_over_mesh(*args, **named)

    batches = [[local_batch(x, mesh) for x in batch_of(ROWS, step)] for step in range(STEPS)]
    # Gradients are clipped in cases with a pipeline, and short enough in those without one.
    max_norm = norm_of_step_0() * (SHORT if case.sizes["pp"] == 1 else CLIPPED)
    given = on_a_mesh.small_gpt(), mesh, batches[0][0], rows_of_microbatch(case), make_optimizer
    with show.during("making it", section=True) as run:
        answer = run(make, *given, average=average, norm_of=norm_of)
    show("parameters that the optimizer gets", len(trained))
    for step, batch in enumerate(batches):
        used.clear()
        calls = ("loss", "backward", batch), ("norm", "clip", [max_norm]), ("", "step", [])
        for name, method, args in calls:
            with show.during(f"{method} of step {step}", section=True) as run:
                out = run(getattr(answer, method), *args)
            if name:
                number = one_number(out)
                show(name, number, beside=apart(number, name, show.wire))
        show(USED, f"{used['average']} and {used['norm_of']}")
        words = "average got the group of all stages, which is that of the ends on two stages only"
        show(ENDS, words if used["all_of_pp"] else "")
        left = sum(p.grad is not None for p in trained)
        told = f"{left} of {len(trained)} .grads are not None after step" if left else ""
        show("gradients after step", told)
        if show.wrong("loss", "norm"):
            return


def one_number(out):
    """A number as a float64 tensor (); anything else is returned unchanged."""
    if torch.is_tensor(out) and out.numel() == 1:
        return out.detach().double().reshape(())
    return torch.tensor(float(out), dtype=torch.float64) if is_number(out) else out


def apart(number, name, wire):
    """What each rank returned, in words, if not all returned the same."""
    is_one = torch.is_tensor(number) and not number.dim()
    mine = f"{number:.4f}" if is_one else "none"
    # of one length on all ranks: the longest float64 has 309 digits before its point
    told = [one.decode().strip() for one in wire.exchange(f"{mine:320}".encode())]
    return f"By rank, {name}: {', '.join(told)}" if len({*told}) > 1 else ""


def section(run, case, method):
    """The ledger's entries of a method's call in step 0."""
    part = f"{method} of step 0"
    return run.ledger.section(replace(case, what=f"{case.what}, {part}".lstrip(", ")).name).entries


def over_its_axes(runs):
    """A judge: step 0 sends the expected number of elements along each axis, give or take FEW per
    rank. The fact `more` says whether it sends too many."""
    for run, case, _ in seen(runs, MEASURE.of_world):
        sent, few = Counter(), FEW * case.world_size
        for method in ("backward", "clip", "step"):
            sent.update(sent_along(section(run, case, method), case.sizes))
        sizes = {axis: case.sizes[axis] for axis in ("pp", "dp", "tp")}
        volume = step_volume(SHAPE, ROWS, SHAPE.seq_len, **sizes, sequence_parallel=True)
        wanted = {("tp",): volume.tp, ("pp",): volume.pp, ("dp",): volume.data}
        for axes in dict.fromkeys([*sent, *wanted]):
            got, want = sent[axes], wanted.get(axes, 0)
            if abs(got - want) > few:
                text = f"{case.name}: step 0 sent {got} elements along {' and '.join(axes)}"
                text += f"{' together' * (len(axes) > 1)}, expected {want}, give or take {few}"
                trace = [case.name, axes, got]
                return Problem("elements", text, {"case": case, "more": got > want}, trace)
    return None


def in_micro_batches(runs):
    """A judge: on pp=2 the largest message between stages has the b rows of a micro-batch."""
    for run, case, _ in seen(runs, MEASURE.of_world):
        if case.sizes["pp"] > 1:
            sends = (e for e in section(run, case, "backward") if e.op == "send")
            got = max(e.numel for e in sends if axes_of(e.members, case.sizes) == ("pp",))
            b = rows_of_microbatch(case)
            want = b * SHAPE.seq_len * SHAPE.hidden // case.sizes["tp"]
            if got != want:
                text = f"{case.name}: the largest message along pp has {got} elements; {b} rows "
                return Problem("messages", f"{text}have {want}")
    return None


MEASURE = SideBySide(
    script, hybrid.HybridByHand, CASES, (by_hand.__name__, train.__name__),
    groups=on_a_mesh.places_of, world=lambda case: case.world_size,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model")
    | {"two at once": "a step ends before the next begins",
       "once more": "two steps stand in each script",
       "graph": "a loss may belong to its graph", "storage": "a loss may be a plain number",
       "generators": "who makes a part of the model draws its weights"},
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("losses and norms", 11, "as in a single process: two steps, 2 and 8 ranks",
     "loss", "norm"),
    ("elements sent", 5, "along tp, pp and dp, as lib.cost.volume says",
     over_its_axes, in_micro_batches),
    ("calls average and norm_of", 2, "each of them once per step", USED, ENDS),
    hints=hints("lab6", "HybridByHand"), worlds=WORLDS,
    may_call=(
        *COLLECTIVES, *OF_OTHER_LABS, "framework._measure_all", "hybrid_by_hand.average",
        "hybrid_by_hand.norm_of",
    ),
    leaves_out={
        "under way": "a step ends before the next begins",
        "empty rank": "every rank has rows and a stage",
        "alone": "a mesh is of several ranks; each axis has one rank in some mesh",
        "generators": "no argument is an iterator",
        "memory": "the schedule says what is kept: Lab 2 looks at it",
        "attributes": "no later cell reads one",
    },
)  # fmt: skip
