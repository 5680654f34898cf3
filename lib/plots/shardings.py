"""A traced block under one or two plans: how each operator is split, and what is sent between them.

               Megatron's: 1.2 ms                        the search's: 0.9 ms
    x          [ replicate ]  -- / all-reduce            [ dim 1 ]
                 |                                           |
    up         [ column    ]                             [ column ]  reduce-scatter / all-gather + w
                 |                                           |

Operators that do not depend on each other, such as q, k and v, share a row. A line connects a
result with the operators that read it.
"""

from lib.plots.draw import box, heading, middle, page
from lib.plots.labels import amount, clock, each, scale
from lib.plots.style import FAINT, OP_COLOR, RANK_COLORS, drawing, on_color

STRATEGY_COLOR = {"column": RANK_COLORS[1], "row": RANK_COLORS[3]}
WHOLE = ("replicate", "given", "wanted")
SHORT = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
         "all_to_all": "all-to-all", None: "–"}  # fmt: skip


@drawing
def shardings(operators, plans, both_ways):
    """A column per plan, a box per operator with its strategy. What is sent is in purple, forward /
    backward.

    operators: those of a Traced, in at most 18 rows. plans: {"Megatron's": Plan, "the search's":
    Plan}, 1 or 2. both_ways: the function of lib.hybrid.automatic.layouts, (old layout, new layout)
    -> names of the collectives (forward, backward). Raises ValueError for any other number of
    plans, a single row or more than 18, or a plan of other operators.
    """
    rows = _rows(operators)
    if not 1 <= len(plans) <= 2 or not 2 <= len(rows) <= 18:
        raise ValueError(
            f"{len(plans)} plans of {len(rows)} rows of operators: 1 or 2 plans of 2 to 18 can be "
            f"read"
        )
    for name, plan in plans.items():
        if set(plan.strategies) != {op.name for op in operators}:
            raise ValueError(
                f"{name} has strategies for {', '.join(plan.strategies)}: give a plan of these "
                f"operators"
            )
    pitch = min(0.24, 3.0 / len(rows))  # inches
    figure, panels = page(1.05 + pitch * len(rows), columns=len(plans), sharey=True)
    sent = [
        text
        for plan in plans.values()
        for row in rows
        if (text := _sent(row, plan.moves, both_ways))
    ]
    longest = max(plan.seconds for plan in plans.values())
    factor, unit = (1e6, "µs") if longest < 1e-3 else clock(longest)
    size = min(9.0, 40 * pitch)
    for axes, (name, plan) in zip(panels, plans.items(), strict=True):
        places = _places(rows)
        _edges(axes, operators, places)
        for op in operators:
            x, y, wide = places[op.name]
            words = plan.strategies[op.name].name
            box(axes, x, y - 0.36, wide, 0.72, _color(words), lw=0.6, zorder=3)
            middle(axes, x + wide / 2, y, words, on_color(_color(words)),
                   size if wide > 1 else 0.75 * size)  # fmt: skip
        for i, row in enumerate(rows):
            if text := _sent(row, plan.moves, both_ways):
                label = axes.annotate(text, (3.25, i), va="center_baseline", size=size,
                    color=OP_COLOR["send"],
                                      weight="bold", annotation_clip=False)  # fmt: skip
                label.set_in_layout(False)  # it has room within the axes
        axes.set(xlim=(0, 7.1 if len(plans) == 2 else 9), ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), [_words(row) for row in rows], size=size)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        by, of = scale(plan.sent, "elements")
        heading(
            axes,
            f"{name}: {amount(plan.seconds * factor)} {unit}, {amount(plan.sent / by)} {of}",
            size=9.5,
            pad=3,
        )
    look = "Above: time, and elements that all ranks send. In a box: how it is split."
    look += " Purple: what sends its result, forward / backward." * bool(sent)
    look += " + w: and its weights' gradients are all-reduced." * any(
        text.endswith("+ w") for text in sent
    )
    what = "Operators of a traced module and how each is split, a column per plan."
    words = each(plans, lambda _, plan: _in_words(rows, plan, both_ways))
    return figure, _claim(plans, factor, unit), look, what, words


def _rows(operators):
    """[[Operator, ...] of row 0, ...]: an operator's row is the length of the longest chain of
    operators before it."""
    depth = {}
    for op in operators:
        depth[op.name] = 1 + max((depth[name] for name in op.inputs), default=-1)
    return [[op for op in operators if depth[op.name] == d] for d in range(max(depth.values()) + 1)]


def _places(rows):
    """{operator: (left, row, width)} of its box; a row's boxes share 2.7 units."""
    found = {}
    for y, row in enumerate(rows):
        wide = 2.7 / len(row)
        found |= {op.name: (0.45 + i * wide + 0.03, y, wide - 0.06) for i, op in enumerate(row)}
    return found


def _edges(axes, operators, places):
    """A line from every result to its readers. If the reader is several rows below, the line runs
    to the left of the boxes in between."""
    for op in operators:
        x, y, wide = places[op.name]
        for name in op.inputs:
            x0, y0, wide0 = places[name]
            if y - y0 == 1:
                axes.plot([x0 + wide0 / 2, x + wide / 2], [y0, y], color=FAINT, lw=1.1, zorder=1)
            else:
                axes.plot(
                    [x0 + 0.1, 0.18, 0.18, x + 0.1], [y0, y0, y, y], color=FAINT, lw=1.1, zorder=1
                )


def _color(strategy):
    if strategy in WHOLE:
        return OP_COLOR["idle"]
    return STRATEGY_COLOR.get(strategy, "#9cc7ea")  # split along a dim of the activations


def _sent(row, moves, both_ways):
    """The collectives that reshard the results of these operators, as text, with "+ w" if gradients
    of their weights are communicated too."""
    results = dict.fromkeys(
        _said(both_ways(m.old, m.new)) for m in moves if m.what in {op.name for op in row}
    )
    owned = {f"{op.name}.{weight}" for op in row for weight in op.weights}
    return "; ".join(results) + " + w" * any(m.what in owned for m in moves)


def _said(names):
    return " / ".join(SHORT[name] for name in names)


def _words(row):
    """The operators' names, abbreviated: "attention_q, k, v", "split_heads x 3"."""
    plain = [name.rstrip("0123456789").rstrip("_") or name for name in (op.name for op in row)]
    if len(set(plain)) == 1:
        return (plain[0] if len(row) > 1 else row[0].name) + f" x {len(row)}" * (len(row) > 1)
    start = plain[0][
        : next(
            (i for i, letters in enumerate(zip(*plain, strict=False)) if len(set(letters)) > 1), 0
        )
    ]
    return start + ", ".join(name[len(start) :] for name in plain)


def _claim(plans, factor, unit):
    names = list(plans)
    first, last = plans[names[0]], plans[names[-1]]
    said = f"{names[-1]} plan takes {amount(last.seconds * factor)} {unit}"
    if len(names) == 1:
        return said
    if all(first.strategies[op].name == last.strategies[op].name for op in first.strategies):
        return f"{names[-1]} plan is {names[0]}, operator by operator"
    return (
        f"{said}, {last.seconds / first.seconds:.0%} of {names[0]} {amount(first.seconds * factor)}"
    )


def _in_words(rows, plan, both_ways):
    found = []
    for row in rows:
        ways = ", ".join(dict.fromkeys(plan.strategies[op.name].name for op in row))
        sent = _sent(row, plan.moves, both_ways)
        found.append(f"{_words(row)} {ways}" + f" (sent: {sent})" * bool(sent))
    return "; ".join(found)
