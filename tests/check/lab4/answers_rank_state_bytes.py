"""Answers to Lab 4's rank_state_bytes: wrong ones, each with the hint that it must
get, and right ones."""

from lib.cost.state import RECIPES


def parts(parameters, stage, N, precision, first=1, second=2, third=3):
    """The parts, each divided from a stage on."""
    weight, gradient, *optimizer = RECIPES[precision]
    return [
        parameters * weight / (N if stage >= third else 1),
        parameters * gradient / (N if stage >= second else 1),
        *(parameters * each / (N if stage >= first else 1) for each in optimizer),
    ]


# right


def part_by_part(parameters, stage, N, precision="mixed"):
    if stage not in (0, 1, 2, 3) or N < 1:
        raise ValueError(f"stage={stage}, N={N}")
    return sum(parts(parameters, stage, N, precision))


def per_parameter_first(parameters, stage, N, precision="mixed"):
    if not (stage in range(4) and N >= 1):
        raise ValueError(f"stage={stage}, N={N}")
    each = RECIPES[precision]
    kept = [each.weight, each.gradient, each.master + each.momentum + each.variance]
    for place in range(len(kept) - stage, len(kept)):
        kept[place] /= N
    return parameters * sum(kept)


# wrong


def in_whole_bytes(parameters, stage, N, precision="mixed"):
    return round(part_by_part(parameters, stage, N, precision))


def optimizer_twice(parameters, stage, N, precision="mixed"):
    weight, gradient, *optimizer = parts(parameters, stage, N, precision)
    return weight + gradient + 2 * sum(optimizer)


def prints_it(parameters, stage, N, precision="mixed"):
    print(part_by_part(parameters, stage, N, precision))


def takes_any_stage(parameters, stage, N, precision="mixed"):
    return part_by_part(parameters, min(max(stage, 0), 3), max(N, 1), precision)


def a_key_error(parameters, stage, N, precision="mixed"):
    return part_by_part(parameters, {0: 0, 1: 1, 2: 2, 3: 3}[stage], N, precision)


def divides_by_zero(parameters, stage, N, precision="mixed"):
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage={stage}")
    return sum(parts(parameters, stage, N, precision))


def not_written(parameters, stage, N, precision="mixed"):
    raise NotImplementedError


WRONG = {
    in_whole_bytes: "rounded",
    optimizer_twice: "a part is wrong",
    prints_it: "nothing returned",
    takes_any_stage: "not refused",
    a_key_error: "not refused",
    divides_by_zero: "not refused",
    not_written: "not written",
}
RIGHT = [part_by_part, per_parameter_first]
