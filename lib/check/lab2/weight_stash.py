"""Lab 2, section 5: WeightStash(weights), with the methods for_forward(j), for_backward(j) and
update(change), called in PipeDream's order.

    stage 0 of p = 2     F0  F1  B0 u0  F2  B1 u1 ...

A stash knows nothing about the other stages, so each stage is a case of its own. `change` gives
every version different values, so comparing the elements bit for bit shows which version a stash
returns. The number of versions that exist is found by counting bytes, so it does not matter where
they are stored.
"""

import torch

from lib.backend.torch_private import without_dispatch_modes as unseen
from lib.check.cases import draw, form_of
from lib.check.causes import hints
from lib.check.side_by_side import SideBySide, here
from lib.pipeline import stash

JOBS = {
    f"p = {p}, {n} mini-batches, stage {i}": (p, n, i)
    for p, n, stages in ((2, 5, 2), (4, 8, 4), (1, 3, 1), (7, 9, 1))
    for i in range(stages)
}
CASES = here(*JOBS)
CHANGED, FORWARD, BACKWARD, SINCE = (
    "the version that update changes", "the version that forward reads",
    "the version that backward reads", "changed since its forward",
)  # fmt: skip
NEVER = "weights that never were a version"
END, MOST = "versions in the end", "the most versions"
UNUSED, UNREAD = "copied with nothing in flight", "copied unread"


class Versions:
    """A copy of every version of one stage's weights, and the bytes of one version."""

    def __init__(self, show, weights):
        self.made, self.copies, self.most, self.done = show.made, [], (0.0, ""), []
        self.bytes = show.made.alive()
        self.add(weights)

    def add(self, weights):
        with unseen():
            self.copies.append({name: w.clone() for name, w in weights.items()})

    def of(self, weights):
        """The number of the newest version that has these values. If there is none, a text that
        says what the weights are instead."""
        forms = _forms(weights)
        if forms != _forms(self.copies[0]):
            return f"{{{', '.join(map(': '.join, forms.items()))}}}" if forms else form_of(weights)
        same = lambda copy: all(torch.equal(w, copy[name]) for name, w in weights.items())
        newest_first = reversed(range(len(self.copies)))
        return next((k for k in newest_first if same(self.copies[k])), NEVER)

    def held(self):
        """How many versions are alive now. `most` has the largest number so far, and the last calls
        before it was reached."""
        held = self.made.alive() / self.bytes
        if held > self.most[0]:
            self.most = held, " ".join(self.done[-12:])
        return held


def _forms(weights):
    """{name: form of its tensor}, or None if the weights are not a dict with names as keys."""
    is_one = isinstance(weights, dict) and all(isinstance(name, str) for name in weights)
    return {name: form_of(w) for name, w in weights.items()} if is_one else None


def _places(weights):
    held = weights.values() if isinstance(weights, dict) else ()
    return {w.data_ptr() for w in held if torch.is_tensor(w)}


def script(make, case, show):
    p, n, stage = JOBS[case.what]
    weights = {"weight": draw(stage, 3 + stage, 4), "bias": draw(stage, 3 + stage)}
    versions, newest, beside = Versions(show, weights), _places(weights), ""
    done, copied, in_flight = versions.done, [], {}

    def change(weights):
        nonlocal newest
        show(CHANGED, number := versions.of(weights), beside=beside)
        read = any(version == len(versions.copies) - 1 for version, _ in in_flight.values())
        if not read and _places(weights) != newest:
            copied.append(UNREAD if in_flight else UNUSED)
        newest = _places(weights)
        versions.held()
        if isinstance(number, int):
            for i, weight in enumerate(weights.values()):
                weight.add_(i + len(versions.copies))
            versions.add(weights)

    change = show.counted("change", change)
    with show.during("__init__") as run:
        held = run(make, weights)
    del weights  # from here on only the stash and `in_flight` refer to weights
    for _, kind, j in stash.pipedream(p, n)[stage]:
        beside = f"So far: {' '.join(done[-12:]) or 'nothing'}   (version k: after k updates)"
        if kind == "F":
            with show.during(f"for_forward({j})") as run:
                weights = run(held.for_forward, j)
            show(FORWARD, number := versions.of(weights), beside=beside)
            in_flight[j] = number, weights
        else:
            with show.during(f"for_backward({j})") as run:
                weights = run(held.for_backward, j)
            before, its = in_flight.pop(j)
            since = f"the weights that for_forward({j}) returned have been changed"
            show(SINCE, since if versions.of(its) != before else "", beside=beside)
            show(BACKWARD, versions.of(weights), beside=beside)
            weights = its = None
        done.append(f"{kind}{j}")
        versions.held()
        if kind == "B" and not show.wrong(BACKWARD):
            with show.during(f"update, after for_backward({j})") as run:
                run(held.update, change)
            done.append(f"u{j}")
            versions.held()
        weights = None
        if show.wrong(FORWARD, BACKWARD, CHANGED, "calls of change"):
            return
        yield
    show(END, versions.held())
    most, when = versions.most
    show(MOST, most, at_most=True, beside=f"There were as many after {when}.")
    text = "no mini-batch in flight had read the newest weights, and yet update changed a copy"
    for name in (UNUSED, UNREAD):
        show(name, text if name in copied else "")


MEASURE = SideBySide(
    script, stash.WeightStash, CASES, (stash.__name__,), groups=None,
    excused={
        "alive": "how many versions there may be at any time is a claim",
        "once more": "the weights that it returns change with later updates",
    } | dict.fromkeys(("strided", "float32", "bfloat16"), "weights are copied as they are"),
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("forward reads the newest", 3, "in PipeDream's order, p = 1, 2, 4, 7",
     FORWARD, CHANGED, "calls of change"),
    ("backward reads its forward's", 4, "bit for bit", SINCE, BACKWARD),
    ("p-i versions at stage i", 2, "at most, at any time; one when all is done", END, MOST),
    ("the last stage copies nothing", 1, "its weights change in place", UNUSED, UNREAD),
    hints=hints("lab2", "WeightStash"),
    leaves_out={
        "alone": "there are no ranks; p = 1 is a case",
        "empty rank": "every stage has weights, and every mini-batch comes to every stage",
        "generators": "a dictionary is given",
        "given used": "change is counted, and nothing else does a step",
        "attributes": "later cells call the three methods alone",
    },
)  # fmt: skip
