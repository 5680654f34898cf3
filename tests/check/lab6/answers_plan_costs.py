"""Answers to Lab 6's plan_costs, function by function: wrong ones, each with its hint, and right ones."""

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
    return {"dp": around(2 * P, plan.dp), "pp": pp, "tp": 4 * (model.layers // plan.pp) * around(whole, plan.tp)}


# wrong: plan_memory


def memory(P=None, each=None, kept=None, layers=None, flying=None):
    """plan_memory, but for what is given."""

    def answer(model, plan):
        return (P or first_stage)(model, plan) * (each or bytes_each)(plan) + (
            (kept or a_layer)(model, plan) * (layers or own)(model, plan) * (flying or in_flight)(plan)
        )

    return answer


first_stage = lambda m, p: (12 * m.hidden**2 * m.layers / p.pp + m.vocab * m.hidden) / p.tp
bytes_each = lambda p: 4 + 12 / (p.dp if p.zero == 1 else 1)
a_layer = lambda m, p: 34 * m.seq * p.micro_batch * m.hidden / p.tp
own = lambda m, p: m.layers / p.pp
in_flight = lambda p: min(p.micro_batches, p.pp)
cut_optimizer = lambda p, size=12: size / (p.dp if p.zero == 1 else 1)
WRONG_P = {
    "no_embedding": lambda m, p: 12 * m.hidden**2 * m.layers / p.pp / p.tp,
    "two_embeddings": lambda m, p: (12 * m.hidden**2 * m.layers / p.pp + 2 * m.vocab * m.hidden) / p.tp,
    "embedding_over_the_stages": lambda m, p: (12 * m.hidden**2 * m.layers + m.vocab * m.hidden) / p.pp / p.tp,
    "as_counted_by_the_model": lambda m, p: m.parameters / p.pp / p.tp,
    "embedding_on_every_rank": lambda m, p: 12 * m.hidden**2 * m.layers / p.pp / p.tp + m.vocab * m.hidden,
    "every_layer": lambda m, p: (12 * m.hidden**2 * m.layers + m.vocab * m.hidden) / p.tp,
    "not_cut_by_tensor_ranks": lambda m, p: 12 * m.hidden**2 * m.layers / p.pp + m.vocab * m.hidden,
}
HINTS_OF_P = {
    "no_embedding": "embedding forgotten",
    "two_embeddings": "embedding twice",
    "embedding_over_the_stages": "embedding divided by p",
    "as_counted_by_the_model": "all the model's parameters",
    "embedding_on_every_rank": "embedding not divided by t",
    "every_layer": "all layers in P",
    "not_cut_by_tensor_ranks": "P not divided by t",
}
NAMED = {
    "gradients_forgotten": (memory(each=lambda p: 2 + cut_optimizer(p)), "gradients forgotten"),
    "without_optimizer": (memory(each=lambda p: 4), "optimizer forgotten"),
    "two_moments_only": (memory(each=lambda p: 4 + cut_optimizer(p, 8)), "no fp32 copy"),
    "gradients_in_fp32": (memory(each=lambda p: 6 + cut_optimizer(p)), "fp32 gradients"),
    "never_cut": (memory(each=lambda p: 16), "ZeRO-1 ignored"),
    "always_cut": (memory(each=lambda p: 4 + 12 / p.dp), "divided without ZeRO"),
    "everything_cut": (memory(each=lambda p: 16 / (p.dp if p.zero else 1)), "all of the state divided"),
    "everything_always_cut": (memory(each=lambda p: 16 / p.dp), "all of the state divided"),
    "as_gpipe": (memory(flying=lambda p: p.micro_batches), "all m in flight"),
    "always_full": (memory(flying=lambda p: p.pp), "p in flight"),
    "one_micro_batch": (memory(flying=lambda p: 1), "one in flight"),
    "whole_activations": (
        memory(kept=lambda m, p: 34 * m.seq * p.micro_batch * m.hidden), "activations not divided by t"
    ),
    "norms_on_every_rank": (
        memory(kept=lambda m, p: m.seq * p.micro_batch * m.hidden * (10 + 24 / p.tp)), "10 + 24/t"
    ),
    "every_layer_keeps": (memory(layers=lambda m, p: m.layers), "all layers kept"),
    "one_sequence": (memory(kept=lambda m, p: 34 * m.seq * m.hidden / p.tp), "micro-batch forgotten"),
    "with_scores": (
        memory(kept=lambda m, p: m.seq * p.micro_batch * (34 * m.hidden + 5 * m.heads * m.seq) / p.tp),
        "the scores as well",
    ),
    "two_bytes_each": (memory(kept=lambda m, p: 2 * a_layer(m, p)), "34 taken for numbers"),
    "state_only": (memory(kept=lambda m, p: 0), "activations forgotten"),
    "two_mistakes": (
        memory(each=lambda p: 4 + 12 / p.dp, flying=lambda p: p.micro_batches), "divided without ZeRO"
    ),
    "another_two": (memory(P=WRONG_P["no_embedding"], layers=lambda m, p: m.layers), "embedding forgotten"),
    "in_gigabytes": (lambda m, p: plan_memory(m, p) / 1e9, "another unit"),
    "in_whole_megabytes": (lambda m, p: round(plan_memory(m, p), -6), "rounded"),
    "something_else": (lambda m, p: plan_memory(m, p) + 1e9, None),
    **{name: (memory(P=P), HINTS_OF_P[name]) for name, P in WRONG_P.items()},
}  # fmt: skip


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


ring = lambda N: 2 * (N - 1) / N
reduced = lambda m, p: 4 * own(m, p) * p.micro_batches * 2 * m.seq * p.micro_batch * m.hidden
half = lambda right, m, p: right / 2
per_micro_batch = lambda right, m, p: right / p.micro_batches
per_sequence = lambda right, m, p: right / p.micro_batch
NAMED_MESSAGES = {
    "numbers": (messages(tp=half, pp=half, dp=half), "elements for bytes"),
    "one_pass": (messages(tp=half, dp=half), "one pass of the ring"),
    "one_byte": (messages(tp=half, pp=half), "activations' bytes"),
    "two_a_layer": (messages(tp=half), "two all-reduces"),
    "forward_only": (messages(pp=half), "one way"),
    "half_the_gradients": (messages(dp=half), "half of dp"),
    "one_micro_batch_in_tp": (messages(tp=per_micro_batch), "m forgotten"),
    "one_micro_batch_in_pp": (messages(pp=per_micro_batch), "m forgotten"),
    "one_sequence_in_tp": (messages(tp=per_sequence), "micro-batch forgotten"),
    "one_sequence_in_pp": (messages(pp=per_sequence), "micro-batch forgotten"),
    "tensors_round_the_ring": (messages(tp=lambda right, m, p: right * p.tp), "no ring"),
    "the_tensor_once": (messages(tp=lambda right, m, p: reduced(m, p)), "no ring"),
    "the_tensor_twice": (messages(tp=lambda right, m, p: 2 * reduced(m, p)), "no ring"),
    "gradients_once": (messages(dp=lambda right, m, p: 2 * first_stage(m, p)), "no ring"),
    "gradients_to_everyone": (messages(dp=lambda right, m, p: right * p.dp), "no ring"),
    "all_the_models_layers": (messages(tp=lambda right, m, p: right * p.pp), "all layers"),
    "shards_reduced": (messages(tp=lambda right, m, p: right / p.tp), "all-reduce of a part"),
    "tp_times_v": (messages(tp=lambda right, m, p: right * p.v), "v in tp"),
    "tp_over_v": (messages(tp=lambda right, m, p: right / p.v), "v in tp"),
    "whole_messages": (messages(pp=lambda right, m, p: right * p.tp), "messages not divided by t"),
    "once_per_rank": (messages(pp=lambda right, m, p: right / p.v), "v forgotten"),
    "to_itself": (
        messages(pp=lambda right, m, p: p.micro_batches * p.v * 4 * m.seq * p.micro_batch * m.hidden / p.tp),
        "a pipeline of one",
    ),
    "of_all_stages": (messages(pp=lambda right, m, p: right * (p.pp - 1)), "the whole pipeline's"),
    "four_bytes": (messages(dp=lambda right, m, p: 2 * right), "fp32 gradients"),
    "after_each_micro_batch": (messages(dp=lambda right, m, p: right * p.micro_batches), "m times"),
    "in_megabytes": (lambda m, p: {axis: sent / 1e6 for axis, sent in plan_messages(m, p).items()}, "another unit"),
    "three_numbers": (lambda m, p: tuple(plan_messages(m, p).values()), "no dict"),
    "other_keys": (lambda m, p: {axis.upper(): sent for axis, sent in plan_messages(m, p).items()}, "no dict"),
    "text_for_numbers": (lambda m, p: {axis: f"{sent}" for axis, sent in plan_messages(m, p).items()}, "no dict"),
    **{
        f"dp_{name}": (messages(dp=lambda right, m, p, P=P: ring(p.dp) * 2 * P(m, p)), HINTS_OF_P[name])
        for name, P in WRONG_P.items()
    },
}


SENT = {}


def one_dict_for_all_calls(model, plan):
    SENT.update(plan_messages(model, plan))
    return SENT


def in_float32(model, plan):
    return {axis: torch.tensor(sent).float().item() for axis, sent in plan_messages(model, plan).items()}


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
        calls_libs_memory: "called lib's",
        first_plan_of_a_model: None,
        exits_without_a_pipeline: "exits",
        no_memory_yet: "not written",
    },
    "plan_bubble": {
        rounded_bubble: "rounded",
        fails_without_a_pipeline: "an error in one case",
        bubble_not_returned: "nothing returned",
        as_text: "no number",
        calls_libs_bubble: "called lib's",
        no_bubble_yet: "not written",
    },
    "plan_messages": {
        **named(NAMED_MESSAGES),
        one_dict_for_all_calls: "one buffer for all calls",
        in_float32: "rounded",
        messages_not_returned: "nothing returned",
        calls_libs_messages: "called lib's",
        no_messages_yet: "not written",
    },
}
RIGHT = {
    "plan_memory": [plan_memory, memory_by_addition, as_an_answer(by_hand.plan_memory)],
    "plan_bubble": [plan_bubble, bubble_as_a_fraction, bubble_from_what_is_busy, as_an_answer(by_hand.plan_bubble)],
    "plan_messages": [plan_messages, messages_by_rounds, as_an_answer(by_hand.plan_messages)],
}
