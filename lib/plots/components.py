"""Where a plan's seconds and bytes go, part by part: several plans ranked by time, or one plan
compared with the best.

    [ matmuls ][ other kernels ][ tp ][ pp ][ bubble ][ dp ][ optimizer ][ offload ]

tp, cp, ep, pp and dp are the messages along these axes, and offload is the copying of activations
to the host's memory and back. The cost model divides a step into twelve parts (lib.cost.step), and
the figures merge those that a reader would add up anyway.
"""

import textwrap

from lib.cost.hardware import GIB
from lib.plots.draw import DASHES, at_edge, box, grid, key, numbers, page, rows, stack
from lib.plots.labels import amount, each
from lib.plots.memory import PART_COLOR
from lib.plots.style import ALARM, AXIS_COLOR, FAINT, INK, OP_COLOR, RANK_COLORS, drawing

SECONDS = {  # {part that is drawn: (colour, the cost model's components that it adds up)}
    "matmuls": (OP_COLOR["F"], ("matmul",)),
    "other kernels": ("#b9d9f3", ("attention", "elementwise", "launch")),
    "tp": (AXIS_COLOR["tp"], ("tensor",)),
    "cp": (AXIS_COLOR["cp"], ("context",)),
    "ep": (AXIS_COLOR["ep"], ("expert",)),
    "pp": (AXIS_COLOR["pp"], ("message",)),
    "bubble": (OP_COLOR["idle"], ("bubble",)),
    "dp": (AXIS_COLOR["dp"], ("sharding",)),
    "optimizer": (RANK_COLORS[7], ("optimizer",)),
    "offload": ("#300048", ("offload",)),
}
PRODUCTS, MORE = "matmuls", "more matmuls"
BYTES = {
    "weights": (PART_COLOR["weights"], ("weights",)),
    "gradients": (PART_COLOR["gradients"], ("gradients",)),
    "optimizer": (PART_COLOR["fp32 weights"], ("optimizer",)),
    "activations": (PART_COLOR["activations"], ("activations", "received")),
    "logits": (RANK_COLORS[2], ("logits",)),
    "comes and goes": ("#c4c1b8", ("working", "reserve")),
}


def name_of(plan):
    """The label of a Plan, or of words that describe one. "recompute=none" is left out, and
    "recompute=full" is shortened to "recompute"."""
    return str(plan).replace(" recompute=none", "").replace("recompute=full", "recompute")


def grouped(costs, parts):
    """Sum the cost model's {component: number} into {part: number}, in the order of `parts`,
    without parts that are 0.

    Raises ValueError for no components, a component that belongs to no part, or a number below 0.
    """
    known = {component for _, components in parts.values() for component in components}
    if not costs or not set(costs) <= known or min(costs.values()) < 0:
        raise ValueError(f"{costs} is not 0 or more of each of {', '.join(sorted(known))}")
    sums = {
        part: sum(costs.get(each, 0.0) for each in components)
        for part, (_, components) in parts.items()
    }
    return {part: value for part, value in sums.items() if value}


@drawing
def plan_ranking(plans, room, error=None):
    """A bar per plan: the time of its step beyond the matmuls. At the right edge are the time of
    the full step and the memory of the fullest GPU.

    plans: [(plan, {component: seconds}, bytes), ...], 1 to 9, from top to bottom: a Plan or a text,
    the components of `lib.cost.step.step_seconds`, and the memory. room: bytes that a plan
    may need; the bars of plans that need more are hatched. error: the relative error of the cost
    model, such as 0.08; a dashed line then shows how much longer a plan may take before the model
    can distinguish it from the fastest that fits. The smallest time of matmuls among the plans is
    subtracted from every bar, because it would dwarf the differences. If a plan spends more time in
    matmuls than that, because it recomputes or because its matmuls are smaller and slower, the
    difference is the part "more matmuls". Raises ValueError for any other number of plans, or
    unknown components.
    """
    if not 1 <= len(plans) <= 9:
        raise ValueError(f"{len(plans)} plans: 1 to 9 can be read")
    names = [name_of(plan) for plan, _, _ in plans]
    parts = [grouped(costs, SECONDS) for _, costs, _ in plans]
    totals, needs = [sum(found.values()) for found in parts], [n_bytes for _, _, n_bytes in plans]
    fits = [row for row in range(len(plans)) if needs[row] <= room]
    least = min(found.get(PRODUCTS, 0.0) for found in parts)
    beyond = [found | {MORE: found.get(PRODUCTS, 0.0) - least} for found in parts]
    beyond = [
        {part: value for part, value in found.items() if value and part != PRODUCTS}
        for found in beyond
    ]
    figure, axes = page(1.75 + 0.3 * len(plans))
    axes.set_xlabel(f"time of a step beyond the {amount(least)} s of the fewest matmuls (s)")
    labels = ["\n".join(textwrap.wrap(name, 40)) for name in names]
    look = {MORE: SECONDS[PRODUCTS]} | {
        part: of for part, of in SECONDS.items() if part != PRODUCTS
    }
    end = 1.02 * (max(totals) - least) or 1.0
    _bars(axes, labels, beyond, look, end, 4.3, size=8 if len(plans) > 5 else 8.5, linespacing=0.9)
    for row, (total, n_bytes) in enumerate(zip(totals, needs, strict=True)):
        place = {"textcoords": "offset points", "ha": "right"}
        at_edge(axes, row, f"{amount(total)} s", 1, xytext=(48, 0), **place)
        color = INK if row in fits else ALARM
        at_edge(axes, row, f"{n_bytes / GIB:.0f} GiB", 1, xytext=(104, 0), color=color, **place)
        if row not in fits:
            _hatch(axes, row, 0, total - least)
    claim = _claim(names, totals, needs, fits, room)
    told = ""
    if error and fits:
        fastest = min(fits, key=totals.__getitem__)
        limit = (1 + error) * totals[fastest]
        equal = sum(totals[row] <= limit for row in fits)
        axes.axvline(limit - least, color=INK, lw=1.2, ls=DASHES, zorder=4)
        within = f"within the model's error of {error:.0%}"
        claim = (
            f"{equal} of the {len(fits)} plans that fit are equally fast, {within}"
            if equal > 1
            else f"No other plan that fits is {within} of {names[fastest]}"
        )
        told = f" The dashed line is {error:.0%} above the fastest that fits."
    look = (
        "tp, pp, dp and ep are messages along these axes. The numbers at the right are the full "
        f"step and the memory of the fullest GPU, which may use {room / GIB:.0f} GiB."
        f"{' A hatched plan does not fit.' * (len(fits) < len(plans))}{told}"
    )
    words = " ".join(
        f"{name}: {amount(total)} s ({_listed(found)}), {n_bytes / GIB:.0f} "
        f"GiB{', does not fit' * (row not in fits)}."
        for row, (name, total, found, n_bytes) in enumerate(
            zip(names, totals, parts, needs, strict=True)
        )
    )
    what = f"Bars of the time of a step beyond {amount(least)} s of matmuls, a bar per plan."
    return figure, claim, look, what, words


@drawing
def plan_cost(plans, memory, room, title=None):
    """Two panels with a bar per plan in each: bytes on the fullest GPU, and seconds of a step, both
    by component.

    plans: {"yours": ({component: bytes}, {component: seconds}), "the best": ...}, 1 to 3, as
    `lib.cost.memory.memory` and `lib.cost.step.step_seconds` return them; the title is about the
    first. memory: bytes of a GPU. room: how many of these bytes a plan may use. Raises ValueError
    for any other number of plans, or unknown components.
    """
    if not 1 <= len(plans) <= 3:
        raise ValueError(f"{len(plans)} plans: 1 to 3 can be read")
    needs = {
        name: grouped({c: n / GIB for c, n in parts.items()}, BYTES)
        for name, (parts, _) in plans.items()
    }
    takes = {name: grouped(seconds, SECONDS) for name, (_, seconds) in plans.items()}
    gib, seconds = (
        {name: sum(parts.values()) for name, parts in of.items()} for of in (needs, takes)
    )
    usable, whole = room / GIB, memory / GIB
    figure, (upper, lower) = page(2.75 + 0.32 * len(plans), rows=2)
    _bars(upper, plans, needs.values(), BYTES, 1.02 * max(*gib.values(), 1.03 * whole), 5.8)
    _bars(lower, plans, takes.values(), SECONDS, 1.02 * max(seconds.values()), 5.8)
    for axes, totals, unit in ((upper, gib, "GiB"), (lower, seconds, "s")):
        for row, total in enumerate(totals.values()):
            over = unit == "GiB" and total > usable
            if over:
                _hatch(axes, row, usable, total)
            at_edge(axes, row, f"{amount(total)} {unit}", color=ALARM if over else INK)
    upper.axvspan(usable, whole, color=FAINT, alpha=0.28, lw=0, zorder=0)
    upper.axvline(whole, color=INK, lw=1.6, zorder=4)
    upper.axvline(usable, color=INK, lw=1.2, ls=DASHES, zorder=4)
    upper.set_xlabel("memory of the fullest GPU (GiB)", loc="left")
    lower.set_xlabel("time of a step (s)", loc="left")
    first = next(iter(plans))
    fits = "fits" if gib[first] <= usable else "does not fit"
    claim = (
        f"{first} {fits}: {amount(gib[first])} of {usable:.0f} GiB; {amount(seconds[first])} s a "
        f"step"
    )
    said = lambda name, _: (
        f"{amount(gib[name])} GiB ({_listed(needs[name])}); {amount(seconds[name])} s "
        f"({_listed(takes[name])})"
    )
    return (
        figure, claim,
        f"tp, pp, dp and ep are messages along these axes. The vertical line is the GPU's memory "
        f"of {whole:.0f} GiB; the grey part is left for peaks that are not modelled.",
        f"Bars of memory and of the time of a step, by component.{f' {title}.' if title else ''}",
        each(plans, said),
    )  # fmt: skip


def _bars(axes, names, plans, parts, end, inches, **look):
    """A bar per plan on an axis that ends at `end` and is `inches` long, and above it the legend of
    the parts."""
    axes.set_xlim(0, end)
    rows(axes, names, **look)
    numbers(axes.xaxis)
    grid(axes, "x")
    color = {part: of[0] for part, of in parts.items()}
    for row, found in enumerate(plans):
        stack(axes, row, found, color, inches / end, 0.66, 8.5)
    used = {part: color[part] for part in parts if any(part in found for found in plans)}
    key(axes, used, ncols=8 if len(used) < 8 else 4, handlelength=1.0, handletextpad=0.4,
        columnspacing=0.9, fontsize=9)  # fmt: skip


def _hatch(axes, row, start, end):
    """Hatch a bar from `start` to `end`, because the plan does not fit into memory."""
    box(axes, start, row - 0.33, end - start, 0.66, "none", hatch="////", lw=0, zorder=3)


def _claim(names, totals, needs, fits, room):
    if not fits:
        return (
            f"None of these fits into {room / GIB:.0f} GiB: the smallest needs "
            f"{min(needs) / GIB:.0f}"
        )
    best = min(fits, key=lambda row: totals[row])
    faster = [row for row in range(len(totals)) if totals[row] < totals[best]]
    least = min((totals[row] for row in fits if row != best), default=None)
    claim = f"Fastest{' that fits' * bool(faster)}: {names[best]}, {amount(totals[best])} s"
    if faster:
        return (
            f"{claim}; {len(faster)} would be faster, but need{'s' * (len(faster) == 1)} too much "
            f"memory"
        )
    return f"{claim}; the next takes {least / totals[best] - 1:.1%} longer" if least else claim


def _listed(parts):
    return ", ".join(f"{part} {amount(value)}" for part, value in parts.items())
