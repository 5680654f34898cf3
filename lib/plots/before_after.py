"""Collectives as they ran: what each rank has before and after, coloured by the rank that the
values come from.

    broadcast            left: before; right: after; a row per rank
    0 [0 1 2 3] -> [0 1 2 3]
    1 [       ] -> [0 1 2 3]

The values that ranks start with are marked: rank r's chunk c is (c + 1) 10^r. Because a decimal
digit then belongs to one rank, the result itself shows which ranks' values, and which of their
chunks, are summed in it: 30 is rank 1's chunk 2, and 3333 is chunk 2 summed over ranks 0 to 3. With
fewer than 10 chunks a digit cannot overflow into the next one.
"""

from matplotlib.patheffects import withStroke

from lib.plots.draw import arrow, box, heading, middle, page
from lib.plots.labels import capital
from lib.plots.style import FAINT, INK, PAPER, finish, on_color, rank_color, readable, styled

MOST = 9  # collectives, in rows of three
GENERAL = (
    "A row per rank, left before, right after. Colour: whose values; number: which chunk; "
    "striped: a sum over these ranks. Hollow: memory to be filled. A dash: no buffer, or one "
    "left undefined."
)


def whose(value):
    """{rank: chunk} for each marked value in the sum `value`: 30 -> {1: 2}, 3333 -> {0: 2, 1: 2,
    2: 2, 3: 2}, 0 -> {}. Raises ValueError for a value that is negative or not an integer."""
    if value != int(value) or value < 0:
        raise ValueError(f"{value} is no sum of marked values: rank r's chunk c is (c + 1) * 10**r")
    return {
        rank: int(digit) - 1 for rank, digit in enumerate(reversed(str(int(value)))) if digit != "0"
    }


@styled
def before_after(ranks, title=None, note="", caption=None):
    """A panel per collective: each rank's buffer before and after.

    ranks: for each rank {"broadcast": (before, after), ...}, lists or 1-D tensors of at most 4
    marked values (see `whose`). 0 is memory that is not filled yet. None or an empty list means
    that the rank has no buffer, or that the collective leaves it undefined.
    note: a sentence that ends the caption. caption: replaces the general caption.
    Raises ValueError unless there are 2 to 4 ranks and 1 to 9 collectives, and for a value that is
    negative or not an integer.
    """
    names = list(ranks[0]) if ranks else []
    if not 2 <= len(ranks) <= 4 or not 1 <= len(names) <= MOST:
        raise ValueError(
            f"{len(names)} collectives on {len(ranks)} ranks: 1 to {MOST} on 2 to 4 ranks can be "
            f"drawn"
        )
    held = {
        name: [tuple([whose(v) for v in _values(side)] for side in rank[name]) for rank in ranks]
        for name in names
    }
    lines, columns = -(-len(names) // 3), min(3, max(2, len(names)))
    figure, panels = page(1.1 + 0.97 * lines, lines, columns)
    for axes, name in zip(panels.flat, names, strict=False):
        _panel(axes, name, held[name])
    for axes in panels.flat[len(names) :]:
        axes.axis("off")
    same = [
        name
        for name in names
        if all(after and after == held[name][0][1] for _, after in held[name])
    ]
    claim = f"Alike on all ranks afterwards: {', '.join(same) or 'none of these'}"
    return finish(
        figure,
        title or claim,
        f"{caption or GENERAL} {note}".rstrip(),
        f"A panel for each of {len(names)} collectives, run on {len(ranks)} ranks; 1.2 stands for "
        f"chunk 2 of rank 1. {claim}. {note} "
        + " ".join(f"{capital(name)}: {_in_words(held[name])}." for name in names),
    )


def _values(side):
    return [] if side is None else side.tolist() if hasattr(side, "tolist") else side


def _panel(axes, name, ranks):
    axes.set(xlim=(-1.1, 10.1), ylim=(len(ranks) + 0.05, -0.1))
    axes.axis("off")
    heading(axes, name, pad=2)
    for row, (before, after) in enumerate(ranks):
        middle(axes, -0.6, row + 0.5, str(row), readable(rank_color(row)), 9.5, weight="bold")
        for left, cells in ((0, before), (5.8, after)):
            for place, cell in enumerate(cells):
                _cell(axes, left + place, row, cell)
            if not cells:
                middle(axes, left + 0.5, row + 0.5, "-", FAINT)
    arrow(axes, (4.35, len(ranks) / 2), (5.45, len(ranks) / 2))


def _cell(axes, left, row, cell):
    """One element: hollow, or one rank's, or striped in the colours of all ranks that are summed in
    it."""
    low, height = row + 0.06, 0.88
    for i, rank in enumerate(cell):
        box(axes, left + i / len(cell), low, 1 / len(cell), height, rank_color(rank), ec="none")
    box(axes, left, low, 1, height, "none", ec=PAPER if cell else FAINT, lw=1.2 if cell else 0.7)
    if cell:
        alone, (rank, chunk) = len(cell) == 1, next(iter(cell.items()))
        look = (
            {}
            if alone
            else {"weight": "bold", "path_effects": [withStroke(linewidth=2.2, foreground=INK)]}
        )
        middle(axes, left + 0.5, row + 0.5, str(chunk),
               on_color(rank_color(rank)) if alone else PAPER, 8, **look)  # fmt: skip


def _in_words(ranks):
    of = lambda cell: "+".join(f"{rank}.{chunk}" for rank, chunk in cell.items()) or "nothing"
    side = lambda cells: " ".join(map(of, cells)) or "none"
    return "; ".join(
        f"rank {r} from {side(before)} to {side(after)}" for r, (before, after) in enumerate(ranks)
    )
