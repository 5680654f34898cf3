"""Lab 2, section 5: WeightStash(weights), for_forward(j), for_backward(j), update(change), in
PipeDream's order.

    stage i -- for_forward(j), for_backward(j), update(change) --> Watched --> a student's stash

The stages of a pipeline take turns here, an action each, without ranks: a stash sees nothing of the
others. `Watched` keeps a copy of every version: which one a stash gives is found by comparing
numbers, bit for bit. What it holds is found by going through the object: all memory of all tensors
in it, and of what mini-batches in flight were given.
"""

import gc
import types

import torch

from lib.check import symptoms as s
from lib.check.cases import draw, form_of
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.pure import call
from lib.pipeline.stash import WeightStash, pipedream

CASES = [(2, 5), (4, 8), (1, 3)]  # p, mini-batches
SAY = "p = 1, 2, 4"


class Watched:
    """One stage's stash. problem: the first thing that is wrong with what it gives; over: it can
    give nothing more."""

    def __init__(self, where, fn, weights):
        self.where, self.forms = where, {name: form_of(w) for name, w in weights.items()}
        self.versions, self.one = [copied(weights)], sum(memory(weights.values()).values())
        # mini-batch: (version that it ran forward with, the memory that it was given)
        self.under_way = {}
        self.done, self.held, self.places, self.problem, self.over = [], [], [], None, False
        self.stash = self._asked(fn, weights)

    def do(self, action):
        if self.over:
            return
        if action.kind == "F":
            self._forward(action.microbatch)
        elif self._backward(action.microbatch):
            self._update()
        self.held.append(self._holds())

    def _forward(self, j):
        weights, newest = (
            self._given(f"for_forward({j})", self.stash.for_forward, j),
            len(self.versions) - 1,
        )
        if weights is None:
            return
        self.done.append(f"F{j}")
        if (got := self._version(weights)) != newest:
            text = f"for_forward({j}) gave {_name(got)}, expected the newest, version {newest}"
            self._note("forward", text, older=got is not None)
        self.under_way[j] = newest, memory(weights.values())
        self.places.append({*self.under_way[j][1]})

    def _backward(self, j):
        """Did it give weights?"""
        weights = self._given(f"for_backward({j})", self.stash.for_backward, j)
        if weights is None:
            return False
        (expected, place), got = self.under_way.pop(j), self._version(weights)
        self.done.append(f"B{j}")
        if got != expected:
            text = (
                f"for_backward({j}) gave {_name(got)}, expected version {expected}: mini-batch {j} "
                f"ran forward "
            )
            facts = {
                "newest": got == len(self.versions) - 1,
                "older": got is not None and got < expected,
            }
            facts["same"] = memory(weights.values()).keys() == place.keys()
            self._note("backward", text + "with that", **facts)
        return True

    def _update(self):
        newest, calls, made = len(self.versions) - 1, [], []

        def change(weights):
            if not self._are_weights("change was called with", weights):
                raise TypeError("change was called with something else than weights")
            calls.append(self._version(weights))
            self.held.append(self._holds(weights.values()))
            for number, weight in enumerate(weights.values()):
                weight.add_(number + len(self.versions))
            made.append(copied(weights))

        self._asked(self.stash.update, change)
        if len(calls) != 1:
            self._note(
                "calls", f"update called change {len(calls)} times, expected once", calls=len(calls)
            )
        elif calls[0] != newest:
            text = f"update changed {_name(calls[0])}, expected the newest, version {newest}"
            self._note("base", text, older=calls[0] is not None)
        self.versions.append(made[-1] if made else self.versions[-1])
        self.done.append(f"u{newest}")

    def _asked(self, fn, *args):
        """What the stash returns; None where it raised."""
        out = call(fn, WeightStash.__init__, args)
        if not isinstance(out, Problem):
            return out
        self._note(out.kind, out.text, **out.facts)
        self.over = True

    def _given(self, what, fn, j):
        """The weights that it returned, or None."""
        weights = self._asked(fn, j)
        return weights if not self.over and self._are_weights(f"{what} returned", weights) else None

    def _are_weights(self, what, got):
        forms = {name: form_of(w) for name, w in got.items()} if isinstance(got, dict) else None
        if forms == self.forms:
            return True
        said = [
            form_of(got) if one is None else f"{{{', '.join(f'{n}: {f}' for n, f in one.items())}}}"
            for one in (forms, self.forms)
        ]
        self._note("returned", f"{what} {said[0]}, expected {said[1]}", none=got is None)
        self.over = True
        return False

    def _version(self, weights):
        """The number of the version that has these values, the newest such; None if none has."""
        same = lambda version: all(torch.equal(version[name], w) for name, w in weights.items())
        return next(
            (k for k in reversed(range(len(self.versions))) if same(self.versions[k])), None
        )

    def _note(self, kind, text, **facts):
        text = (
            f"{self.where}: {text}\nSo far: {' '.join(self.done[-12:])}   (version k: after k "
            f"updates)"
        )
        trace = [text, {name: fact for name, fact in facts.items() if isinstance(fact, bool)}]
        self.problem = self.problem or Problem(kind, text, facts, trace)

    def _holds(self, also=()):
        """(versions in the stash, in its class, and in flight, by their bytes;
        after which actions)"""
        held = memory([*tensors_in(self.stash), *tensors_in(vars(type(self.stash))), *also])
        for _, place in self.under_way.values():
            held |= place
        return sum(held.values()) / self.one, " ".join(self.done[-12:])


def _name(version):
    return "weights that never were a version" if version is None else f"version {version}"


def memory(tensors):
    """{address: bytes} of the tensors' storages, each once."""
    return {(storage := t.untyped_storage()).data_ptr(): storage.nbytes() for t in tensors}


def tensors_in(thing):
    """Every tensor that can be reached from an object through its attributes, lists,
    dictionaries, ..."""
    found, seen, rest = [], set(), [thing]
    while rest:
        item = rest.pop()
        if id(item) in seen or isinstance(
            item, type | types.ModuleType | types.FunctionType | types.MethodType
        ):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        else:
            rest += gc.get_referents(item)
    return found


def copied(weights):
    return {name: w.detach().clone() for name, w in weights.items()}


def _measure(fn):
    """{case: [Watched of stage 0, ...]}"""
    return {case: _run(fn, *case) for case in CASES}


def _run(fn, p, n):
    sizes = [{"weight": (3 + i, 4), "bias": (3 + i,)} for i in range(p)]
    weights = [{name: draw(i, *shape) for name, shape in of.items()} for i, of in enumerate(sizes)]
    stages = [Watched(f"p = {p}, {n} mini-batches, stage {i}", fn, weights[i]) for i in range(p)]
    for turn in range(2 * n):
        for stage, actions in zip(stages, pipedream(p, n), strict=True):
            stage.do(actions[turn])
    for stage in stages:
        if stage.problem:
            stage.problem.facts["one for all"] = _one_for_all([each.stash for each in stages])
    return stages


def _one_for_all(stashes):
    """Have two stashes, or their class, one and the same dictionary or list?"""
    own = [
        {id(x) for x in getattr(stash, "__dict__", {}).values() if isinstance(x, dict | list)}
        for stash in stashes
    ]
    of_class = [x for name, x in vars(type(stashes[0])).items() if not name.startswith("__")]
    return len(set().union(*own)) < sum(map(len, own)) or any(
        isinstance(x, dict | list) for x in of_class
    )


def _no(*kinds):
    """A judge: no problem of these kinds on any stage; else the one of the first
    stage that has one."""

    @without_ranks
    def judge(seen):
        for stages in seen.values():
            first = next((stage.problem for stage in stages if stage.problem), None)
            if first and first.kind in kinds:
                return first
        return None

    return judge


@without_ranks
def _memory(seen):
    for (p, _), stages in seen.items():
        for i, stage in enumerate(stages):
            (left, _), most = stage.held[-1], max(held for held, _ in stage.held)
            if most > p - i or left != 1:
                when = next((f"more than p-i = {p - i} versions of its weights after {done}; "
                             for held, done in stage.held if held > p - i), "")  # fmt: skip
                text = (
                    f"{stage.where}: {when}at most there were {most:g}, and when all was done "
                    f"{left:g}"
                )
                return Problem("versions", text, {"left": left})
    return None


@without_ranks
def _in_place(seen):
    last = next(
        (stages[-1] for stages in seen.values() if len({*map(frozenset, stages[-1].places)}) > 1),
        None,
    )
    return last and Problem(
        "moved", f"{last.where}, the last: after an update its weights are elsewhere in memory"
    )


EXERCISE = Exercise(
    name="WeightStash", reference=WeightStash, measure=_measure, worlds=(),
    leaves_out={
        "empty rank": "every stage has weights, and every mini-batch comes to every stage",
        "generators": "a dictionary is given",
        "given used": "change is counted, and nothing else does a step",
        "attributes": "later cells call the three methods alone",
    },
    claims=(
        claim("forward reads the newest", 3, f"in PipeDream's order, {SAY}",
              _no("built-in", "raised", "unreadable", "returned", "forward", "base", "calls")),
        claim("backward reads its forward's", 4, "bit for bit", _no("backward")),
        claim("p-i versions at stage i", 2, "at most, at any time; one when all is done", _memory),
        claim("the last stage copies nothing", 1, "its weights change in place", _in_place),
    ),
    hints=(
        s.BUILT_IN.saying("write it yourself: a dictionary from mini-batch to weights, and the "
                          "newest weights."),
        Hint("nothing returned", s.kind("returned", none=True),
             "for_forward(j) and for_backward(j) return weights, the dictionary {name: tensor}."),
        Hint("kept on the class", s.both(s.kind("raised", "returned", "forward", "backward"),
            s.fact("one for all")),
             "each stage makes a stash of its own: what it keeps belongs in self, made in "
             "__init__. A dictionary in the class's body or in a default argument is one for all "
             "stages."),
        Hint("not weights", s.kind("returned"),
             "weights are always the whole dictionary {name: tensor}, with the names and shapes "
             "that __init__ got."),
        Hint("forgotten too early", s.raised("KeyError", "IndexError"),
             "several mini-batches are in flight at a time, and an update comes between the "
             "forward and the backward of each. What for_forward(j) gave stays until "
             "for_backward(j), of the same j."),
        Hint("change is not called", s.kind("calls", calls=0),
             "update has to call change(weights) with the newest weights: that is the optimizer's "
             "step."),
        Hint("changed twice", s.kind("calls"),
             "each call of change is a step of the optimizer. One backward, one step: on the "
             "newest weights alone."),
        Hint("the update is lost", s.kind("forward", older=True),
             "what change has changed is the newest version from then on, the one that the next "
             "for_forward gives. If you change a copy, the copy becomes self.newest."),
        Hint("an old version is changed", s.kind("base", older=True),
             "the update goes on top of all updates before it: call change with the newest "
             "weights, or a copy of those. The gradient may be of older ones."),
        Hint("other numbers", s.kind("forward", "base"),
             "a stash keeps weights, copies them and gives them out. Only change(weights) alters "
             "numbers."),
        Hint("changed in flight", s.kind("backward", same=True),
             "the very memory that its forward had read was changed by an update meanwhile. A "
             "second name, a dict(weights) or a detach() is no copy: the numbers are the same "
             "ones. Clone the tensors before change, where a mini-batch in flight has read them."),
        Hint("the newest in backward", s.kind("backward", newest=True),
             "for_backward(j) gives what for_forward(j) gave, not the newest weights, nor those of "
             "the latest forward: remember them for each mini-batch by itself."),
        Hint("a version behind", s.kind("backward", older=True),
             "remembered are weights older than those that for_forward(j) returned. Store the very "
             "weights that you return."),
        Hint("other numbers than its forward's", s.kind("backward"),
             "for_backward(j) gives the very numbers that for_forward(j) gave: look up j, and "
             "round nothing."),
        Hint("never forgets", lambda p: p.kind == "versions" and p.fact("left") > 2,
             "after for_backward(j) nobody asks for j again: take it out of the dictionary, "
             "self.in_flight.pop(j). Else every version is kept for ever."),
        Hint("one name too many", lambda p: p.kind == "versions" and p.fact("left") > 1,
             "memory is free when its last name is gone. Keep none, such as self.last, for weights "
             "that are needed no more."),
        Hint("a copy for every mini-batch", s.kind("versions"),
             "weights are read more often than they are changed, and readers can share them. Copy "
             "in update, not in for_forward: then there are p-i versions at stage i, the newest "
             "among them."),
        Hint("copies without need", s.kind("moved"),
             "at the last stage no mini-batch is in flight when update comes, so none needs the "
             "old weights: change them in place."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
