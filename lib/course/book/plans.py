"""The costs of all plans that Lab 6's explorer can show, computed when the book is built.

lib.cost has too many parts to be written a second time in JavaScript, so the page gets its numbers.
The number of GPUs and the batch are the explorer's defaults; everything else can be set. Memory in
GiB, times in seconds.
"""

import base64
import itertools
import json
import zlib
from pathlib import Path

from lib.cost.hardware import GIB, gpu
from lib.cost.memory import memory
from lib.cost.plan import Plan
from lib.cost.predict import FITS
from lib.cost.search import DEFAULT_STACK, search
from lib.cost.shapes import known
from lib.cost.stacks import stacks
from lib.cost.step import split, step_seconds

CONTROLS = {  # as in lib.explore.lab6: the stops, and where the explorer begins
    "model": (["llama2-13b", "llama3-70b", "gpt-3-175b", "gpt-1t"], "gpt-3-175b"),
    "gpu_kind": (["A100-80GB", "H100-80GB", "B200"], "A100-80GB"),
    "tp": ([1, 2, 4, 8, 16], 8),
    "pp": ([1, 2, 4, 6, 8, 12, 16, 32, 64], 8),
    "micro_batch": ([1, 2, 4, 8], 1),
    "zero": ([0, 1, 3], 1),
    "recompute": (["none", "full"], "none"),
}
GPUS, BATCH = 1024, 1536


def table() -> dict:
    """What explorers.js draws from: the controls, the costs of each plan or why there is no such
    plan, and the best plan of each job."""
    costs = {}
    for values in itertools.product(*(stops for stops, _ in CONTROLS.values())):
        found = cost(*values)
        costs[" ".join(map(str, values))] = found
    jobs = itertools.product(CONTROLS["model"][0], CONTROLS["gpu_kind"][0])
    best = {f"{model} {kind}": _best(model, kind) for model, kind in jobs}
    some = cost(*(start for _, start in CONTROLS.values()), named=True)
    return {
        "controls": [
            {"name": name, "stops": stops, "start": start}
            for name, (stops, start) in CONTROLS.items()
        ],
        "costs": costs,
        "best": best,
        "memory": list(some[0]),
        "seconds": list(some[1]),
        "room": {kind: FITS * gpu(kind).memory / GIB for kind in CONTROLS["gpu_kind"][0]},
        "job": {"gpus": f"{GPUS:,}", "batch": f"{BATCH:,}"},
    }


def cost(model, kind, tp, pp, micro_batch, zero, recompute, named=False):
    """[memory by component, seconds by component] of a plan, or the reason why it cannot be."""
    shape = known()[model]
    if GPUS % (tp * pp):
        return f"{GPUS:,} GPUs are no multiple of tp {tp} x pp {pp} = {tp * pp}"
    plan = Plan(BATCH, micro_batch, tp, pp, GPUS // (tp * pp), zero=zero, recompute=recompute,
                sequence_parallel=tp > 1)  # fmt: skip
    if why := plan.problem(shape):
        return why
    if min(split(shape.layers, pp)) < 1:
        return f"{shape.layers} layers leave one of {pp} stages without any"
    return _costs(shape, plan, kind, named)


def _costs(shape, plan, kind, named=False):
    stack = stacks()[DEFAULT_STACK]
    found = (
        {name: n_bytes / GIB for name, n_bytes in memory(shape, plan, stack).items()},
        step_seconds(shape, plan, gpu(kind), stack),
    )
    return found if named else [[_short(value) for value in one.values()] for one in found]


def _best(model, kind):
    found = search(known()[model], gpu(kind), GPUS, BATCH)
    if not found:
        return None
    plan = found[0].plan
    return {"name": str(plan), "costs": _costs(known()[model], plan, kind)}


def _short(value):
    return float(f"{value:.4g}")


def write(folder: Path) -> None:
    """Write plans.js."""
    packed = zlib.compress(json.dumps(table(), separators=(",", ":")).encode(), 9)
    data = {"packed": base64.b64encode(packed).decode()}
    (folder / "plans.js").write_text(f'book.data("plans", {json.dumps(data)});\n', encoding="utf-8")
