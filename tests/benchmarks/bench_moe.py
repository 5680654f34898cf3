"""Mixture of experts: sorting against the einsum, and an expert-parallel layer against torch.

    sorting     assign_slots, dispatch, combine: the m kept pairs, by index         one process
    einsum      dispatch_einsum, combine_einsum: one-hot masks (n, E, C)            the same routing

    dropless    GroupedExperts on groups as long as they are             one process, an even router
    slots       the same experts on E slots of twice the mean            half of them empty

    ours        grouped_mm: a product for each group, where torch has no kernel      one process
    theirs      torch.nn.functional.grouped_mm                                       the same groups

    ours        ExpertParallelMoE: lib's exchange, from send and receive              2 and 4 ranks
    theirs      the same layer on dist.all_to_all_single, in torch_moe.py

    in halves   OverlappedMoE: the exchange behind the shared expert      2 paced ranks, a slow link
                and the other half
    plain       SharedMoE: one after the other                            the same

All are timed forward and backward. Before a clock runs, outputs and every gradient of both sides
must be equal; of the layers in halves and plain, tests/moe/test_moe_overlapped.py asks that.

The einsum multiplies n E C D numbers each way, and E C = factor k n whatever E is: 2.5 n^2 D here,
nearly all of them zeros, against 2 n D that are moved. So sorting has to be at least three times as
fast, at any number of experts. Slots for twice the mean multiply twice the rows: without them it
has to be faster, whatever sorting the rows costs.
"""

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F

from lib import launch, plots
from lib.moe import (
    Choice,
    GroupedExperts,
    assign_slots,
    capacity,
    combine,
    combine_einsum,
    dispatch,
    dispatch_einsum,
    grouped_mm,
    padded_to_capacity,
    top_k_gate,
)
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.moe_layers import (
    FACTOR,
    PACED_ROWS,
    TOLERANCE,
    K,
    Pair,
    Size,
    check_equal,
    halves_on_ranks,
    layers_on_ranks,
    numbers,
)
from tests.benchmarks.ratios import draw_lanes
from tests.benchmarks.rounds import Side, timed, where

EXPERTS = (16, 32, 64)  # sorting against the einsum
THREE_TIMES = Bar(0.33, "Sorting moves 2 n D numbers where the einsum multiplies 2.5 n n D.")
SLOTS = 2  # the capacity factor that dropless is compared with
FASTER = Bar(
    1.0, "Dropless experts multiply half the rows: slots of twice the mean are half empty."
)
HALF = Bar(
    0.65,
    "Both exchanges lie beside computing: by the formula 0.53, two times 80 ms of two times 152.",
)
NOT_SLOWER = Bar(
    None, "The same rows travel and the same experts run: Python between them must not be felt."
)


SIZE = Size(n=1024, D=256, F=512, E=8)


def run(quick):
    if quick:
        return measured([2], SIZE, EXPERTS[:1], 3)
    return measured([2, 4], SIZE, EXPERTS, ROUNDS)


def measured(worlds, size, experts, rounds):
    rows, data, places = [], {}, []
    of_masks, place = launch.capture(
        masks_on_rank, size, experts, rounds, nproc=1, timeout=1200, ledger=False
    )[0]
    data[1] = of_masks
    for E in experts:
        found = compare(
            *(of_masks[f"{E} experts, {side}"] for side in ("sorting", "einsum", "again"))
        )
        rows.append(
            report.Row(
                f"sorting / einsum, {E} experts", 1, f"{size.n} x {size.D}", found, THREE_TIMES
            )
        )
    of_groups, _ = launch.capture(
        groups_on_rank, size, rounds, nproc=1, timeout=1200, ledger=False
    )[0]
    data[1] = of_masks | of_groups
    for what, sides, bar in (
        (f"dropless / slots, factor {SLOTS}", ("dropless", "slots", "slots again"), FASTER),
        ("grouped_mm / torch's, forward and backward", ("loop", "torch", "torch again"), None),
    ):
        if sides[1] in of_groups:
            found = compare(*(of_groups[side] for side in sides))
            rows.append(report.Row(what, 1, f"{size.n} x {size.D}", found, bar))
    data["paced"], _ = launch.capture(
        halves_on_ranks, rounds, nproc=2, backend="gloo", timeout=1200, ledger=False
    )[0]
    found = compare(*(data["paced"][side] for side in ("in halves", "plain", "again")))
    rows.append(
        report.Row("layer in halves / plain, paced", 2, f"{PACED_ROWS} x 256 a rank", found, HALF)
    )
    for N in worlds:
        data[N], place = launch.capture(
            layers_on_ranks, size, rounds, nproc=N, timeout=1200, ledger=False
        )[0]
        places.append(place)
        found = compare(*(data[N][side] for side in ("ours", "theirs", "again")))
        bar = NOT_SLOWER if place == "gloo" else None
        rows.append(
            report.Row("expert-parallel layer", N, f"{size.n} x {size.D} a rank", found, bar)
        )
    notes = [
        f"Top-{K}, capacity factor {FACTOR:g}, float32, forward and backward. Slots are given out, "
        f"and masks made, in every call.",
        f"The layer: {size.E} experts of {size.D} x {size.F} over all ranks, {size.n} tokens on "
        f"each; with both auxiliary losses. Outputs and gradients of both sides were within "
        f"{TOLERANCE:g} of each other's.",
    ]
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(rows), rows, notes=notes, data=data
    )


# --- sorting against the einsum -------------------------------------------------------------------


def masks_on_rank(size, experts, rounds):
    """{"16 experts, sorting": (rounds,) seconds, ...} and what it ran on."""
    times = {}
    for E in experts:
        sorting, einsum = sorting_and_einsum(size, E)
        check_equal(f"sorting, {E} experts", sorting, einsum)
        sides = {
            "sorting": Side(sorting.step),
            "einsum": Side(einsum.step),
            "again": Side(einsum.step),
        }
        times |= {f"{E} experts, {side}": seconds for side, seconds in timed(sides, rounds).items()}
    return times, where()


def sorting_and_einsum(size, E):
    """Both ways there and back; expert e multiplies by 1 + e. The same choice for both."""
    x, dy, logits = numbers(0, size.n, size.D), numbers(1, size.n, size.D), numbers(2, size.n, E)
    C, factors = capacity(size.n, E, K, FACTOR), 1.0 + torch.arange(E)

    def sorting(x, choice):
        routing = assign_slots(choice, E, C)
        rows = dispatch(x, routing) * factors[routing.expert].unsqueeze(1)  # (m, D)
        return combine(rows, routing, size.n)

    def einsum(x, choice):
        routing = assign_slots(choice, E, C)
        slots = dispatch_einsum(x, routing, E, C) * factors.view(E, 1, 1)  # (E, C, D)
        return combine_einsum(slots, routing, size.n)

    def pair(way):
        leaf, scores, seen = x.clone().requires_grad_(), logits.clone().requires_grad_(), {}

        def step():
            leaf.grad = scores.grad = None
            seen["y"] = way(leaf, top_k_gate(scores, K))
            seen["y"].backward(dy)

        return Pair(
            step, lambda: {"y": seen["y"].detach(), "dx": leaf.grad, "d logits": scores.grad}
        )

    return pair(sorting), pair(einsum)


# --- groups against slots, and against torch's grouped product ------------------------------------


def groups_on_rank(size, rounds):
    """{"dropless": (rounds,) seconds, ...} and what it ran on."""
    dropless, slots = dropless_and_slots(size)
    check_equal("dropless", dropless, slots)
    sides = {
        "dropless": Side(dropless.step),
        "slots": Side(slots.step),
        "slots again": Side(slots.step),
    }
    times = timed(sides, rounds)
    if torch_has_a_grouped_product():
        loop, theirs = grouped_products(size)
        check_equal("grouped_mm", loop, theirs)
        times |= timed(
            {"loop": Side(loop.step), "torch": Side(theirs.step), "torch again": Side(theirs.step)},
            rounds,
        )
    return times, where()


def even_choice(size):
    """Every expert equally often, K of them a token."""
    experts = (K * torch.arange(size.n).unsqueeze(1) + torch.arange(K)) % size.E  # (n, K)
    return Choice(experts, torch.full((size.n, K), 1 / K), torch.full((size.n, size.E), 1 / size.E))


def dropless_and_slots(size):
    """The same experts, with every row in its group, and in slots; of an even router, so that
    nothing is dropped."""
    choice, rows = even_choice(size), K * size.n
    torch.manual_seed(0)
    x, dy, experts = (
        numbers(0, size.n, size.D),
        numbers(1, size.n, size.D),
        GroupedExperts(size.E, size.D, size.F),
    )

    def in_groups(x):
        routing = assign_slots(choice, size.E, rows)
        counts = torch.bincount(routing.expert, minlength=size.E)
        return combine(experts(dispatch(x, routing), counts), routing, size.n)

    return pair_of(in_groups, experts, x, dy), pair_of(
        lambda x: padded_to_capacity(x, choice, experts, SLOTS), experts, x, dy
    )


def grouped_products(size):
    """lib's grouped_mm and torch's, on groups as uneven as a random router makes them."""
    counts = torch.bincount(numbers(2, K * size.n, size.E).argmax(1), minlength=size.E)
    weights = nn.ParameterList([numbers(3, size.E, size.D, size.F) / size.D**0.5])
    x, dy, ends = (
        numbers(4, K * size.n, size.D),
        numbers(5, K * size.n, size.F),
        counts.cumsum(0).to(torch.int32),
    )
    ours = lambda x: grouped_mm(x, weights[0], counts)
    return pair_of(ours, weights, x, dy), pair_of(
        lambda x: F.grouped_mm(x, weights[0], offs=ends), weights, x, dy
    )


def torch_has_a_grouped_product():
    """Has this torch one for float32 on this device?"""
    x, w = numbers(0, 4, 8), numbers(1, 2, 8, 8)
    try:
        return F.grouped_mm(x, w, offs=torch.tensor([2, 4], dtype=torch.int32)).shape == (4, 8)
    except (AttributeError, RuntimeError):
        return False


def pair_of(fn, module, x, dy):
    """A step of fn(x) and its backward, and what it leaves: the result, the gradients of x
    and of the module."""
    leaf, seen = x.clone().requires_grad_(), {}

    def step():
        leaf.grad = None
        module.zero_grad()
        seen["y"] = fn(leaf)
        seen["y"].backward(dy)

    gradients = lambda: {name: p.grad.clone() for name, p in module.named_parameters()}
    return Pair(step, lambda: {"y": seen["y"].detach(), "dx": leaf.grad.clone()} | gradients())


# --- the figure -----------------------------------------------------------------------------------


@plots.styled
def draw(rows):
    """Left, on a logarithmic axis, what sorting takes of the einsum's time; right the
    others. Grey: the controls."""
    figure = Figure(figsize=(8, 3.6))
    panels = figure.subplots(1, 2)
    sorting = [row for row in rows if row.what.startswith("sorting")]
    others = [row for row in rows if row not in sorting]
    layers = [row for row in others if row.what == "expert-parallel layer"]
    draw_lanes(panels[0], sorting, [row.what.split(", ")[1] for row in sorting])
    draw_lanes(
        panels[1],
        others,
        [
            f"layer, {row.ranks} ranks" if row in layers else row.what.split(", ")[0]
            for row in others
        ],
    )
    panels[0].axvline(THREE_TIMES.at_most, color=plots.RANK_COLORS[1], lw=0.8, ls="--")
    panels[0].set(xscale="log", xlabel="time, sorting / einsum")
    panels[1].set(xlabel="time of a step, ours / theirs")
    best, worst = (pick(row.comparison.ratio.median for row in layers) for pick in (min, max))
    return plots.finish(
        figure,
        f"Sorting takes {max(row.comparison.ratio.median for row in sorting):.2g} of the einsum's "
        f"time, a layer over ranks {best:.2f} to {worst:.2f} of torch's",
        "Below 1 lib is faster. Lines: 95 % of the median of paired ratios; grey: the control, "
        "which is what noise alone does here. Dashed: a third, the bar for sorting.",
        "Ratios of time. "
        + " ".join(
            f"{row.what}, ranks: {row.ranks}: {report.within(row.comparison.ratio)}."
            for row in rows
        ),
    )
