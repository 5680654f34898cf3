"""Answers to Lab 4's rank_state_bytes: wrong ones, each with the hint that it must get, and right ones."""

from lib.cost.state import RECIPES
from lib.cost.zero import rank_state


def refuse(stage, N):
    if stage not in (0, 1, 2, 3) or N < 1:
        raise ValueError(f"stage={stage}, N={N}")


def divided(parameters, stage, N, precision, first=1, second=2, third=3):
    """The parts, each divided from a stage on."""
    refuse(stage, N)
    weight, gradient, *optimizer = RECIPES[precision]
    return [
        parameters * weight / (N if stage >= third else 1),
        parameters * gradient / (N if stage >= second else 1),
        *(parameters * each / (N if stage >= first else 1) for each in optimizer),
    ]


# wrong


def all_by_n(parameters, stage, N, precision="mixed"):
    refuse(stage, N)
    return parameters * RECIPES[precision].total / N


def all_by_n_from_stage_1(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision, 1, 1, 1))


def only_its_own_part(parameters, stage, N, precision="mixed"):
    refuse(stage, N)
    weight, gradient, *optimizer = RECIPES[precision]
    optimizer = sum(optimizer) / (N if stage == 1 else 1)
    gradient = gradient / (N if stage == 2 else 1)
    return parameters * (weight / (N if stage == 3 else 1) + gradient + optimizer)


def moments_only(parameters, stage, N, precision="mixed"):
    weight, gradient, _, *moments = divided(parameters, stage, N, precision)
    return weight + gradient + parameters * RECIPES[precision].master + sum(moments)


def gradient_first(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision, 2, 1, 3))


def greater_than(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision, 2, 3, 4))


def counts_from_one(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision, 0, 1, 2))


def the_limits(parameters, stage, N, precision="mixed"):
    refuse(stage, N)
    return parameters * RECIPES[precision].total / (1, 4, 8, N)[stage]


def always_mixed(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, "mixed"))


def no_master(parameters, stage, N, precision="mixed"):
    weight, gradient, _, *moments = divided(parameters, stage, N, precision)
    return weight + gradient + sum(moments)


def momentum_only(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision)[:-1])


def no_gradient(parameters, stage, N, precision="mixed"):
    weight, _, *optimizer = divided(parameters, stage, N, precision)
    return weight + sum(optimizer)


def of_the_group(parameters, stage, N, precision="mixed"):
    return N * sum(divided(parameters, stage, N, precision))


def once_more(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision)) / N


def whole_division(parameters, stage, N, precision="mixed"):
    return sum(int(part) for part in divided(parameters, stage, N, precision))


def in_whole_bytes(parameters, stage, N, precision="mixed"):
    return round(sum(divided(parameters, stage, N, precision)))


def of_one(parameters, stage, N, precision="mixed"):
    return sum(divided(1, stage, N, precision))


def in_gigabytes(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision)) / 1e9


def prints_it(parameters, stage, N, precision="mixed"):
    print(sum(divided(parameters, stage, N, precision)))


def takes_any_stage(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, min(max(stage, 0), 3), max(N, 1), precision))


def a_key_error(parameters, stage, N, precision="mixed"):
    first = {0: 4, 1: 3, 2: 2, 3: 1}[stage]
    return sum(divided(parameters, 4 - first, N, precision))


def not_written(parameters, stage, N, precision="mixed"):
    raise NotImplementedError


WRONG = {
    all_by_n: "everything is cut",
    all_by_n_from_stage_1: "everything is cut",
    only_its_own_part: "each stage by itself",
    moments_only: "the master copy is not cut",
    gradient_first: "gradient before optimizer",
    greater_than: "a stage too late",
    counts_from_one: "a stage too early",
    the_limits: "4x, 8x, Nx",
    always_mixed: "the precision is not used",
    no_master: "no master copy",
    momentum_only: "one moment",
    no_gradient: "gradients forgotten",
    of_the_group: "of all ranks",
    once_more: "cut twice",
    whole_division: "rounded",
    in_whole_bytes: "rounded",
    of_one: "per parameter",
    in_gigabytes: "another unit",
    prints_it: "nothing returned",
    takes_any_stage: "not refused",
    a_key_error: "not refused",
    not_written: "not written",
}


# right


def from_libs_parts(parameters, stage, N, precision="mixed"):
    return float(sum(rank_state(parameters, stage, N, precision)))


def as_in_the_notebook(parameters, stage, N, precision="mixed"):
    if stage not in (0, 1, 2, 3) or N < 1:
        raise ValueError(f"stage={stage}, N={N}: use stage 0, 1, 2 or 3, and 1 rank or more")
    each = RECIPES[precision]
    optimizer = (each.master + each.momentum + each.variance) / (N if stage >= 1 else 1)
    gradient = each.gradient / (N if stage >= 2 else 1)
    weight = each.weight / (N if stage >= 3 else 1)
    return parameters * (weight + gradient + optimizer)


def part_by_part(parameters, stage, N, precision="mixed"):
    return sum(divided(parameters, stage, N, precision))


RIGHT = [as_in_the_notebook, part_by_part, from_libs_parts]
