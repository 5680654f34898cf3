"""Lab 4, section 4: Unit, which gathers and frees parameters, and FSDP, which says when.

Each is judged with lib's other half: a Unit by itself and under lib's FSDP (unit.py), an FSDP with
watched units.
"""

import torch.distributed as dist

from lib import zero
from lib.check import symptoms as s
from lib.check.cases import groups_and_control, in_step
from lib.check.claims import claim
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.lab4.fsdp_models import CASES, GROUPS_SAY
from lib.check.lab4.fsdp_training import MAY_CALL, PHASES, WatchedUnit, found, section, trained
from lib.check.lab4.unit import CALLS_LIB, LEAVES_OUT, NOT_GIVEN, UNIT, inherits
from lib.check.traffic import fitting, only_calls

METHODS = (
    "before_forward", "after_forward", "before_backward", "after_backward", "pre_forward",
    "post_forward",
)  # fmt: skip


def _measure(fn):
    def one(case, groups):
        if inherits(fn, zero.FSDP, *METHODS):
            return {"ok": False, "value": Problem("built-in", "a method of the answer is lib's")}
        return trained(case, type("FSDP", (fn,), {"unit_type": WatchedUnit}), groups, most=1)

    return in_step(CASES, groups_and_control, one, wire=dist.new_group())


FSDP = Exercise(
    name="FSDP", reference=zero.FSDP, measure=_measure, worlds=(4,),
    may_call=(*MAY_CALL, "fsdp_training.unshard", "fsdp_training.reduce_gradients", "unit.unshard",
              "unit.reduce_gradients"),
    leaves_out=LEAVES_OUT | {"empty rank": "every rank runs the same units: a rule of FSDP; a Unit "
                                           "meets it"},
    claims=(
        claim("trains as one process does", 5, f"{GROUPS_SAY}; tied, frozen, unused",
              found(CASES, "value"), fitting(CASES)),
        claim("one unit whole at a time", 3, "and the root; none in the end",
              found(CASES, "memory")),
        claim("sends 3 (N-1)/N psi", 2, "each unit gathered twice, reduced once",
              only_calls(CASES, None, PHASES, section), found(CASES, "sent")),
    ),
    hints=(
        CALLS_LIB,
        Hint("not gathered for forward", s.kind("not whole", way="forward"),
             "before_forward(index) unshards self.units[index]: unshard()."),
        Hint("not gathered for backward", s.kind("not whole"),
             "after_forward has freed it, and its backward reads the weights again: "
             "before_backward(index) gathers it anew."),
        Hint("old weights", s.kind("stale"),
             "the optimizer has changed the shards since this unit was gathered. after_backward "
             "frees it, and the next forward gathers it anew."),
        Hint("gradients are not reduced", s.kind("unreduced"),
             "when backward has left a unit all its gradients are ready and are reduced: "
             "after_backward(index) calls reduce_gradients()."),
        Hint("left before it is entered", s.raised("ValueError"),
             "backward enters a unit through its output, and leaves it through its inputs: "
             "enter_backward(index) belongs to the output, leave_backward(index) to the inputs."),
        Hint("weights are freed last", s.kind("weights wait"),
             "reshard() first, then reduce_gradients(): otherwise the full weights are still "
             "allocated while the flat buffer of the gradients is filled."),
        Hint("another result", s.kind("value", "root"),
             "the four methods are about self.units[index], and nothing else."),
        Hint("two at a time", s.kind("memory"),
             "the next unit is gathered before the last one was freed. after_forward and "
             "after_backward reshard, and only the unit that computes is gathered."),
        Hint("gradients wait", s.kind("alive", way="backward"),
             "what the previous unit used is still allocated: its full gradients, or a copy. "
             "after_backward(index) reshards its own unit and reduces its gradients, before the "
             "backward of the next one begins: hook the tensors by which backward leaves a unit."),
        Hint("a second copy", s.kind("alive"),
             "something is kept besides the unsharded unit: a copy of gathered parameters, or of "
             "full gradients."),
        Hint("unsharded in the end", s.kind("left"),
             "reshard() it: after forward, and again after backward."),
        Hint("gathered too often", s.kind("gathers", more=True),
             "once for forward, once for backward, and not while it is unsharded already."),
        Hint("kept from forward to backward", s.kind("gathers"),
             "a unit that stays unsharded needs no second gather, but its memory all the time. "
             "Reshard each after its forward."),
        Hint("reduced twice", s.kind("reduced"),
             "a unit's gradients are sent once, when its backward has ended."),
        NOT_GIVEN,
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("fsdp", (UNIT, FSDP))
