"""The mistakes that are made in WeightStash, told by what came of them, and the hint for each."""

from lib.check.framework import Hint


def _raised(*words):
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


def _backward(fits):
    """Fits if a backward was given another version than its forward, in this way."""
    return lambda p: p.kind == "backward" and fits(p.facts)


def _older(problem):
    got = problem.facts["got"]
    return got is not None and got < problem.facts["expected"]


HINTS = (
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "write it yourself: a dictionary from mini-batch to weights, and the newest weights.",
    ),
    Hint(
        "nothing returned",
        _raised("returned None"),
        "for_forward(j) and for_backward(j) return weights, the dictionary {name: tensor}.",
    ),
    Hint(
        "not weights",
        _raised("returned", "change was called with"),
        "weights are always the whole dictionary {name: tensor}, with the names and shapes that __init__ got.",
    ),
    Hint(
        "forgotten too early",
        _raised("KeyError", "IndexError"),
        "several mini-batches are under way at a time, and an update comes between the forward and the backward of "
        "each. What for_forward(j) gave stays until for_backward(j), of the same j.",
    ),
    Hint(
        "change is not called",
        lambda p: p.kind == "calls" and p.facts["calls"] == 0,
        "update has to call change(weights) with the newest weights: that is the optimizer's step.",
    ),
    Hint(
        "changed twice",
        lambda p: p.kind == "calls",
        "each call of change is a step of the optimizer. One backward, one step: on the newest weights alone.",
    ),
    Hint(
        "the update is lost",
        lambda p: p.kind == "forward" and _older(p),
        "what change has changed is the newest version from then on, the one that the next for_forward gives. If you "
        "change a copy, the copy becomes self.newest.",
    ),
    Hint(
        "an old version is changed",
        lambda p: p.kind == "base" and _older(p),
        "the update goes on top of all updates before it: call change with the newest weights, or a copy of those. The "
        "gradient may be of older ones.",
    ),
    Hint(
        "other numbers",
        lambda p: p.kind in ("forward", "base"),
        "a stash keeps weights, copies them and gives them out. Only change(weights) alters numbers.",
    ),
    Hint(
        "changed under way",
        _backward(lambda f: f["same"]),
        "the very memory that its forward had read was changed by an update meanwhile. A second name, a dict(weights) "
        "or a detach() is no copy: the numbers are the same ones. Clone the tensors before change, where a mini-batch "
        "under way has read them.",
    ),
    Hint(
        "the newest in backward",
        _backward(lambda f: f["got"] is not None and f["got"] == f["newest"]),
        "for_backward(j) gives what for_forward(j) gave, not the newest weights, nor those of the latest forward: "
        "remember them for each mini-batch by itself.",
    ),
    Hint(
        "a version behind",
        _backward(lambda f: f["got"] is not None and f["got"] < f["expected"]),
        "remembered are weights older than those that for_forward(j) returned. Store the very weights that you return.",
    ),
    Hint(
        "other numbers than its forward's",
        lambda p: p.kind in ("backward", "numbers"),
        "for_backward(j) gives the very numbers that for_forward(j) gave: look up j, and round nothing.",
    ),
    Hint(
        "never forgets",
        lambda p: p.kind == "versions" and p.facts["left"] > 2,
        "after for_backward(j) nobody asks for j again: take it out of the dictionary, self.under_way.pop(j). Else "
        "every version is kept for ever.",
    ),
    Hint(
        "one name too many",
        lambda p: p.kind == "versions" and p.facts["left"] > 1,
        "memory is free when its last name is gone. Keep none, such as self.last, for weights that are needed no more.",
    ),
    Hint(
        "a copy for every mini-batch",
        lambda p: p.kind == "versions",
        "weights are read more often than they are changed, and readers can share them. Copy in update, not in "
        "for_forward: then there are p-i versions at stage i, the newest among them.",
    ),
    Hint(
        "copies without need",
        lambda p: p.kind == "moved",
        "at the last stage no mini-batch is under way when update comes, so nobody needs the old weights: change them "
        "in place.",
    ),
)
