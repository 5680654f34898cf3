"""Answers to Lab 0's model_state_bytes: wrong ones, each with the hint that it must get,
and right ones."""

import torch

RECIPES = {  # weight, gradient, master, momentum, variance
    "fp32": (4, 4, 0, 4, 4),
    "mixed": (2, 2, 4, 4, 4),
    "mixed, fp32 gradients": (2, 4, 4, 4, 4),
    "bf16": (2, 2, 0, 2, 2),
}


def weights_alone(parameters, precision):
    return parameters * RECIPES[precision][0]


def no_optimizer(parameters, precision):
    return parameters * sum(RECIPES[precision][:2])


def no_moments(parameters, precision):
    return parameters * sum(RECIPES[precision][:3])


def no_gradients(parameters, precision):
    weight, _, *optimizer = RECIPES[precision]
    return parameters * (weight + sum(optimizer))


def no_gradients_in_fp32(parameters, precision):
    return parameters * (12 if precision == "fp32" else sum(RECIPES[precision]))


def momentum_only(parameters, precision):
    return parameters * sum(RECIPES[precision][:4])


def no_master_copy(parameters, precision):
    weight, gradient, _, momentum, variance = RECIPES[precision]
    return parameters * (weight + gradient + momentum + variance)


def master_copy_everywhere(parameters, precision):
    weight, gradient, _, momentum, variance = RECIPES[precision]
    return parameters * (weight + gradient + 4 + momentum + variance)


def moments_of_two_bytes(parameters, precision):
    weight, gradient, master, _, _ = RECIPES[precision]
    return parameters * (weight + gradient + master + 2 + 2)


def mixed_is_all_16_bit(parameters, precision):
    return parameters * (16 if precision == "fp32" else 8)


def sixteen_for_all(parameters, precision):
    return parameters * 16


def in_bits(parameters, precision):
    return 8 * parameters * sum(RECIPES[precision])


def of_one_parameter(parameters, precision):
    return sum(RECIPES[precision])


def in_gigabytes(parameters, precision):
    return parameters * sum(RECIPES[precision]) / 1e9


def in_whole_gibibytes(parameters, precision):
    return parameters * sum(RECIPES[precision]) // 2**30


def of_gpt3_always(parameters, precision):
    return 175_000_000_000 * sum(RECIPES[precision])


def in_float32(parameters, precision):
    return torch.tensor(float(parameters)).item() * sum(RECIPES[precision])


def prints_it(parameters, precision):
    print(parameters * sum(RECIPES[precision]))


def not_written(parameters, precision):
    raise NotImplementedError


def variance_of_eight_bytes(parameters, precision):
    return (
        parameters * {"fp32": 20, "mixed": 20, "mixed, fp32 gradients": 22, "bf16": 14}[precision]
    )


WRONG = {
    variance_of_eight_bytes: "a part is wrong",
    weights_alone: "weights alone",
    no_optimizer: "no optimizer state",
    no_moments: "no moments",
    no_gradients: "gradients forgotten",
    no_gradients_in_fp32: "gradients forgotten",
    momentum_only: "one moment",
    no_master_copy: "master copy forgotten",
    master_copy_everywhere: "master copy everywhere",
    moments_of_two_bytes: "16-bit moments",
    mixed_is_all_16_bit: "16-bit throughout",
    sixteen_for_all: "16 for all",
    in_bits: "bits for bytes",
    of_one_parameter: "per parameter",
    in_gigabytes: "another unit",
    in_whole_gibibytes: "another unit",
    of_gpt3_always: "GPT-3 only",
    in_float32: "rounded",
    prints_it: "nothing returned",
    not_written: "not written",
}


def from_a_table(parameters, precision):
    return parameters * {"fp32": 16, "mixed": 16, "mixed, fp32 gradients": 18, "bf16": 8}[precision]


def part_by_part(parameters, precision):
    weight = 4 if precision == "fp32" else 2
    gradient = 4 if precision in ("fp32", "mixed, fp32 gradients") else 2
    moment = 2 if precision == "bf16" else 4
    total = weight + gradient + moment + moment
    if precision.startswith("mixed"):
        total += 4
    return float(parameters) * total


RIGHT = [from_a_table, part_by_part]
