"""How much longer a step takes when tp grows, for example from 8 to 16, and how much of this
increase the formula for the all-reduces explains.

3.6B, micro-batch 2    [ step at tp = 8          ][ sending ][ rest ]     13.5 s (x 1.5)
3.6B, micro-batch 16   [ step at tp = 8  ][ sending  ][ rest ]            10.7 s (x 2.1)
"""

from lib.plots.draw import beside, grid, key, numbers, page, rows, stack
from lib.plots.labels import amount, each
from lib.plots.style import OP_COLOR, drawing

BASE, SENDING, REST = "step at the smaller tp", "more sending, by the formula", "the rest"
COLOR = {BASE: OP_COLOR["F"], SENDING: OP_COLOR["send"], REST: OP_COLOR["idle"]}


@drawing
def tp_rise(pairs):
    """A bar per pair of measured steps, one at a small tp and one at a larger tp.

    pairs: [(small, large), ...], each with .model, .micro_batch, .tp, .seconds, .sending, as
    `lib.cost.tp_sweep.pairs` returns them; 1 to 8 pairs, all at the same two tp. Raises ValueError
    for any other number of pairs, pairs at different tp, or a pair in which the larger tp makes the
    sending or the rest of the step shorter.
    """
    if not 1 <= len(pairs) <= 8 or len({(a.tp, b.tp) for a, b in pairs}) != 1:
        raise ValueError(f"{len(pairs)} pairs: 1 to 8, all at the same two tp, can be drawn")
    small, large = pairs[0][0].tp, pairs[0][1].tp
    bars = {}
    for a, b in pairs:
        sending = b.sending - a.sending
        rest = b.seconds - a.seconds - sending
        if min(sending, rest) < 0:
            raise ValueError(
                f"{a.model}, micro-batch {a.micro_batch}: {a.seconds:g} s at tp={a.tp}, "
                f"{b.seconds:g} s at tp={b.tp}, of which {sending:g} s more sending: not a rise"
            )
        bars[f"{a.model}, micro-batch {a.micro_batch}"] = {
            BASE: a.seconds, SENDING: sending, REST: rest,
        }  # fmt: skip
    ratios = [b.seconds / a.seconds for a, b in pairs]
    end = 1.25 * max(b.seconds for _, b in pairs)
    figure, axes = page(1.75 + 0.36 * len(bars))
    axes.set(xlim=(0, end), xlabel="time of a step (s)")
    rows(axes, bars)
    numbers(axes.xaxis)
    grid(axes, "x")
    for row, (parts, ratio) in enumerate(zip(bars.values(), ratios, strict=True)):
        right = stack(axes, row, parts, COLOR, 5.6 / end, 0.64, 9)
        beside(axes, right, row, f"{amount(right)} s (x {ratio:.1f})")
    key(axes, {BASE.replace("the smaller tp", f"tp = {small}"): COLOR[BASE]}
        | {part: COLOR[part] for part in (SENDING, REST)})  # fmt: skip
    shares = [(b.sending - a.sending) / (b.seconds - a.seconds) for a, b in pairs]
    explained = f"{min(shares):.0%} to {max(shares):.0%}"
    claim = (
        f"From tp = {small} to {large}, out of the NVLink domain, a step takes {min(ratios):.1f} "
        f"to {max(ratios):.1f} times as long"
    )
    look = f"The formula for sending explains {explained} of the rise."
    words = lambda _, parts: ", ".join(f"{part} {amount(s)} s" for part, s in parts.items())
    return figure, claim, look, "Bars of the time of a step, a bar per pair.", each(bars, words)
