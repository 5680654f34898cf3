"""Lab 6, section 2, the hunt: findings(), what is wrong with which of ten jobs, drawn by the seed
that it returns.

right   a Finding with mistake, axis, step and evidence as drawn, or HEALTHY;
        anything less counts nothing
points  for mistakes that are found, four, six, all eight; last for the two healthy jobs, which
        anyone may guess
wrong   the job is run again, and what it leaves behind is asked for what speaks against the finding
"""

from numbers import Integral

from lib.check import symptoms as s
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import NO_RANKS, but
from lib.check.pure import NOTHING, noting_calls
from lib.hybrid import hunt
from lib.hybrid.hunt import HEALTHY, JOBS, KINDS, MISTAKES, STEPS, Finding, alike
from lib.hybrid.hunt.draw import drawn

AXES = ("pp", "dp", "ep", "tp")
SHOWS_IN = {  # where a mistake may show first
    "one dropout seed": ("activation",),
    "the same data": ("input",),
    "local tokens": ("loss", "gradient"),
    "local norm": ("norm", "update"),
}
CHANGES = {
    "tied embedding summed once": "tied",
    "LayerNorm not summed": "replicated",
    "experts averaged over dp": "experts",
}
CASES = 2  # of ten: with more that fit, the seed is the right one


def _measure(fn):
    with noting_calls(hunt.findings, drawn) as calls:
        got = fn()
    told = "it asks lib what the jobs are, which is what this exercise asks for"
    return Problem("built-in", told) if calls else got


def read(got):
    """(seed, {number: Finding or HEALTHY}) of what an answer returned; the Problem if that
    has another form."""
    if got is None:
        return Problem("nothing", "expected (seed, {number: Finding or HEALTHY}), got None")
    if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[1], dict):
        return Problem("form", f"expected (seed, {{number: Finding or HEALTHY}}), got {got!r:.80}")
    seed, said = got
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        return Problem("form", f"the seed is {seed!r:.40}: expected a whole number")
    if set(said) != set(range(JOBS)):
        lacking = sorted(set(range(JOBS)) - set(said))
        return Problem(
            "jobs",
            f"expected jobs 0 to {JOBS - 1}; missing are {lacking or 'none'}, got {[*said]!s:.80}",
        )
    for number, finding in sorted(said.items()):
        if problem := _odd(number, finding):
            return problem
    as_one = lambda finding: HEALTHY if finding == HEALTHY else Finding(*finding)
    return int(seed), {number: as_one(finding) for number, finding in said.items()}


def _odd(number, finding):
    """The Problem if this is no finding of the right form."""
    if isinstance(finding, str) and finding == HEALTHY:
        return None
    if not isinstance(finding, tuple | list) or len(finding) != 4:
        return Problem(
            "finding", f"job {number}: expected a Finding or HEALTHY, got {finding!r:.80}"
        )
    known = (
        (tuple(MISTAKES), "mistake"),
        (AXES, "axis"),
        (range(STEPS), "step"),
        (KINDS, "evidence"),
    )
    for got, (right, what) in zip(finding, known, strict=True):
        if got not in right:
            return Problem(
                "finding",
                f"job {number}: {what} is {got!r:.60}, expected one of "
                f"{', '.join(map(str, right))}",
            )
    return None


def right_ones(seed, said):
    """(the numbers of mistakes that are found, of healthy jobs that are called so), of {number:
    Finding or HEALTHY}."""
    truth = {number: each for number, (_, _, each) in enumerate(drawn(seed))}
    right = [number for number, each in truth.items() if said[number] == each]
    return [n for n in right if truth[n] != HEALTHY], [n for n in right if truth[n] == HEALTHY]


def _found(most):
    """A judge: so many mistakes are found, or else both healthy jobs as well (None)."""

    @without_ranks
    def judge(got):
        known = got if isinstance(got, Problem) else read(got)
        if isinstance(known, Problem):
            return known
        seed, said = known
        mistakes, healthy = right_ones(seed, said)
        if len(mistakes) >= most if most else len(mistakes) + len(healthy) == JOBS:
            return None
        number = next(number for number in range(JOBS) if number not in mistakes + healthy)
        problem = against(said[number], hunt.job(seed, number))
        finding = HEALTHY if said[number] == HEALTHY else ", ".join(map(str, said[number]))
        text = f"job {number} of seed {seed}: {finding}\n{problem.text}"
        return Problem(
            problem.kind, text, {"fit": len(mistakes) + len(healthy)}, [problem.kind, problem.text]
        )

    return judge


def against(finding, e):
    """What speaks against a wrong finding in the Evidence of its job, as a Problem."""
    places = [(step, kind) for step in range(e.steps) for kind in KINDS]
    off = {place: [what for kind, what in e.quantities if kind == place[1] and any(e.off(*place,
        what))]
           for place in places}  # fmt: skip
    if not any(off.values()):
        return Problem(
            "healthy", "nothing is off: every rank holds what one process has, in every step"
        )
    if finding == HEALTHY:
        return Problem(
            "not healthy", "it is not: ranks hold numbers that one process does not have"
        )
    mistake, axis, step, kind = finding
    if axis not in e.sizes:
        return Problem("no axis", f"its mesh has no {axis}: {e.sizes}")
    if not off[step, kind]:
        return Problem(
            "no evidence", f"the {kind} of step {step} is as in one process, on every rank"
        )
    if any(off[place] for place in places[: places.index((step, kind))]):
        return Problem(
            "earlier",
            f"the {kind} of step {step} is off, but not first: something before it is, too",
        )
    if kind not in (shows := SHOWS_IN.get(mistake, ("gradient",))):
        first = " or ".join(shows)
        return Problem(
            "another kind", f"this mistake would show in the {first} first; here it is the {kind}"
        )
    return _of_gradients(mistake, axis, step, off[step, kind],
        e) if kind == "gradient" else _of_axis(
        axis, step, kind, off[step, kind][0], e
    )  # fmt: skip


def _of_gradients(mistake, axis, step, off, e):
    sets, there = CHANGES.get(mistake), [what for kind, what in e.quantities if kind == "gradient"]
    if sets and off != [sets]:
        return Problem(
            "sets",
            f"this mistake changes the {sets} gradients alone; here {', '.join(off)} are off",
        )
    if not sets and len(off) == 1 and len(there) > 1 and off[0] in CHANGES.values():
        return Problem(
            "sets", f"this mistake changes more than the {off[0]} gradients, and only they are off"
        )
    data = [each for each in ("dp", "ep") if each in e.sizes]
    apart = [each for each in data if not alike(e.held(step, "gradient", off[0]), each, e.sizes)]
    if mistake == "local tokens" and apart:
        return Problem(
            "apart",
            f"ranks along {apart[0]} hold different {off[0]} gradients: no weight of a loss does "
            f"that",
        )
    if mistake == "mean over the wrong group" and axis not in apart:
        return Problem(
            "axis",
            f"ranks along {axis} hold the same {off[0]} gradients, or are to hold different ones",
        )
    return Problem("axis", f"along {axis} nothing is missing")


def _of_axis(axis, step, kind, what, e):
    held, alone = e.held(step, kind, what), e.alone(step, kind, what)
    if kind in ("input", "activation"):
        now, then = (alike(numbers, axis, e.sizes) for numbers in (held, alone))
        words = "the same" if now else "different numbers"
        right = ", as in one process" if now == then else ""
        return Problem("axis", f"{kind}, {what}: ranks along {axis} hold {words}{right}")
    if kind == "norm":
        return Problem("axis", f"ranks along {axis} hold the same norm: along it they have added")
    return Problem(
        "axis",
        f"{kind}, {what}: ranks along {axis} are off by the same factor: along it they have added",
    )


PLACES = (
    "no evidence",
    "earlier",
    "another kind",
    "sets",
    "apart",
    "axis",
    "no axis",
    "not healthy",
    "healthy",
)
EXERCISE = Exercise(
    name="findings", reference=hunt.findings, measure=_measure, worlds=(),
    leaves_out=but(NO_RANKS, "returned") | {"again": "it has no arguments"},
    claims=(
        claim("four mistakes", 4, "each with its axis, first step and first evidence", _found(4)),
        claim("six mistakes", 3, "the same", _found(6)),
        claim("all eight", 4, "the same", _found(8)),
        claim("and the two healthy jobs", 3, "no mistake where there is none", _found(None)),
    ),
    hints=(
        s.CALLED_LIB.saying("Try: look at what hunt.job(seed, number) leaves behind."),
        NOTHING.saying("Try: end the function with `return ...`."),
        Hint("no seed and jobs", s.kind("form"),
             "Try: return SEED, {0: Finding(...), 1: HEALTHY, ...}."),
        Hint("not ten jobs", s.kind("jobs"),
             "a job is missing, or there are others. Return a finding for each of the jobs 0 to "
             "9, HEALTHY where nothing is wrong."),
        Hint("no finding", s.kind("finding"),
             "Try: use Finding(mistake, axis, step, evidence), with the words in MISTAKES and "
             "KINDS, or HEALTHY."),
        Hint("another seed's", s.both(s.kind(*PLACES), lambda p: p.facts["fit"] < CASES),
             "hardly any finding fits, so they may be those of another seed than the one that is "
             "returned. Another seed draws other jobs."),
        Hint("called healthy", s.kind("not healthy"),
             "Try: draw plots.evidence(e.all_off()). In a box that is red, a value differs from "
             "that of a single process."),
        Hint("called ill", s.kind("healthy"),
             "a healthy job is reported as wrong. Two of the ten are healthy: those where no box "
             "of plots.evidence(e.all_off()) is red."),
        Hint("not the first", s.kind("no evidence", "earlier"),
             "this is not the first red box. Go through the steps from 0, and within a step "
             "through input, activation, loss, gradient, norm, update, on all ranks; everything "
             "that comes later may follow from the first."),
        Hint("no such axis", s.kind("no axis"),
             "the job's mesh has no such axis. e.sizes lists those that it has."),
        Hint("it would show elsewhere", s.kind("another kind", "sets"),
             "Try: think about which value such a mistake changes first. A mask changes "
             "activations, and a mean over ranks only gradients; print e.table(step) to see "
             "which of them."),
        Hint("averaged, or not", s.kind("apart"),
             "after a mean all ranks have the same values. If they do not, no mean was taken "
             "along that axis."),
        Hint("another axis", s.kind("axis"),
             "Try: compare ranks that differ along one axis alone, with alike(numbers, axis, "
             "e.sizes), and look for those that are alike and should differ, or the other way "
             "round, or are off by different factors."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
