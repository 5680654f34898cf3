"""The mistakes that are made in FSDP, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab4.fsdp_given import CALLS_LIB, OTHERWISE


def _not_whole(way):
    return lambda p: p.kind == "not whole" and p.facts["way"] == way


def _memory(way):
    return lambda p: p.kind == "memory" and p.facts.get("way") == way


HINTS = (
    CALLS_LIB,
    Hint(
        "not gathered for forward",
        _not_whole("forward"),
        "before_forward(place) makes self.units[place] whole: unshard().",
    ),
    Hint(
        "not gathered for backward",
        _not_whole("backward"),
        "after_forward has freed it, and its backward reads the weights again: before_backward(place) gathers it anew.",
    ),
    Hint(
        "old weights",
        lambda p: p.kind == "stale",
        "the optimizer has changed the shards since this unit was gathered. after_backward frees it, and the next "
        "forward gathers it anew.",
    ),
    Hint(
        "gradients are not reduced",
        lambda p: p.kind == "unreduced",
        "when backward is through with a unit its gradients are all there, and leave: after_backward(place) calls "
        "reduce_gradients().",
    ),
    Hint(
        "another result",
        lambda p: p.kind in ("value", "raised"),
        "the four methods are about self.units[place], and nothing else.",
    ),
    Hint(
        "two at a time",
        lambda p: p.kind == "memory" and "way" not in p.facts,
        "the next unit is gathered before the last one was freed. after_forward and after_backward reshard, and only "
        "the unit that computes is gathered.",
    ),
    Hint("whole in the end", lambda p: p.kind == "left", "reshard() it: after forward, and again after backward."),
    Hint(
        "gathered too often",
        lambda p: p.kind == "gathers" and p.facts["got"] > p.facts["want"],
        "once for forward, once for backward, and not while it is whole already.",
    ),
    Hint(
        "kept from forward to backward",
        lambda p: p.kind == "gathers",
        "a unit that is kept needs no second gather, and its memory all the time. Each is freed after its forward.",
    ),
    Hint(
        "reduced twice",
        lambda p: p.kind == "reduced",
        "a unit's gradients are sent once, when its backward has ended.",
    ),
    OTHERWISE,
)
