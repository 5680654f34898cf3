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

### BEGIN MISTAKES
from lib.check.mistakes import Mistake, edit  # noqa: E402

MISTAKES = (
    Mistake("the fast link everywhere", edit("cluster.across if M > 1 else cluster.inside",
        "cluster.inside"),
            "a ring over several nodes runs at its slowest link: `across` where M > 1."),
    Mistake("the slow link in a node", edit("cluster.across if M > 1 else cluster.inside",
        "cluster.across"),
            "on one node nothing crosses between nodes: `inside` where M is 1."),
    Mistake("the slow link inside", edit("M * ring(A, R, *inside)", "M * ring(A, R, *across)").then(
            "batch * ring(A, R, *inside)", "batch * ring(A, R, *across)"),
            "the tensor groups are inside the node: they have the fast link."),
    Mistake("gradients of 4 bytes", edit("(1, batch >= N, ring(2 * W",
        "(1, batch >= N, ring(4 * W"),
            "gradients are sent in 16 bits here: 2 bytes each."),
    Mistake("only one all-gather", edit("3 * half", "2 * half"),
            "that is one all-gather and the reduce-scatter. Weights are freed after forward, and "
            "gathered again for backward."),
    Mistake("gathered once in a step", edit("batch / N * 3 * half", "3 * half"),
            "the weights are freed after each sequence and gathered again for the next one, so a "
            "GPU pays for each of its B/N sequences."),
    Mistake("gathered for all sequences", edit("batch / N * 3 * half", "batch * 3 * half"),
            "a GPU works on B/N of the sequences, and takes part in the gathers for these."),
    Mistake("whole rings", edit("3 * half", "3 * ring"),
            "an all-gather or a reduce-scatter is half of a ring all-reduce: N-1 rounds."),
    Mistake("sharded like data", edit("3 * half", "ring"),
            "for each sequence sharded state sends half as much again as an all-reduce: three "
            "halves."),
    Mistake("forward only", edit("True, 4 * L", "True, 2 * L"),
            "two all-reduces of a layer are forward's, and two backward's."),
    Mistake("one sequence", edit("True, 4 * L * batch", "True, 4 * L"),
            "each sequence has activations of its own: 4 all-reduces per layer and sequence."),
    Mistake("elements", edit("2 * model.sequence", "model.sequence"),
            "A is in bytes: two for each of s h numbers."),
    Mistake("forward only in the pipeline", edit("2 * batch * (across", "batch * (across"),
            "each activation comes back as a gradient: 2B messages."),
    Mistake("no idle time", edit(" + (p - 1) / batch * compute", ""),
            "a pipeline fills and drains: (p-1)/B of the seconds that a GPU computes."),
    Mistake("the idle share of the whole", edit("(p - 1) / batch * compute",
        "(p - 1) / (batch + p - 1) * compute"),
            "(p-1)/(B+p-1) is the share of the whole step; of the seconds of compute it is "
            "(p-1)/B."),
    Mistake("waits for itself", edit(" * (p > 1)", "")),
    Mistake("idle p", edit("(p - 1) / batch", "p / batch"),
            "of p stages the last waits for p-1 others."),
    Mistake("one GPU's compute", edit(" / N / cluster.flops", " / cluster.flops"),
            "all N GPUs share the 6 W B s operations."),
    Mistake("forward's operations", edit("6 * W * batch", "2 * W * batch"),
            "2 operations are forward's; backward has 4: 6 per parameter and token."),
    Mistake("a node has all sequences", edit("batch / M * ring(A", "batch * ring(A"),
            "across the nodes the data is divided: a node has B/M sequences."),
    Mistake("gradients not divided", edit("ring(2 * W / R, M", "ring(2 * W, M"),
            "within a node each GPU has a share of the weights: 2W/R bytes of gradients."),
    Mistake("summed over all", edit("ring(2 * W / R, M", "ring(2 * W / R, N"),
            "only M GPUs, one of each node, have the same share: the ring has M ranks."),
    Mistake("a stage has all layers", edit("4 * L / M * batch", "4 * L * batch"),
            "across the nodes the layers are divided: a node has L/M of them."),
    Mistake("N stages", edit("+ pipeline(M)", "+ pipeline(N)"),
            "a node is one stage: M of them, not N."),
    Mistake("does not look at memory", edit(" and state / parts <= cluster.memory", ""),
            "some of these do not fit: 16 bytes per parameter, divided as the table says."),
    Mistake("counts the weights alone", edit('model_state_bytes(W, "mixed")', "2 * W"),
            "the state is 16 bytes per parameter (section 1), not the weights' 2."),
    Mistake("state over all GPUs", edit("R, batch >= M", "N, batch >= M"),
            "each node has a whole copy: of the state, a GPU has one of R shares."),
    Mistake("more copies than sequences", edit("(N, batch >= N, b",
        "(N, True, b").then("(1, batch >= N", "(1, True"),
            "a copy of the model without a sequence has nothing to do: at most B copies."),
    Mistake("more stages than layers", edit("(N, N <= L", "(N, True"),
            "a stage has at least one layer."),
    Mistake("fits only with room left", edit("<= cluster.memory", "< cluster.memory"),
            "what is exactly as large as the memory fits."),
    Mistake("fewer than B copies",
            edit("(N, batch >= N, b", "(N, batch > N, b").then("(1, batch >= N", "(1, batch > N"),
            "as many copies as sequences are allowed."),
)  # fmt: skip
### END MISTAKES
