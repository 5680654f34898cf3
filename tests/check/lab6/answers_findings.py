"""Answers to Lab 6's findings, the hunt: wrong ones, each with its hint, and right ones.

What is wrong with a finding is made from what is drawn, so that another draw needs no other
answers.
"""

from as_an_answer import as_an_answer

from lib.hybrid import hunt
from lib.hybrid.hunt import HEALTHY, MISTAKES, Finding, alike
from lib.hybrid.hunt.draw import drawn

SEED = 2026
TRUTH, OF_7 = (dict(enumerate(each for _, _, each in drawn(seed))) for seed in (SEED, 7))
OF = {each.mistake: number for number, each in TRUTH.items() if each != HEALTHY}
SIZES = [setup.sizes for setup, _, _ in drawn(SEED)]


def with_wrong(mistake, /, **changes):
    """(SEED, the truth, but that the finding of this mistake's job is changed)."""
    return SEED, TRUTH | {OF[mistake]: TRUTH[OF[mistake]]._replace(**changes)}


def other_axis(mistake):
    number = OF[mistake]
    return next(axis for axis in SIZES[number] if axis != TRUTH[number].axis)


# right


def as_in_the_notebook():
    return SEED, dict(TRUTH)


def plain_tuples_in_another_order():
    return [
        SEED,
        {n: tuple(TRUTH[n]) if TRUTH[n] != HEALTHY else "healthy" for n in reversed(range(10))},
    ]


def of_another_seed():
    return 7, dict(OF_7)


def by_a_program():
    """Written unlike lib's: pictures first, then one question for each kind."""
    found = {}
    for number in range(10):
        e = hunt.job(SEED, number)
        red = [(step, kind, what, held)
               for step in range(e.steps) for (kind, what), steps in e.all_off().items()
               for held in [steps[step]] if any(held)]  # fmt: skip
        if not red:
            found[number] = HEALTHY
            continue
        step, kind = red[0][:2]
        sets = {what for s, k, what, _ in red if (s, k) == (step, kind)}
        numbers = e.held(step, kind, red[0][2])
        alone = e.alone(step, kind, red[0][2])
        apart = {axis for axis in e.sizes if not alike(numbers, axis, e.sizes)}
        data = {"dp", "ep"} & set(e.sizes)
        if kind == "gradient" and len(sets) == 1 and sets & {"tied", "replicated", "experts"}:
            mistake, axis = {
                "tied": ("tied embedding summed once", "pp"),
                "replicated": ("LayerNorm not summed", "tp"),
                "experts": ("experts averaged over dp", "ep"),
            }[sets.pop()]
        elif kind == "gradient":
            mistake = "mean over the wrong group" if apart & data else "local tokens"
            axis = min(apart & data or data)
        elif kind in ("input", "activation"):
            mistake = "the same data" if kind == "input" else "one dropout seed"
            axis = next(
                a for a in e.sizes if alike(numbers, a, e.sizes) and not alike(alone, a, e.sizes)
            )
        else:
            mistake = "local tokens" if kind == "loss" else "local norm"
            ratios = [None if n is None else n / a for n, a in zip(numbers, alone, strict=True)]
            axis = next(a for a in e.sizes if not alike(ratios, a, e.sizes))
        found[number] = Finding(mistake, axis, step, kind)
    return SEED, found


# wrong


def asks_what_is_drawn():
    return SEED, dict(enumerate(each for _, _, each in drawn(SEED)))


def calls_libs():
    return hunt.findings(SEED)


def nothing_returned():
    hunt.MISTAKES.get(SEED)


def findings_alone():
    return dict(TRUTH)


def a_seed_in_words():
    return "2026", dict(TRUTH)


def nine_jobs():
    return SEED, {number: each for number, each in TRUTH.items() if number < 9}


def jobs_from_1_to_10():
    return SEED, {number + 1: each for number, each in TRUTH.items()}


def only_mistakes():
    return SEED, {n: each if each == HEALTHY else each.mistake for n, each in TRUTH.items()}


def another_word():
    return with_wrong("local norm", mistake="norm")


def no_such_step():
    return with_wrong("local norm", step=5)


def another_seed_s():
    return SEED, dict(OF_7)


def all_healthy():
    return SEED, dict.fromkeys(range(10), HEALTHY)


def one_called_healthy():
    return SEED, TRUTH | {OF["the same data"]: HEALTHY}


def a_step_too_late():
    number = OF["one dropout seed"]
    return with_wrong("one dropout seed", step=TRUTH[number].step + 1)


def the_step_after_it():
    return with_wrong("the same data", evidence="loss")


def a_healthy_one_accused():
    number = min(n for n, each in TRUTH.items() if each == HEALTHY)
    return SEED, TRUTH | {number: Finding("local tokens", min(SIZES[number]), 0, "loss")}


def an_axis_that_is_not_there():
    number = OF["the same data"]
    lacking = next(axis for axis in ("dp", "ep", "tp", "pp") if axis not in SIZES[number])
    return with_wrong("the same data", axis=lacking)


def input_for_activation():
    return with_wrong("the same data", mistake="one dropout seed")


def one_set_for_another():
    return with_wrong("LayerNorm not summed", mistake="tied embedding summed once")


def all_sets_for_one():
    return with_wrong("experts averaged over dp", mistake="mean over the wrong group")


def local_tokens_for_no_mean():
    return with_wrong("mean over the wrong group", mistake="local tokens")


def the_axis_that_was_averaged():
    return with_wrong("mean over the wrong group", axis=other_axis("mean over the wrong group"))


def masks_along_another_axis():
    return with_wrong("one dropout seed", axis=other_axis("one dropout seed"))


def tokens_along_another_axis():
    return with_wrong("local tokens", axis=other_axis("local tokens"))


def a_norm_along_another_axis():
    return with_wrong("local norm", axis=other_axis("local norm"))


def one_mistake_in_every_job():
    found = TRUTH[OF["one dropout seed"]]
    return SEED, {number: found._replace(axis=min(sizes)) for number, sizes in enumerate(SIZES)}


def not_written_yet():
    raise NotImplementedError


def exits():
    raise SystemExit(0)


assert len(OF) == len(MISTAKES)
WRONG = {
    asks_what_is_drawn: "called what it builds",
    calls_libs: "called what it builds",
    nothing_returned: "nothing returned",
    findings_alone: "no seed and jobs",
    a_seed_in_words: "no seed and jobs",
    nine_jobs: "not ten jobs",
    jobs_from_1_to_10: "not ten jobs",
    only_mistakes: "no finding",
    another_word: "no finding",
    no_such_step: "no finding",
    another_seed_s: "another seed's",
    one_mistake_in_every_job: "a mistake in several jobs",
    all_healthy: "called healthy",
    one_called_healthy: "called healthy",
    a_step_too_late: "not the first",
    the_step_after_it: "not the first",
    a_healthy_one_accused: "called ill",
    an_axis_that_is_not_there: "no such axis",
    input_for_activation: "it would show elsewhere",
    one_set_for_another: "it would show elsewhere",
    all_sets_for_one: "it would show elsewhere",
    local_tokens_for_no_mean: "averaged, or not",
    the_axis_that_was_averaged: "another axis",
    masks_along_another_axis: "another axis",
    tokens_along_another_axis: "another axis",
    a_norm_along_another_axis: "another axis",
    not_written_yet: "not written",
    exits: "exits",
}
RIGHT = [
    as_in_the_notebook,
    plain_tuples_in_another_order,
    of_another_seed,
    by_a_program,
    as_an_answer(hunt.findings),
]
SLOW = [  # each runs one more job, or all ten
    RIGHT[-1], by_a_program, calls_libs, another_seed_s, all_healthy, a_healthy_one_accused,
    an_axis_that_is_not_there,
    input_for_activation, local_tokens_for_no_mean, the_axis_that_was_averaged,
]  # fmt: skip
