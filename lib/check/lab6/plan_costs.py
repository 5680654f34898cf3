"""Lab 6, section 4, bonus: plan_memory(model, plan), plan_bubble(plan) and
plan_messages(model, plan), which say what a plan costs."""

from lib.check.causes import hints
from lib.check.exercise import Bundle
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.numbers import NO_NUMBER, is_finite, is_one, show_times
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.cost import by_hand
from lib.cost.plan import Plan
from lib.cost.shapes import load, shape

GPT3, GPT1T = load("gpt-3-175b"), load("gpt-1t")
# the smallest model of Radford et al. 2019
GPT2 = shape("gpt-2", layers=12, hidden=768, heads=12, vocab=50257, seq=1024)


def _plan(batch, b, tp, pp, dp, v=1, zero=0):
    return Plan(batch, b, tp, pp, dp, v=v, zero=zero, sequence_parallel=tp > 1)


def _words(model, plan):
    degrees = f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp}, v {plan.v}, b {plan.micro_batch}"
    return f"{model.name}, {degrees}, m {plan.micro_batches}, ZeRO {plan.zero}"


JOBS = {  # a claim of plan_memory -> models and plans
    "one stage": [
        (GPT2, _plan(8, 2, 1, 1, 1)), (GPT3, _plan(64, 1, 8, 1, 2)), (GPT2, _plan(8, 1, 4, 1, 1)),
    ],
    "stages": [
        (GPT3, _plan(64, 1, 8, 8, 1)), (GPT2, _plan(32, 4, 2, 3, 1)),
        (GPT1T, _plan(3072, 1, 8, 64, 6)),
    ],
    "ZeRO-1": [
        (GPT3, _plan(1536, 1, 8, 16, 8, zero=1)), (GPT2, _plan(64, 2, 4, 1, 8, zero=1)),
        (GPT2, _plan(24, 2, 1, 4, 1, zero=1)), (GPT3, _plan(512, 2, 8, 4, 8, zero=1)),
    ],
    "few micro-batches": [
        (GPT3, _plan(16, 1, 8, 8, 4, zero=1)), (GPT1T, _plan(16, 2, 8, 64, 2)),
        (GPT2, _plan(2, 1, 1, 3, 1)),
    ],
    "interleaved": [
        (GPT3, _plan(64, 1, 8, 8, 1, v=3)), (GPT3, _plan(512, 2, 8, 4, 8, v=12, zero=1)),
        (GPT2, _plan(24, 2, 1, 2, 3, v=2)),
    ],
}  # fmt: skip
CASES_OF = {kind: here(*(_words(*job) for job in jobs)) for kind, jobs in JOBS.items()}
JOB_OF = {
    case: job for kind, jobs in JOBS.items() for case, job in zip(CASES_OF[kind], jobs, strict=True)
}
ALL, INTERLEAVED = tuple(JOB_OF), CASES_OF["interleaved"]
NOT_INTERLEAVED = ALL[: -len(INTERLEAVED)]
AXES = ("tp", "pp", "dp")


def memory(make, case, show):
    if is_one(show, out := show.run(make, *JOB_OF[case])):
        show_times(show, "bytes", float(out))


def bubble(make, case, show):
    if is_one(show, out := show.run(make, JOB_OF[case][1])):
        show_times(show, "the bubble", float(out))


def messages(make, case, show):
    out = show.run(make, *JOB_OF[case])
    is_dict = isinstance(out, dict) and {*out} == {*AXES} and all(map(is_finite, out.values()))
    if show.returned(out, is_dict, 'a dict of three numbers, "tp", "pp" and "dp"', "a dict"):
        for axis in AXES:
            show_times(show, f"bytes along {axis}", float(out[axis]))


def _exercise(script, reference, *rows):
    """rows: the claims, as `shown.claims` takes them."""
    measure = SideBySide(script, reference, ALL, groups=None, excused=NO_TENSORS)
    name, leaves_out = reference.__name__, LEAVES_OUT | {"returned": "a number"}
    return measure.exercise(
        *rows,
        hints=hints("lab6", "plan_costs", name),
        leaves_out=LEAVES_OUT if script is messages else leaves_out,
    )  # fmt: skip


def _in(kind, name):
    return (RETURNED, NO_NUMBER, name), CASES_OF[kind]


OF_MEMORY = _exercise(
    memory, by_hand.plan_memory,
    ("one stage", 2, "GPT-2, GPT-3; t = 1, 4, 8", _in("one stage", "bytes")),
    ("stages", 2, "GPT-3 in 8, GPT 1T in 64, GPT-2 in 3", _in("stages", "bytes")),
    ("ZeRO-1", 2, "d = 1 and 8; m = 4 to 192", _in("ZeRO-1", "bytes")),
    ("fewer micro-batches than stages", 1, "m = 2 and 4; v counts as 1", "bytes"),
)  # fmt: skip
OF_BUBBLE = _exercise(
    bubble, by_hand.plan_bubble,
    ("one stage per rank", 2, "p = 1 to 64; m = 2 to 512",
     ((RETURNED, NO_NUMBER, "the bubble"), NOT_INTERLEAVED)),
    ("v stages per rank", 1, "v = 2, 3, 12", "the bubble"),
)  # fmt: skip
OF_MESSAGES = _exercise(
    messages, by_hand.plan_messages,
    ("along tp", 2, "4 all-reduces per layer and micro-batch",
     RETURNED, "a dict", "changed later", "bytes along tp"),
    ("along pp", 2, "both directions; v = 1 to 12; nothing for p = 1", "bytes along pp"),
    ("along dp", 2, "one all-reduce of the gradients", "bytes along dp"),
)  # fmt: skip
EXERCISE = Bundle("plan_costs", (OF_MEMORY, OF_BUBBLE, OF_MESSAGES), bonus=True)
