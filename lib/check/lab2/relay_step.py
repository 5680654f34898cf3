"""Lab 2, section 2: relay_step(stage, x, target, loss_fn, group), one batch forward through p ranks
and back.

The script shows what each stage receives, and every gradient. The placeholder that tells a rank
which shape and dtype to receive is filled with nan, and only the last rank has the target. The
check therefore notices an answer that computes with values which its rank should not have.
"""

import torch.nn.functional as F

from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.exercise import Problem
from lib.check.lab2 import relay_cases as relay
from lib.check.side_by_side import SideBySide
from lib.check.symptoms import P2P
from lib.check.traffic import sent
from lib.pipeline.relay_step import relay_step

CASES = tuple(Setting(members) for members in relay.GROUPS)
TAKES = ("calls of the stage", "what the stage takes")
LOSS = ("the loss", "graph", "calls of loss_fn")


class NoTarget(ValueError):
    """loss_fn was called without a target."""


def script(make, case, group, show):
    """Three steps with one stage, in whose parameters the gradients accumulate."""
    rank, p, x = show.place, case.world_size, None
    stage, given = relay.stages(p)[rank], [] if group is None else [group]
    for step in relay.ROWS:
        tokens, target = relay.batch(relay.Step(case.members, step=step))
        x = tokens if rank == 0 else relay.placeholder(x, step, relay.WIDTHS[rank])
        taken, losses = [], []

        def loss_fn(y, target, losses=losses):
            if target is None:
                text = "loss_fn was called with target None: the target is on the last rank alone"
                raise NoTarget(text)
            losses.append(F.mse_loss(y, target) + target.mean())  # another one if exchanged
            return losses[-1]

        note = lambda _, inputs, taken=taken: taken.append(inputs[0].detach().clone())
        hook = stage[0].register_forward_pre_hook(note)
        with show.during(f"step {step}", section=True) as run:
            loss = run(make, stage, x, target if rank == p - 1 else None, loss_fn, *given)
        hook.remove()
        show("calls of the stage", len(taken))
        show("what the stage takes", taken[0] if taken else None)
        show("the gradient", [(name, q.grad) for name, q in stage.named_parameters()])
        show("the loss", loss)
        show("calls of loss_fn", len(losses))
        if show.wrong(*TAKES, "the gradient", *LOSS):
            return


def messages(runs):
    """A judge: each step sends an activation to the next rank and a gradient to the previous."""
    for run in runs:
        for case in relay.CASES:
            for rank, got in enumerate(sent(run, case)):
                if got != (want := relay.sends(case)[rank]):
                    text = f"{case.name}: {case.rank(rank)} sent {_told(got)}; expected "
                    facts = {"more": len(got) > len(want)}
                    return Problem("messages", text + _told(want), facts)
    return None


def _told(messages_):
    return ", ".join(f"{n} elements to rank {to}" for to, n in messages_) or "nothing"


MEASURE = SideBySide(
    script, relay_step, CASES,
    excused={
        "arguments": "the x of other ranks is a placeholder; gradients are added to the stage's",
        "storage": "the loss is loss_fn's", "two at once": "a step is over when it returns",
        "once more": "three steps follow each other",
    } | dict.fromkeys(("strided", "float32", "bfloat16"), "a stage is given"),
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("activations forward", 4,
     "each stage takes what the previous gives; 1, 2, 3, 4 ranks; three steps", *TAKES),
    ("one process's gradients", 7,
     "every parameter's .grad, to 1e-12; added to what is there", "the gradient"),
    ("the loss on the last rank", 2, "detached; None elsewhere", *LOSS),
    ("2(p-1) messages", 3, "an activation to the next rank, a gradient to the previous",
     messages),
    hints=hints("lab2", "relay_step"), worlds=(relay.WORLD,),
    leaves_out={
        "under way": "a step is over when it returns",
        "empty rank": "every rank has a stage, and every batch rows",
        "generators": "no argument is an iterator",
        "memory": "it keeps nothing but gradients",
    },
    may_call=P2P,
)  # fmt: skip
