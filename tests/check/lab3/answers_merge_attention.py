"""Answers to Lab 3's merge_attention: wrong ones, each with the hint that it must
get, and right ones."""

import math

import torch

from lib.tensor_parallel.online_softmax import Attended


def by_the_larger(one, other):
    """Right: relative to the larger of the two, as FlashAttention keeps it."""
    largest = torch.maximum(one.log_sum, other.log_sum)
    safe = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
    a, b = (torch.exp(part.log_sum - safe) for part in (one, other))
    total = a + b
    share = torch.where(total > 0, total, torch.ones_like(total))
    out = (one.out * a.unsqueeze(-1) + other.out * b.unsqueeze(-1)) / share.unsqueeze(-1)
    return Attended(out, safe + total.log())


def by_a_sigmoid(one, other):
    """Right: a weight is the sigmoid of the difference."""
    nobody = torch.isinf(one.log_sum) & torch.isinf(other.log_sum)
    weight = torch.sigmoid(torch.where(nobody, 0.0, one.log_sum - other.log_sum))[..., None]
    return Attended(
        weight * one.out + (1 - weight) * other.out, torch.logaddexp(one.log_sum, other.log_sum)
    )


def by_softmax(one, other):
    """Right: stacked."""
    logs, outs = torch.stack([one.log_sum, other.log_sum]), torch.stack([one.out, other.out])
    weights = logs.softmax(0).nan_to_num(0.0)
    return Attended((weights[..., None] * outs).sum(0), logs.logsumexp(0))


def a_tuple(one, other):
    return tuple(by_softmax(one, other))


def nothing(one, other):
    by_softmax(one, other)


def the_output_alone(one, other):
    return by_softmax(one, other).out


def a_log_sum_of_another_shape(one, other):
    out, log_sum = by_softmax(one, other)
    return Attended(out, log_sum[..., None])


def in_float32(one, other):
    return Attended(*(x.float() for x in by_softmax(one, other)))


def rounded_on_the_way(one, other):
    out, log_sum = by_softmax(*(Attended(*(x.float() for x in part)) for part in (one, other)))
    return Attended(out.to(one.out.dtype), log_sum.to(one.out.dtype))


def nan_where_neither_sees(one, other):
    log_sum = torch.logaddexp(one.log_sum, other.log_sum)
    a, b = (torch.exp(part.log_sum - log_sum)[..., None] for part in (one, other))
    return Attended(a * one.out + b * other.out, log_sum)


def divides_by_the_first(one, other):
    log_sum = torch.logaddexp(one.log_sum, other.log_sum)
    ratio = torch.exp(other.log_sum - one.log_sum)[..., None]  # inf where `one` sees nothing
    return Attended((one.out + ratio * other.out) / (1 + ratio), log_sum)


def exp_first(one, other):
    a, b = (part.log_sum.exp() for part in (one, other))
    total = (a + b).clamp(min=1e-300)
    out = (a[..., None] * one.out + b[..., None] * other.out) / total[..., None]
    return Attended(out, torch.where(a + b > 0, (a + b).log(), -math.inf))


def one_largest_for_all_queries(one, other):
    largest = torch.cat(
        [one.log_sum.flatten(), other.log_sum.flatten(), torch.tensor([-1e30])]
    ).max()
    a, b = (torch.exp(part.log_sum - largest) for part in (one, other))
    total = a + b
    out = (one.out * a[..., None] + other.out * b[..., None]) / total.where(total > 0, 1.0)[
        ..., None
    ]
    return Attended(out, (largest + total.log()).to(one.log_sum.dtype))


def weights_without_a_last_dim(one, other):
    log_sum = torch.logaddexp(one.log_sum, other.log_sum)
    return Attended(
        (one.log_sum - log_sum).exp() * one.out + (other.log_sum - log_sum).exp() * other.out,
        log_sum,
    )


def a_constant_against_log_of_0(one, other):
    out, log_sum = by_softmax(one, other)
    return Attended(out, (log_sum.exp() + 1e-9).log() if log_sum.abs().max() < 100 else log_sum)


def the_part_itself_where_the_other_sees_nothing(one, other):
    if torch.isinf(other.log_sum).all():
        return one
    return other if torch.isinf(one.log_sum).all() else by_softmax(one, other)


def the_first_part_where_a_query_sees_nothing(one, other):
    unseen = torch.isinf(other.log_sum).any()
    return Attended(one.out.clone(), one.log_sum.clone()) if unseen else by_softmax(one, other)


def in_place(one, other):
    merged = by_softmax(one, other)
    one.out.copy_(merged.out)
    one.log_sum.copy_(merged.log_sum)
    return one


def weights_of_their_own(one, other):
    a, b = (part.log_sum.sigmoid()[..., None] for part in (one, other))
    return Attended(
        (a * one.out + b * other.out) / (a + b).clamp(min=1e-9),
        torch.logaddexp(one.log_sum, other.log_sum),
    )


def the_mean_logarithm(one, other):
    out, _ = by_softmax(one, other)
    return Attended(out, (one.log_sum + other.log_sum) / 2)


def calls_lib(one, other):
    from lib.tensor_parallel import online_softmax

    return online_softmax.merge_attention(one, other)


RIGHT = [by_the_larger, by_a_sigmoid, by_softmax]


def a_number_for_minus_infinity(one, other):
    a, b = (part.log_sum.clamp(min=-1e9) for part in (one, other))
    log_sum = torch.logaddexp(a, b)
    weights = [(x - log_sum).exp()[..., None] for x in (a, b)]
    return Attended(weights[0] * one.out + weights[1] * other.out, log_sum)


WRONG = {
    a_number_for_minus_infinity: "another number for -inf",
    a_tuple: "not an Attended",
    nothing: "not an Attended",
    the_output_alone: "not an Attended",
    a_log_sum_of_another_shape: "another shape",
    in_float32: "another dtype",
    rounded_on_the_way: "float32 inside",
    nan_where_neither_sees: "nan where no key is seen",
    the_first_part_where_a_query_sees_nothing: "queries decided together",
    divides_by_the_first: "exp of a score",
    exp_first: "exp of a score",
    one_largest_for_all_queries: "exp of a score",
    weights_without_a_last_dim: "another shape",
    a_constant_against_log_of_0: "float32 inside",
    the_part_itself_where_the_other_sees_nothing: "not a copy",
    in_place: "arguments changed",
    weights_of_their_own: "not the weights",
    the_mean_logarithm: "not the sum's logarithm",
    calls_lib: "called what it builds",
}
