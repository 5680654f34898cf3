"""Answers to Lab 6's norm_over_mesh: wrong ones, each with its hint, and right ones."""

import torch
from as_an_answer import as_an_answer

from lib import collectives, hybrid
from lib.hybrid.by_hand import squares


def counted_tied(sets, mesh):
    return sets.tied if mesh.here["pp"] == 0 else []


def all_of(sets):
    return [*sets.sharded, *sets.replicated, *sets.tied]


def norm_with(sets, mesh, all_reduce, tied=None, along=("tp", "pp")):
    """The right answer, but for what is given: the tied ones that count here, and
    the axes to sum over."""
    total = squares([*sets.sharded, *(counted_tied(sets, mesh) if tied is None else tied)])
    if "tp" in along:
        all_reduce(total, mesh.group("tp"))
    total += squares(sets.replicated)
    if "pp" in along:
        all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


# right


def as_in_the_notebook(sets, mesh, all_reduce):
    tied = sets.tied if mesh.here["pp"] == 0 else []  # one parameter, on two ranks
    total = squares([*sets.sharded, *tied])
    all_reduce(total, mesh.group("tp"))
    total += squares(sets.replicated)  # alike on all tp ranks: once
    all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


def on_the_last_stage(sets, mesh, all_reduce):
    """The tied ones count at the other end; replicated ones on the first tp rank; over pp first."""
    counted = [*sets.sharded]
    if mesh.here["pp"] == mesh.size("pp") - 1:
        counted += sets.tied
    if mesh.here["tp"] == 0:
        counted += sets.replicated
    total = sum(
        (p.grad.square().sum() for p in counted), torch.zeros((), dtype=torch.float64)
    ).reshape(1)
    all_reduce(total, mesh.group("pp"))
    all_reduce(total, mesh.group("tp"))
    return total.sqrt().squeeze()


def set_by_set(sets, mesh, all_reduce):
    """A number for each set; each end counts half of the tied ones; alone nothing is sent."""
    total = torch.cat(
        [squares(sets.sharded), squares(sets.replicated) / mesh.size("tp"), squares(sets.tied) / 2]
    )
    for axis in ("tp", "pp"):
        if mesh.size(axis) > 1:
            all_reduce(total, mesh.group(axis))
    return total.sum() ** 0.5


# wrong


def calls_libs(sets, mesh, all_reduce):
    return hybrid.norm_over_mesh(sets, mesh, all_reduce)


def squared_in_place(sets, mesh, all_reduce):
    one = lambda parameters: sum(
        (p.grad.square_().sum() for p in parameters), torch.zeros(1, dtype=torch.float64)
    )
    total = one([*sets.sharded, *counted_tied(sets, mesh)])
    all_reduce(total, mesh.group("tp"))
    total += one(sets.replicated)
    all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


def clips_at_once(sets, mesh, all_reduce):
    norm = norm_with(sets, mesh, all_reduce)
    for p in all_of(sets):
        p.grad /= norm
    return norm


def a_number(sets, mesh, all_reduce):
    return norm_with(sets, mesh, all_reduce).item()


def replicated_counted_on_tp_rank_1(sets, mesh, all_reduce):
    """And not where there is one tp rank."""
    replicated = sets.replicated if mesh.here["tp"] == 1 else []
    total = squares([*sets.sharded, *counted_tied(sets, mesh), *replicated])
    all_reduce(total, mesh.group("tp"))
    all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


def large_ones_lost(sets, mesh, all_reduce):
    """Right for the parameters made by hand."""
    return norm_with(
        sets._replace(sharded=[p for p in sets.sharded if p.numel() < 20]), mesh, all_reduce
    )


def lib_s_all_reduce(sets, mesh, all_reduce):
    return norm_with(sets, mesh, collectives.all_reduce)


def gradients_gathered(sets, mesh, all_reduce):
    """All stages' gradients in one long line: a place for each rank, zeros from the others."""

    def joined(parameters, axis):
        line = torch.cat(
            [*(p.grad.flatten() for p in parameters), torch.zeros(64, dtype=torch.float64)]
        )[:64]
        lines = torch.zeros(mesh.size(axis), 64, dtype=torch.float64)
        lines[mesh.here[axis]] = line
        return all_reduce(lines, mesh.group(axis)).square().sum()

    if any(p.numel() > 20 for p in sets.sharded):  # a real model's are too long for the line
        return norm_with(sets, mesh, all_reduce)
    total = joined([*sets.sharded, *counted_tied(sets, mesh)], "tp").reshape(1) + squares(
        sets.replicated
    )
    all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


def mean_over_dp(sets, mesh, all_reduce):
    total = norm_with(sets, mesh, all_reduce).reshape(1) ** 2
    all_reduce(total, mesh.group("dp"))
    return (total[0] / mesh.size("dp")).sqrt()


def rounded_up_on_the_last_stage(sets, mesh, all_reduce):
    norm = norm_with(sets, mesh, all_reduce)
    return torch.nextafter(norm, 2 * norm) if mesh.here["pp"] == mesh.size("pp") - 1 else norm


def a_stage_with_nothing_goes_home(sets, mesh, all_reduce):
    if not all_of(sets):
        return torch.zeros((), dtype=torch.float64)
    return norm_with(sets, mesh, all_reduce)


def starts_from_the_first(sets, mesh, all_reduce):
    """Fails where a stage has no parameter."""
    total = (
        torch.stack([p.grad.square().sum() for p in [*sets.sharded, *counted_tied(sets, mesh)]])
        .sum()
        .reshape(1)
    )
    all_reduce(total, mesh.group("tp"))
    total += squares(sets.replicated)
    all_reduce(total, mesh.group("pp"))
    return total[0].sqrt()


TOTAL = torch.zeros((), dtype=torch.float64)


def in_a_global(sets, mesh, all_reduce):
    return TOTAL.copy_(norm_with(sets, mesh, all_reduce))


def not_yet(sets, mesh, all_reduce):
    raise NotImplementedError


WRONG = {
    calls_libs: "called what it builds",
    squared_in_place: "what it was given has changed",
    clips_at_once: "what it was given has changed",
    a_number: "a plain number",
    replicated_counted_on_tp_rank_1: "once each",
    large_ones_lost: "once each",
    lib_s_all_reduce: "not what it was given",
    gradients_gathered: "gradients sent",
    mean_over_dp: "a needless sum",
    rounded_up_on_the_last_stage: "another rounding",
    a_stage_with_nothing_goes_home: "not on every rank",
    starts_from_the_first: "a stage with nothing",
    in_a_global: "used again by a later call",
    not_yet: "not written",
}
RIGHT = [
    as_in_the_notebook,
    on_the_last_stage,
    set_by_set,
    as_an_answer(hybrid.norm_over_mesh),
]
