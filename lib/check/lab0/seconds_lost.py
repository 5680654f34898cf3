"""Lab 0, section 8: seconds_lost(model, cluster, batch), which of six strategies fit, and how long
a GPU waits in each step, as {strategy: seconds} in any order.
"""

from math import isfinite

from lib.check.causes import hints
from lib.check.claims import is_number
from lib.check.explain import cut
from lib.check.left_out import LEAVES_OUT, NO_TENSORS, but
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.cost.strategies import CARD, NVLINK, SITUATIONS, Cluster, Model, seconds_lost

INSIDE, BOTH = "tensor inside, data across", "tensor inside, pipeline across"
WAYS = ("data", "sharded", "tensor", "pipeline", INSIDE, BOTH)
SMALL = Model(1e9, 16, 2048, 1024)


def _on(nodes, per_node, memory=80e9):
    return Cluster(nodes, per_node, memory, 400e12, NVLINK, CARD)


OTHERS = {  # edge cases, in which a rule just holds or just fails to hold
    "1B on one GPU": (SMALL, _on(1, 1), 8),
    "1B on 4 nodes of 1": (SMALL, _on(4, 1), 66),  # 4 does not divide 66
    "1B, 16 layers on 16 GPUs": (SMALL, _on(2, 8), 16),
    "1B, 16 layers on 24 GPUs": (SMALL, _on(3, 8), 23),
    "1B, 16 layers on 17 nodes of 2": (SMALL, _on(17, 2), 16),
    "1B, a GPU's memory is its state": (SMALL, _on(2, 2, 16e9), 64),
    "1B, a byte less": (SMALL, _on(2, 2, 16e9 - 1), 64),
    "1B, an eighth of its state": (SMALL, _on(4, 8, 2e9), 64),
}
JOBS = SITUATIONS | OTHERS
CASES = here(*JOBS)
SIX = CASES[: len(SITUATIONS)]
A_DICT, ENTRIES = "a dictionary", ("the six names", "no such", "numbers")
FITS, NOT = "fits", "does not"


def script(make, case, show):
    lost = show.run(make, *JOBS[case.what])
    is_dict = show.returned(lost, isinstance(lost, dict), "a dict", A_DICT)
    if not is_dict or show.said(ENTRIES, _misread(lost)):
        return
    show("which fit:", [(f"{way!r}", FITS if way in lost else NOT) for way in WAYS])
    for way, seconds in lost.items():
        show(way, float(seconds), tolerance=0.01)


def _misread(lost):
    """{name: what is wrong}, or {}."""
    for way, seconds in lost.items():
        if way not in WAYS:
            names = ", ".join(map(repr, WAYS))
            return {"the six names": f"got {cut(way, 60)}, which is none of the six: {names}"}
        if not is_number(seconds) or not isfinite(seconds):
            name = "no such" if seconds is None or is_number(seconds) else "numbers"
            return {name: f"got {cut(seconds, 30)} for {way!r}, expected a number of seconds"}
    return {}


MEASURE = SideBySide(script, seconds_lost, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("what fits", 4, "the six situations",
     ((RETURNED, A_DICT, *ENTRIES, "which fit:"), SIX)),
    ("data and sharded", 2, "seconds, within 1 %", (("data", "sharded"), SIX)),
    ("tensor and pipeline", 2, "seconds, within 1 %", (("tensor", "pipeline"), SIX)),
    ("tensor inside the node", 3, "data or a pipeline across", ((INSIDE, BOTH), SIX)),
    ("any model and cluster", 1, "8 others, at the edge of what fits"),
    hints=hints("lab0", "seconds_lost"), leaves_out=but(LEAVES_OUT, "given used", "again"),
)  # fmt: skip
