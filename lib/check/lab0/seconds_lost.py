"""Lab 0, section 8: seconds_lost(model, cluster, batch), which of six strategies fit, and how long
a step waits.

Right is {strategy: seconds} of those that fit, in any order.
"""

from math import inf, isclose, isfinite

from lib.check import symptoms as s
from lib.check.claims import claim, is_number
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import but
from lib.check.pure import LEAVES_OUT, NOTHING, asked, each
from lib.cost.strategies import CARD, NVLINK, SITUATIONS, Cluster, Model, seconds_lost

INSIDE, BOTH = "tensor inside, data across", "tensor inside, pipeline across"
WAYS = ("data", "sharded", "tensor", "pipeline", INSIDE, BOTH)
SMALL = Model(1e9, 16, 2048, 1024)


def _on(nodes, per_node, memory=80e9):
    return Cluster(nodes, per_node, memory, 400e12, NVLINK, CARD)


OTHERS = {  # edges: a rule that holds with equality, and one that just fails
    "1B on one GPU": (SMALL, _on(1, 1), 8),
    "1B on 4 nodes of 1": (SMALL, _on(4, 1), 64),
    "1B, 16 layers on 16 GPUs": (SMALL, _on(2, 8), 16),
    "1B, 16 layers on 24 GPUs": (SMALL, _on(3, 8), 23),
    "1B, 16 layers on 17 nodes of 2": (SMALL, _on(17, 2), 16),
    "1B, a GPU's memory is its state": (SMALL, _on(2, 2, 16e9), 64),
    "1B, a byte less": (SMALL, _on(2, 2, 16e9 - 1), 64),
    "1B, an eighth of its state": (SMALL, _on(4, 8, 2e9), 64),
}
CASES = SITUATIONS | OTHERS


def _measure(fn):
    return asked(fn, seconds_lost, [(name,) for name in CASES], lambda name: CASES[name], _read)


def _read(out, *_):
    if not isinstance(out, dict):
        kind = "nothing" if out is None else "form"
        return Problem(kind, f"got {out!r:.60}, a {type(out).__name__}, expected a dict")
    for name, seconds in out.items():
        if name not in WAYS:
            return Problem(
                "unknown",
                f"got {name!r:.60}, which is none of the six: {', '.join(map(repr, WAYS))}",
            )
        if not is_number(seconds) or not isfinite(seconds):
            text = f"got {seconds!r:.30} for {name!r}, expected a number of seconds"
            return Problem("form", text, {"no such": seconds is None or is_number(seconds)})
    return {name: float(seconds) for name, seconds in out.items()}


def _fits(got, name):
    want = seconds_lost(*CASES[name])
    if set(got) == set(want):
        return None
    missing, more = (
        [way for way in WAYS if way in one and way not in two]
        for one, two in ((want, got), (got, want))
    )
    said = [
        f"{', '.join(map(repr, ways))} {what}"
        for ways, what in ((missing, "missing"), (more, "too many"))
        if ways
    ]
    facts = {"missing": missing, "more": more}
    return Problem("fits", f"of those that fit, {' and '.join(said)}", facts, [name, missing, more])


def _seconds(*ways):
    def judge(got, name):
        if problem := _fits(got, name):
            return problem
        want = seconds_lost(*CASES[name])
        ratio = {way: _ratio(got[way], want[way]) for way in WAYS if way in want}
        for way in ways:
            if way in want and not isclose(ratio[way], 1, rel_tol=0.01):
                text = f"{way!r} loses {want[way]:.4g} s, got {got[way]:.4g} s"
                trace = [name, *(f"{other} {ratio[other]:.3g}" for other in ratio)]
                return Problem("seconds", text, {"way": way, "alone": not want[way]}, trace)
        return None

    return judge


def _ratio(got, want):
    return got / want if want else 1.0 if got == 0 else inf


def _judge(names, judge):
    return each([(name,) for name in names], judge, str)


def _wrong_in(way, text):
    return Hint(f"seconds of {way}", s.kind("seconds", way=way), text)


EXERCISE = Exercise(
    name="seconds_lost", reference=seconds_lost, measure=_measure, worlds=(),
    leaves_out=but(LEAVES_OUT, "given used", "again"),
    claims=(
        claim("what fits", 4, "the six situations", _judge(SITUATIONS, _fits)),
        claim("data and sharded", 2, "seconds, within 1 %",
              _judge(SITUATIONS, _seconds("data", "sharded"))),
        claim("tensor and pipeline", 2, "seconds, within 1 %",
              _judge(SITUATIONS, _seconds("tensor", "pipeline"))),
        claim("tensor inside the node", 3, "data or a pipeline across",
              _judge(SITUATIONS, _seconds(INSIDE, BOTH))),
        claim("any model and cluster", 1, "8 others, at the edge of what fits",
              _judge(OTHERS, _seconds(*WAYS))),
    ),
    hints=(
        s.CALLED_LIB.saying("a dict of six formulas, and then only those that fit."),
        NOTHING,
        Hint("not the six", s.kind("unknown"),
             "copy the names from the table: the check looks for these words."),
        Hint("no such strategy", s.kind("form", **{"no such": True}),
             "what is not possible, or does not fit, is not in the dict at all."),
        Hint("not a dict of numbers", s.kind("form"),
             "return {strategy: seconds}, seconds as a float."),
        Hint("leaves out what fits", s.kind("fits", missing=True),
             "16 bytes per parameter, divided as the table says, may be as much as the memory; as "
             "many stages as layers and as many copies as sequences are allowed, too."),
        Hint("takes what does not fit", s.kind("fits", more=True),
             "three rules: the state, divided as the table says, is in a GPU's memory; no more "
             "stages than layers; no more copies of the model than sequences."),
        Hint("waits for itself", s.kind("seconds", alone=True),
             "a group of one rank, or a pipeline of one stage, waits for no rank: 0 seconds."),
        _wrong_in("data",
            "one all-reduce of 2W bytes over all N GPUs; of several nodes, over the slower link."),
        _wrong_in("sharded",
            "three halves of a ring for each of the B/N sequences of a GPU: the weights are "
            "gathered twice, and the gradients are reduced once."),
        _wrong_in("tensor",
                  "for each layer and each sequence 4 all-reduces of A bytes, over all N GPUs."),
        _wrong_in("pipeline",
                  "2B messages of A bytes, and (N-1)/B of the seconds that a GPU computes."),
        _wrong_in(INSIDE,
            "a node has B/M sequences and all layers; its shares of the gradients, 2W/R bytes, are "
                  "summed over M."),
        _wrong_in(BOTH, "a node has L/M layers and all B sequences, and is one stage of M."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
