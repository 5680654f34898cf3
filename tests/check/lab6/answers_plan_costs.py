"""Answers to Lab 6's plan_costs, function by function: wrong ones, each with its
hint, and right ones."""

from fractions import Fraction

import torch
from as_an_answer import as_an_answer

from lib.cost import by_hand

# right


def plan_memory(model, plan):
    P = (12 * model.hidden**2 * model.layers / plan.pp + model.vocab * model.hidden) / plan.tp
    state = P * (2 + 2 + 12 / (plan.dp if plan.zero == 1 else 1))
    kept = 34 * model.seq * plan.micro_batch * model.hidden / plan.tp
    return state + kept * model.layers / plan.pp * min(plan.micro_batches, plan.pp)


def memory_by_addition(model, plan):
    layers = model.layers // plan.pp
    weights = 2 * (layers * 12 * model.hidden * model.hidden + model.vocab * model.hidden) / plan.tp
    optimizer = 6 * weights
    if plan.zero:
        optimizer /= plan.dp
    total = weights + weights + optimizer
    for _ in range(plan.pp if plan.pp < plan.micro_batches else plan.micro_batches):
        total += layers * (10 + 24) * model.seq * plan.micro_batch * model.hidden / plan.tp
    return total


def plan_bubble(plan):
    return (plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp - 1)


def bubble_from_what_is_busy(plan):
    busy = plan.micro_batches * plan.v
    return 1 - busy / (busy + plan.pp - 1) if plan.pp > 1 else 0


def bubble_as_a_fraction(plan):
    return Fraction(plan.pp - 1, plan.v * plan.micro_batches + plan.pp - 1)


def plan_messages(model, plan):
    P = (12 * model.hidden**2 * model.layers / plan.pp + model.vocab * model.hidden) / plan.tp
    m, activations = plan.micro_batches, 2 * model.seq * plan.micro_batch * model.hidden
    return {
        "tp": m * model.layers / plan.pp * 4 * 2 * (plan.tp - 1) / plan.tp * activations,
        "pp": m * plan.v * 2 * activations / plan.tp if plan.pp > 1 else 0.0,
        "dp": 2 * (plan.dp - 1) / plan.dp * 2 * P,
    }


def messages_by_rounds(model, plan):
    around = lambda n, N: sum(n / N for _ in range(2 * (N - 1)))
    rows = plan.global_batch // plan.dp  # all that this pipeline sees in a step
    whole = 2 * model.seq * rows * model.hidden
    P = (12 * model.hidden**2 * (model.layers // plan.pp) + model.vocab * model.hidden) / plan.tp
    pp = 2 * plan.v * whole / plan.tp if plan.pp > 1 else 0
    return {
        "dp": around(2 * P, plan.dp),
        "pp": pp,
        "tp": 4 * (model.layers // plan.pp) * around(whole, plan.tp),
    }


# wrong: plan_memory


NAMED = {
    "in_gigabytes": (lambda m, p: plan_memory(m, p) / 1e9, "another unit"),
    "in_whole_megabytes": (lambda m, p: round(plan_memory(m, p), -6), "rounded"),
    "something_else": (lambda m, p: plan_memory(m, p) + 1e9, "another number"),
}


def memory_not_returned(model, plan):
    plan_memory(model, plan)


def two_numbers(model, plan):
    return plan_memory(model, plan), 0.0


def calls_libs_memory(model, plan):
    return by_hand.plan_memory(model, plan)


def no_memory_yet(model, plan):
    raise NotImplementedError


OF_A_MODEL = {}


def first_plan_of_a_model(model, plan):
    return OF_A_MODEL.setdefault(model.name, plan_memory(model, plan))


def exits_without_a_pipeline(model, plan):
    if plan.pp == 1:
        raise SystemExit("no pipeline")
    return plan_memory(model, plan)


# wrong: plan_bubble


def rounded_bubble(plan):
    return round(plan_bubble(plan), 3)


def fails_without_a_pipeline(plan):
    return 1 / (1 + plan.v * plan.micro_batches / (plan.pp - 1))


def bubble_not_returned(plan):
    plan_bubble(plan)


def as_text(plan):
    return f"{plan_bubble(plan):.1%}"


def calls_libs_bubble(plan):
    return by_hand.plan_bubble(plan)


def no_bubble_yet(plan):
    raise NotImplementedError


# wrong: plan_messages


def messages(**terms):
    """plan_messages, but for these axes: functions of (what is right, model, plan)."""

    def answer(model, plan):
        right = plan_messages(model, plan)
        return right | {axis: term(right[axis], model, plan) for axis, term in terms.items()}

    return answer


half = lambda right, m, p: right / 2
NAMED_MESSAGES = {
    "numbers": (messages(tp=half, pp=half, dp=half), "elements for bytes"),
    "one_pass": (messages(tp=half, dp=half), "one pass of the ring"),
    "one_byte": (messages(tp=half, pp=half), "activations' bytes"),
    "two_a_layer": (messages(tp=half), "two all-reduces"),
    "forward_only": (messages(pp=half), "one way"),
    "half_the_gradients": (messages(dp=half), "half of dp"),
    "in_megabytes": (
        lambda m, p: {axis: sent / 1e6 for axis, sent in plan_messages(m, p).items()},
        "another unit",
    ),
    "three_numbers": (lambda m, p: tuple(plan_messages(m, p).values()), "no dict"),
    "other_keys": (
        lambda m, p: {axis.upper(): sent for axis, sent in plan_messages(m, p).items()},
        "no dict",
    ),
    "text_for_numbers": (
        lambda m, p: {axis: f"{sent}" for axis, sent in plan_messages(m, p).items()},
        "no dict",
    ),
}


SENT = {}


def one_dict_for_all_calls(model, plan):
    SENT.update(plan_messages(model, plan))
    return SENT


def in_float32(model, plan):
    return {
        axis: torch.tensor(sent).float().item() for axis, sent in plan_messages(model, plan).items()
    }


def messages_not_returned(model, plan):
    plan_messages(model, plan)


def calls_libs_messages(model, plan):
    return by_hand.plan_messages(model, plan)


def no_messages_yet(model, plan):
    raise NotImplementedError


def named(answers):
    """{function: hint}, each function with the name it has in the table."""
    for name, (fn, _) in answers.items():
        fn.__name__ = name
    return dict(answers.values())


WRONG = {
    "plan_memory": {
        **named(NAMED),
        memory_not_returned: "nothing returned",
        two_numbers: "no number",
        calls_libs_memory: "called what it builds",
        first_plan_of_a_model: "another number",
        exits_without_a_pipeline: "exits",
        no_memory_yet: "not written",
    },
    "plan_bubble": {
        rounded_bubble: "rounded",
        fails_without_a_pipeline: "an error in one case",
        bubble_not_returned: "nothing returned",
        as_text: "no number",
        calls_libs_bubble: "called what it builds",
        no_bubble_yet: "not written",
    },
    "plan_messages": {
        **named(NAMED_MESSAGES),
        one_dict_for_all_calls: "used again by a later call",
        in_float32: "rounded",
        messages_not_returned: "nothing returned",
        calls_libs_messages: "called what it builds",
        no_messages_yet: "not written",
    },
}
RIGHT = {
    "plan_memory": [plan_memory, memory_by_addition, as_an_answer(by_hand.plan_memory)],
    "plan_bubble": [
        plan_bubble,
        bubble_as_a_fraction,
        bubble_from_what_is_busy,
        as_an_answer(by_hand.plan_bubble),
    ],
    "plan_messages": [plan_messages, messages_by_rounds, as_an_answer(by_hand.plan_messages)],
}
