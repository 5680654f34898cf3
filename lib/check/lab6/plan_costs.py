"""Lab 6, section 4, bonus: what a plan costs. plan_memory(model, plan), plan_bubble(plan),
plan_messages(model, plan).

Right is what `lib.cost.by_hand` says, case by case.
"""

from math import isclose

from lib.check import symptoms as s
from lib.check.claims import claim, is_number, numbers, without_ranks
from lib.check.exercise import Bundle, Exercise, Hint, Problem, Run
from lib.check.left_out import NO_RANKS
from lib.check.pure import GENERAL, LEAVES_OUT, NOTHING, asked, new_each_time, same_again
from lib.cost import by_hand
from lib.cost.plan import Plan
from lib.cost.shapes import load, shape

GPT3, GPT1T = load("gpt-3-175b"), load("gpt-1t")
# Radford et al. 2019, the smallest
GPT2 = shape("gpt-2", layers=12, hidden=768, heads=12, vocab=50257, seq=1024)


def _plan(batch, b, tp, pp, dp, v=1, zero=0):
    return Plan(batch, b, tp, pp, dp, v=v, zero=zero, sequence_parallel=tp > 1)


ONE_STAGE = [
    (GPT2, _plan(8, 2, 1, 1, 1)),
    (GPT3, _plan(64, 1, 8, 1, 2)),
    (GPT2, _plan(8, 1, 4, 1, 1)),
]
STAGES = [
    (GPT3, _plan(64, 1, 8, 8, 1)),
    (GPT2, _plan(32, 4, 2, 3, 1)),
    (GPT1T, _plan(3072, 1, 8, 64, 6)),
]
ZERO_1 = [(GPT3, _plan(1536, 1, 8, 16, 8, zero=1)), (GPT2, _plan(64, 2, 4, 1, 8, zero=1)),
          (GPT2, _plan(24, 2, 1, 4, 1, zero=1)), (GPT3, _plan(512, 2, 8, 4, 8,
              zero=1))]  # fmt: skip
FEW = [
    (GPT3, _plan(16, 1, 8, 8, 4, zero=1)),
    (GPT1T, _plan(16, 2, 8, 64, 2)),
    (GPT2, _plan(2, 1, 1, 3, 1)),
]
INTERLEAVED = [(GPT3, _plan(64, 1, 8, 8, 1, v=3)), (GPT3, _plan(512, 2, 8, 4, 8, v=12, zero=1)),
               (GPT2, _plan(24, 2, 1, 2, 3, v=2))]  # fmt: skip
ALL = [*ONE_STAGE, *STAGES, *ZERO_1, *FEW, *INTERLEAVED]
NOT_INTERLEAVED = [case for case in ALL if case not in INTERLEAVED]
AXES = ("tp", "pp", "dp")
UNITS = (1e3, 1e6, 1e9, 1e12, 2**10, 2**20, 2**30, 2**40)


def _words(model, plan):
    degrees = f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp}, v {plan.v}"
    return (
        f"{model.name}, {degrees}, b {plan.micro_batch}, m {plan.micro_batches}, ZeRO {plan.zero}"
    )


def _measure(builds, cases=ALL, given=lambda *case: case):
    return lambda fn: asked(
        fn, builds, cases, given, lambda out, *_: dict(out) if isinstance(out, dict) else out
    )


def _returned(cases):
    """A judge: none of these calls raised, and the first gives the same at the end."""

    @without_ranks
    def judge(seen):
        case = next((case for case in cases if isinstance(seen[case], Problem)), None)
        return case and Problem(
            seen[case].kind, f"{_words(*case)}: {seen[case].text}", seen[case].facts
        )

    return lambda runs: judge(runs) or same_again(_words)(runs)


@without_ranks
def _dicts(seen):
    """A judge: in each case a dict of three numbers."""
    for case in ALL:
        got = seen[case]
        if not isinstance(got, dict) or set(got) != set(AXES):
            what = (
                f"a dict of {', '.join(map(repr, got))}"
                if isinstance(got, dict)
                else f"{got!r:.60}"
            )
            kind = "nothing" if got is None else "form"
            return Problem(
                kind, f'{_words(*case)}: expected a dict of "tp", "pp" and "dp", got {what}'
            )
        axis = next((axis for axis in AXES if not is_number(got[axis])), None)
        if axis:
            return Problem(
                "form", f'{_words(*case)}: "{axis}": expected a number, got {got[axis]!r:.60}'
            )
    return None


def _along(axis):
    """A judge: the bytes along this axis. facts: halved, the axes along which all that is
    wrong is half of it."""
    judges = {}
    for one in AXES:
        words = lambda *case, one=one: f'{_words(*case)}: "{one}"'
        right = lambda *case, one=one: by_hand.plan_messages(*case)[one]
        judges[one] = numbers(right, ALL, words, unit_name=" bytes")

    @without_ranks
    def judge(seen):
        found = {
            one: judges[one]([Run(0, [{case: seen[case][one] for case in ALL}], None)])
            for one in AXES
        }
        half = lambda problem: (
            problem and all(isclose(2 * got, want) for got, want in problem.facts["wrong"].values())
        )
        halved = tuple(one for one in AXES if half(found[one]))
        if found[axis] and axis in halved:
            found[axis].facts["halved"] = halved if halved in HALVED else (axis,)
        return found[axis]

    return judge


HALVED = {  # which axes are half of what they should be
    AXES: ("elements for bytes", "that counts numbers. One of 16 bits takes 2 bytes."),
    ("tp", "dp"): (
        "one pass of the ring",
        "a ring sends (N-1)/N of the tensor twice, to add it up and to hand out the sum: 2 (N-1)/N "
        "of its bytes.",
    ),
    ("tp", "pp"): ("activations' bytes", "activations have 16 bits: 2 s b h bytes."),
    ("tp",): (
        "two all-reduces",
        "a layer has two all-reduces forward, behind attention and behind the MLP, and two "
        "backward: 4. And a ring sends (N-1)/N of a tensor twice.",
    ),
    ("pp",): (
        "one way",
        "a stage in the middle sends activations on and gradients back: 2 messages.",
    ),
    ("dp",): ("half of dp", "a gradient has 2 bytes, and an all-reduce sends 2 (N-1)/N of them."),
}


def _wrong(fits):
    """For hints: is fits(got, expected) true of all that is wrong?"""
    return lambda p: (
        bool(p.fact("wrong")) and all(fits(*pair) for pair in p.facts["wrong"].values())
    )


_in_a_unit = s.either(
    *(_wrong(lambda got, want, unit=unit: isclose(got * unit, want)) for unit in UNITS)
)
_rounded = _wrong(
    lambda got, want: (
        isclose(got, want, rel_tol=1e-3) or (got == round(got, 3) and abs(got - want) < 6e-3)
    )
)

CALLS_LIB = s.CALLED_LIB.saying("the formula is one line or two: write it out.")
NO_NUMBER = Hint(
    "no number", s.kind("returned"), "return one number, the sum: no tuple, no text, no tensor."
)
UNIT = Hint("another unit", _in_a_unit, "return plain bytes, and divide only to print.")
ROUNDED = Hint(
    "rounded", _rounded, "this looks rounded. Return the number as it is; round when you print it."
)

MEMORY = Exercise(
    name="plan_memory", reference=by_hand.plan_memory,
    measure=_measure(by_hand.plan_memory, ONE_STAGE + STAGES + ZERO_1 + FEW), worlds=(),
    leaves_out=NO_RANKS,
    claims=tuple(
        claim(name, points, says, _returned(cases),
              numbers(by_hand.plan_memory, cases, _words, unit_name=" bytes"))
        for name, points, says, cases in (
            ("one stage", 2, "GPT-2, GPT-3; t = 1, 4, 8", ONE_STAGE),
            ("stages", 2, "GPT-3 in 8, GPT 1T in 64, GPT-2 in 3", STAGES),
            ("ZeRO-1", 2, "d = 1 and 8; m = 4 to 192", ZERO_1),
            ("fewer micro-batches than stages", 1, "m = 2 and 4", FEW),
        )
    ),
    hints=(CALLS_LIB, s.NO_NUMBER, NO_NUMBER, UNIT, ROUNDED, *s.ANYWHERE),
)  # fmt: skip
PIPELINE = Exercise(
    name="plan_bubble", reference=by_hand.plan_bubble,
    measure=_measure(by_hand.plan_bubble, given=lambda model, plan: (plan,)), worlds=(),
    leaves_out=NO_RANKS,
    claims=tuple(
        claim(name, points, says, _returned(cases),
              numbers(lambda _, plan: by_hand.plan_bubble(plan), cases, _words))
        for name, points, says, cases in (
            ("one stage per rank", 2, "p = 1 to 64; m = 2 to 512", NOT_INTERLEAVED),
            ("v stages per rank", 1, "v = 2, 3, 12", INTERLEAVED),
        )
    ),
    hints=(CALLS_LIB, s.NO_NUMBER, NO_NUMBER, ROUNDED, *s.ANYWHERE),
)  # fmt: skip
MESSAGES = Exercise(
    name="plan_messages", reference=by_hand.plan_messages, measure=_measure(by_hand.plan_messages),
    worlds=(),
    leaves_out=LEAVES_OUT,
    claims=(
        claim("along tp", 2, "4 all-reduces per layer and micro-batch",
              _returned(ALL), _dicts, new_each_time(_words), _along("tp")),
        claim("along pp", 2, "both directions; v = 1 to 12; nothing for p = 1", _along("pp")),
        claim("along dp", 2, "one all-reduce of the gradients", _along("dp")),
    ),
    hints=(
        CALLS_LIB,
        NOTHING,
        Hint("no dict", s.kind("form"), 'return {"tp": ..., "pp": ..., "dp": ...}, three numbers.'),
        UNIT, ROUNDED,
        *(Hint(name, s.fact("halved", axes), text) for axes, (name, text) in HALVED.items()),
        *GENERAL,
    ),
)  # fmt: skip
EXERCISE = Bundle("plan_costs", (MEMORY, PIPELINE, MESSAGES), bonus=True)
