"""Lab 6, section 2, the hunt: findings(), which says what is wrong with each of ten jobs. The jobs
are drawn with the seed that it returns.

right   a Finding whose mistake, axis, step and evidence are all as drawn, or a correct HEALTHY
points  for four, six and all eight mistakes; the two healthy jobs come last, because they can be
        guessed
wrong   the job is run again, and the verdict says what in its Evidence contradicts the finding

A Problem's fact `why` is the name of its hint.
"""

from numbers import Integral

from lib.check.causes import hints
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Problem
from lib.check.explain import cut
from lib.check.guard import noting_calls
from lib.check.left_out import LEAVES_OUT
from lib.hybrid import hunt
from lib.hybrid.hunt import HEALTHY, JOBS, KINDS, MISTAKES, STEPS, Finding, alike
from lib.hybrid.hunt.draw import drawn

FORM = "(seed, {number: Finding or HEALTHY})"
FIELDS = {
    "mistake": tuple(MISTAKES), "axis": ("pp", "dp", "ep", "tp"), "step": range(STEPS),
    "evidence": KINDS,
}  # fmt: skip
SHOWS_IN = {  # where these mistakes may show first; all others show first in a gradient
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
FEW = 2  # if at least this many jobs are right, the seed must be right, too


def _problem(why, text):
    return Problem("said", text, {"why": why})


def _measure(fn):
    with noting_calls(hunt.findings, drawn) as calls:
        got = fn()
    told = "it asks lib what the jobs are, which is what this exercise asks for"
    return Problem("built-in", told) if calls else read(got)


def read(got):
    """Turn what an answer returned into (seed, {number: Finding or HEALTHY}). Returns a Problem if
    it has another form."""
    if got is None:
        return _problem("nothing returned", f"expected {FORM}, got None")
    good = isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[1], dict)
    if not good or not isinstance(got[0], Integral) or isinstance(got[0], bool):
        return _problem("no seed and jobs", f"expected {FORM}, got {cut(got)}")
    seed, said = got
    if set(said) != set(range(JOBS)):
        text = f"expected the jobs 0 to {JOBS - 1}, got {', '.join(map(str, said)):.80}"
        return _problem("not ten jobs", text)
    for number, finding in sorted(said.items()):
        if odd := _odd(finding):
            return _problem("no finding", f"job {number}: {odd}")
    as_one = lambda finding: HEALTHY if finding == HEALTHY else Finding(*finding)
    return int(seed), {number: as_one(finding) for number, finding in said.items()}


def _odd(finding) -> str:
    """A sentence that says why this is not a finding, or ""."""
    if isinstance(finding, str) and finding == HEALTHY:
        return ""
    if not isinstance(finding, tuple | list) or len(finding) != len(FIELDS):
        return f"expected a Finding or HEALTHY, got {cut(finding)}"
    fields = zip(finding, FIELDS.items(), strict=True)
    told = (
        f"{what} is {cut(got, 60)}, expected one of {', '.join(map(str, known))}"
        for got, (what, known) in fields
        if got not in known
    )
    return next(told, "")


def right_ones(seed, said):
    """Returns two lists of job numbers: those whose mistake is found, and the healthy ones that are
    called healthy. said: {number: Finding or HEALTHY}."""
    truth = {number: each for number, (_, _, each) in enumerate(drawn(seed))}
    right = [number for number, each in truth.items() if said[number] == each]
    return [n for n in right if truth[n] != HEALTHY], [n for n in right if truth[n] == HEALTHY]


def _found(most):
    """A judge: at least `most` mistakes are found or, if it is None, all ten jobs are right."""

    @without_ranks
    def judge(got):
        if isinstance(got, Problem):
            return got
        seed, said = got
        mistakes, healthy = right_ones(seed, said)
        fit = mistakes + healthy
        if len(mistakes) >= most if most else len(fit) == JOBS:
            return None
        number = next(number for number in range(JOBS) if number not in fit)
        why, text = against(said[number], hunt.job(seed, number))
        finding = HEALTHY if said[number] == HEALTHY else ", ".join(map(str, said[number]))
        if len(fit) < FEW:
            named = [finding.mistake for finding in said.values() if finding != HEALTHY]
            again = len({*named}) < len(named)
            why = "a mistake in several jobs" if again else "another seed's"
        return _problem(why, f"job {number} of seed {seed}: {finding}\n{text}")

    return judge


def against(finding, e) -> tuple[str, str]:
    """What in the Evidence of its job contradicts a wrong finding: (a hint's name, a text)."""
    places = [(step, kind) for step in range(e.steps) for kind in KINDS]
    off = {
        (step, kind): [what for k, what in e.quantities if k == kind and any(e.off(step, k, what))]
        for step, kind in places
    }
    if not any(off.values()):
        return "called ill", "nothing is off: every rank holds what one process has, in every step"
    if finding == HEALTHY:
        return "called healthy", "it is not: ranks hold numbers that one process does not have"
    mistake, axis, step, kind = finding
    if axis not in e.sizes:
        return "no such axis", f"its mesh has no {axis}: {e.sizes}"
    if not off[step, kind]:
        return "not the first", f"the {kind} of step {step} is as in one process, on every rank"
    if any(off[place] for place in places[: places.index((step, kind))]):
        text = f"the {kind} of step {step} is off, but not first: something before it is, too"
        return "not the first", text
    if kind not in (shows := SHOWS_IN.get(mistake, ("gradient",))):
        text = f"this mistake would show in the {' or '.join(shows)} first; here it is the {kind}"
        return "it would show elsewhere", text
    if kind == "gradient" and (told := _of_gradients(mistake, off[step, kind], step, e)):
        return told
    told = [line for line in e.agreement(step, kind).split("\n") if f" along {axis}: " in line]
    return "another axis", f"{kind}, of ranks that differ in {axis}:\n" + "\n".join(told)


def _of_gradients(mistake, off, step, e):
    """The same for a finding in gradients, or None if the mistake could have caused them. off: the
    sets of gradients that are off."""
    sets, there = CHANGES.get(mistake), [what for kind, what in e.quantities if kind == "gradient"]
    if sets and off != [sets]:
        text = f"this mistake changes the {sets} gradients alone; here {', '.join(off)} are off"
        return "it would show elsewhere", text
    if not sets and len(off) == 1 and len(there) > 1 and off[0] in CHANGES.values():
        text = f"this mistake changes more than the {off[0]} gradients, and only they are off"
        return "it would show elsewhere", text
    held = e.held(step, "gradient", off[0])
    apart = [axis for axis in ("dp", "ep") if axis in e.sizes and not alike(held, axis, e.sizes)]
    if mistake == "local tokens" and apart:
        text = f"ranks along {apart[0]} hold different {off[0]} gradients: no weight of a loss "
        return "averaged, or not", f"{text}does that"
    return None


EXERCISE = Exercise(
    name="findings", reference=hunt.findings, measure=_measure, worlds=(),
    leaves_out=LEAVES_OUT | {"again": "it has no arguments"},
    claims=(
        claim("four mistakes", 4, "each with its axis, first step and first evidence", _found(4)),
        claim("six mistakes", 3, "the same", _found(6)),
        claim("all eight", 4, "the same", _found(8)),
        claim("and the two healthy jobs", 3, "no mistake where there is none", _found(None)),
    ),
    hints=hints("lab6", "findings"),
)  # fmt: skip
