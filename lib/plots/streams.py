"""What work.wait() blocks: Python's thread on gloo, but only the GPU's current stream on NCCL.

    Python          all_reduce(async_op=True)  matmuls ...  wait()  step
    current stream  B1 | B2 |   held   | step
    NCCL's stream        |  all-reduce  |

The figure shows the rule. It is not drawn from a run.
"""

from lib.plots.draw import WAITING, arrow, box, heading, key, middle, page, rows
from lib.plots.style import FAINT, INK, OP_COLOR, PAPER, drawing

# a panel is {lane: [(from, to, kind, words), ...]}; times have no unit
GLOO = {
    "Python": [(0, 3, "B", "backward, 1st half"), (3, 6.5, "B", "backward, 2nd half"),
               (6.5, 8.5, "wait", "wait()"), (8.5, 10.5, "W", "optimizer")],
    "gloo's thread": [(3, 8.5, "collective", "all-reduce of the 1st half")],
}  # fmt: skip
NCCL = {
    "Python": [(0, 0.8, "queue", "1"), (0.8, 1.6, "queue", "2"), (1.6, 2.4, "queue", "3"),
               (2.4, 3.2, "queue", "4"), (3.2, 4, "queue", "5")],
    "current stream": [(0.5, 3.5, "B", "backward, 1st half"), (3.5, 7, "B", "backward, 2nd half"),
                       (7, 9, "wait", "held"), (9, 11, "W", "optimizer")],
    "NCCL's stream": [(3.5, 9, "collective", "all-reduce of the 1st half")],
}  # fmt: skip
COLOR = {"queue": "#e8e3d3", "wait": PAPER} | OP_COLOR
END = 11.2


@drawing
def streams():
    """Two panels of lanes over time: the same five calls on gloo and on NCCL, and what waits in
    each."""
    figure, panels = page(4, 2, 1, gridspec_kw={"height_ratios": [2, 3]})
    panels = panels.ravel()
    for axes, (name, lanes) in zip(panels, {"On gloo": GLOO, "On NCCL": NCCL}.items(), strict=True):
        heading(axes, name, pad=3)
        axes.set(xlim=(0, END), xticks=[])
        rows(axes, list(lanes), size=9)
        axes.spines["bottom"].set_visible(False)
        for row, boxes in enumerate(lanes.values()):
            for start, end, kind, words in boxes:
                look = {"hatch": "/////", "ec": FAINT} if kind == "wait" else {}
                box(axes, start, row - 0.33, end - start, 0.66, COLOR[kind],
                    "" if kind == "wait" else words, size=8.5, **look)  # fmt: skip
                if kind == "wait":
                    middle(axes, (start + end) / 2, row, words, INK, 8.5,
                           bbox={"fc": PAPER, "ec": "none", "pad": 1.5})  # fmt: skip
    arrow(panels[0], (3, 0.33), (3, 0.67), INK, 1.2, 8)
    arrow(panels[0], (8.5, 0.67), (8.5, 0.33), INK, 1.2, 8)
    arrow(panels[1], (3.5, 1.33), (3.5, 1.67), INK, 1.2, 8)
    arrow(panels[1], (9, 1.67), (9, 1.33), INK, 1.2, 8)
    panels[1].text(4.15, 0, "Python is free", va="center", size=8.5, color=INK)
    key(
        panels[1],
        {"computes": COLOR["B"], "waits": WAITING, "communicates": COLOR["collective"]},
        below=True,
    )
    return (
        figure,
        "On NCCL, wait() stops only the current stream; on gloo it stops Python",
        "Five calls: 1 backward, 2 all_reduce with async_op, 3 more backward, 4 wait(), 5 "
        "optimizer. On NCCL Python only queues them. Arrows: what must have ended before.",
        "Two panels of lanes over time, a drawing of the rule.",
        "On gloo Python computes, and in wait() it waits for gloo's thread. On NCCL Python has "
        "queued all five calls early; the current stream is held between backward and optimizer "
        "until NCCL's stream has finished the all-reduce.",
    )
