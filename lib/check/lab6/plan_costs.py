"""Lab 6, section 5: what a plan costs. plan_memory(model, plan), plan_bubble(plan), plan_messages(model, plan).

Right is what `lib.cost.by_hand` says. What is wrong is compared with what the usual mistakes give, term by term.
"""

from numbers import Real

from lib.check.framework import Bundle, Claim, Exercise, Hint, Problem
from lib.check.lab5.here import answered, is_kind
from lib.check.lab6.plan_costs_memory import ACTIVATIONS, STATE, kept, state
from lib.check.lab6.plan_costs_messages import AXES, HALVED
from lib.check.lab6.plan_costs_mistakes import BUBBLE, bubble, equal, explained, hints_of
from lib.cost import by_hand
from lib.cost.plan import Plan
from lib.cost.shapes import load, shape

GPT3, GPT1T = load("gpt-3-175b"), load("gpt-1t")
GPT2 = shape("gpt-2", layers=12, hidden=768, heads=12, vocab=50257, seq=1024)  # Radford et al. 2019, the smallest


def _plan(batch, b, tp, pp, dp, v=1, zero=0):
    return Plan(batch, b, tp, pp, dp, v=v, zero=zero, sequence_parallel=tp > 1)


ONE_STAGE = [(GPT2, _plan(8, 2, 1, 1, 1)), (GPT3, _plan(64, 1, 8, 1, 2)), (GPT2, _plan(8, 1, 4, 1, 1))]
STAGES = [(GPT3, _plan(64, 1, 8, 8, 1)), (GPT2, _plan(32, 4, 2, 3, 1)), (GPT1T, _plan(3072, 1, 8, 64, 6))]
ZERO_1 = [(GPT3, _plan(1536, 1, 8, 16, 8, zero=1)), (GPT2, _plan(64, 2, 4, 1, 8, zero=1)),
          (GPT2, _plan(24, 2, 1, 4, 1, zero=1)), (GPT3, _plan(512, 2, 8, 4, 8, zero=1))]  # fmt: skip
FEW = [(GPT3, _plan(16, 1, 8, 8, 4, zero=1)), (GPT1T, _plan(16, 2, 8, 64, 2)), (GPT2, _plan(2, 1, 1, 3, 1))]
INTERLEAVED = [(GPT3, _plan(64, 1, 8, 8, 1, v=3)), (GPT3, _plan(512, 2, 8, 4, 8, v=12, zero=1)),
               (GPT2, _plan(24, 2, 1, 2, 3, v=2))]  # fmt: skip
ALL = [*ONE_STAGE, *STAGES, *ZERO_1, *FEW, *INTERLEAVED]
NOT_INTERLEAVED = [case for case in ALL if case not in INTERLEAVED]
UNITS = (1e3, 1e6, 1e9, 1e12, 2**10, 2**20, 2**30, 2**40)


def _words(model, plan):
    degrees = f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp}, v {plan.v}"
    return f"{model.name}, {degrees}, b {plan.micro_batch}, m {plan.micro_batches}, ZeRO {plan.zero}"


def _measure(builds, cases=ALL, arguments=lambda model, plan: (model, plan)):
    return lambda fn: {case: answered(builds, fn, _words(*case), *arguments(*case)) for case in cases}


def _is_number(got):
    return isinstance(got, Real) and not isinstance(got, bool)


def _judge(cases, judged):
    """As a claim's judge: judged(what came out, {case: ...}, `cases`) -> Problem or None."""

    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        failed = next((seen[case] for case in cases if isinstance(seen[case], Problem)), None)
        return failed or judged({case: got for case, got in seen.items() if not isinstance(got, Problem)}, cases)

    return judge


def _number(terms, told):
    """For _judge: the number is the sum of the terms. told(case, mistakes, functions): more about what is wrong."""
    right = lambda case: sum(term(*case) for term, _ in terms)

    def judged(seen, cases):
        numbers = {case: got for case, got in seen.items() if _is_number(got)}
        wrong = {case: got for case, got in numbers.items() if not equal(got, right(case))}
        for case in cases:
            got, text = seen[case], f"{_words(*case)}: expected {right(case):,.15g}, got "
            if not _is_number(got):
                return Problem("form", f"{text}{got!r:.60}, a {type(got).__name__}", {"got": got})
            if case in wrong:
                mistakes, functions = explained(wrong, terms) or ([], [])
                facts = {"mistakes": [m.name for m in mistakes if m] or [""], "is": _unit(wrong, right)}
                return Problem("value", f"{text}{got:,.15g}{told(case, mistakes, functions)}", facts)
        return None

    return judged


def _unit(wrong, right):
    """Is it the right number of bytes, said in another unit?"""
    said = any(all(equal(got * unit, right(case)) for case, got in wrong.items()) for unit in UNITS)
    return "another unit" if said else ""


def _told_of_memory(case, mistakes, functions):
    text = f"\nExpected: {state(*case) / 1e9:.6g} GB of model state + {kept(*case) / 1e9:.6g} GB of activations."
    if not mistakes:
        return text
    parts = [f"{function(*case) / 1e9:.6g} GB" for function in functions]
    names = [f"{what} ({m.name})" for what, m in zip(("model state", "activations"), mistakes, strict=True) if m]
    return f"{text}\nYours, it seems: {' + '.join(parts)}. Wrong: {' and '.join(names)}."


def _dict(seen, cases):
    """For _judge: the Problem that there is no dict of three numbers, or None."""
    for case in cases:
        got = seen[case]
        if not isinstance(got, dict) or set(got) != set(AXES):
            what = f"a dict of {', '.join(map(repr, got))}" if isinstance(got, dict) else f"{got!r:.60}"
            return Problem("form", f'{_words(*case)}: expected a dict of "tp", "pp" and "dp", got {what}', {"got": got})
        axis = next((axis for axis in AXES if not _is_number(got[axis])), None)
        if axis:
            text = f'{_words(*case)}: "{axis}": expected a number, got {got[axis]!r:.60}'
            return Problem("form", text, {"got": got[axis]})
    return None


def _along(axis):
    """For _judge: are the bytes along this axis right?"""

    def judged(seen, cases):
        problem = _dict(seen, cases)
        if problem:
            return problem
        dicts = {case: got for case, got in seen.items() if _dict(seen, [case]) is None}
        wrong = {a: {c: got[a] for c, got in dicts.items() if not equal(got[a], AXES[a][0](*c))} for a in AXES}
        if not wrong[axis]:
            return None
        found = {a: explained(wrong[a], [AXES[a]]) for a in AXES if wrong[a]}
        names = {a: of[0][0].name for a, of in found.items() if of}
        halved = HALVED.get(tuple(a for a in AXES if names.get(a) == "half")) or HALVED[axis,]
        name = halved.name if names.get(axis) == "half" else names.get(axis, "")
        case, got = next((case, wrong[axis][case]) for case in cases if case in wrong[axis])
        right = AXES[axis][0](*case)
        text = f'{_words(*case)}: "{axis}": expected {right:,.15g} bytes, got {got:,.15g}'
        text += f" = {got / right:.6g} x expected" if right else ""
        units = _unit(wrong[axis], lambda case: AXES[axis][0](*case))
        return Problem("value", text, {"mistakes": [name], "is": units, "axis": axis})

    return judged


NO_RETURN = Hint(
    "nothing returned",
    lambda p: p.kind == "form" and p.facts["got"] is None,
    "the function must end with `return ...`.",
)
NO_NUMBER = Hint("no number", is_kind("form"), "return one number, the sum: no tuple, no text, no tensor.")
CALLS_LIB = Hint("called lib's", is_kind("built-in"), "the formula is one line or two: write it out.")
UNIT = Hint("another unit", is_kind("value", "another unit"), "return plain bytes, and divide only to print.")

MEMORY = Exercise(
    name="plan_memory",
    reference=by_hand.plan_memory,
    measure=_measure(by_hand.plan_memory, ONE_STAGE + STAGES + ZERO_1 + FEW),
    worlds=(),
    claims=tuple(
        Claim(name, points, says, _judge(cases, _number(((state, STATE), (kept, ACTIVATIONS)), _told_of_memory)))
        for name, points, says, cases in (
            ("one stage", 2, "GPT-2, GPT-3; t = 1, 4, 8", ONE_STAGE),
            ("stages", 2, "GPT-3 in 8, GPT 1T in 64, GPT-2 in 3", STAGES),
            ("ZeRO-1", 2, "d = 1 and 8; m = 4 to 192", ZERO_1),
            ("fewer micro-batches than stages", 1, "m = 2 and 4", FEW),
        )
    ),
    hints=(CALLS_LIB, NO_RETURN, NO_NUMBER, UNIT, *hints_of(*STATE, *ACTIVATIONS)),
)
PIPELINE = Exercise(
    name="plan_bubble",
    reference=by_hand.plan_bubble,
    measure=_measure(by_hand.plan_bubble, arguments=lambda model, plan: (plan,)),
    worlds=(),
    claims=tuple(
        Claim(name, points, says, _judge(cases, _number(((bubble, BUBBLE),), lambda *_: "")))
        for name, points, says, cases in (
            ("one stage per rank", 2, "p = 1 to 64; m = 2 to 512", NOT_INTERLEAVED),
            ("v stages per rank", 1, "v = 2, 3, 12", INTERLEAVED),
        )
    ),
    hints=(CALLS_LIB, NO_RETURN, NO_NUMBER, *hints_of(*BUBBLE)),
)
MESSAGES = Exercise(
    name="plan_messages",
    reference=by_hand.plan_messages,
    measure=_measure(by_hand.plan_messages),
    worlds=(),
    claims=tuple(
        Claim(f"along {axis}", 2, says, _judge(ALL, _along(axis)))
        for axis, says in (
            ("tp", "4 all-reduces a layer and micro-batch"),
            ("pp", "on and back; v = 1 to 12; p = 1: nothing"),
            ("dp", "one all-reduce of the gradients"),
        )
    ),
    hints=(
        CALLS_LIB, NO_RETURN,
        Hint("no dict", is_kind("form"), 'return {"tp": ..., "pp": ..., "dp": ...}, three numbers.'),
        UNIT, *hints_of(*HALVED.values(), *AXES["tp"][1][1:], *AXES["pp"][1][1:], *AXES["dp"][1][1:]),
    ),
)  # fmt: skip
EXERCISE = Bundle("plan_costs", (MEMORY, PIPELINE, MESSAGES))
