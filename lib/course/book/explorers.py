"""The explorers without a kernel: each setting's figure drawn beforehand, as SVG, and packed into
one script.

    book.figure("model_memory", {controls: [...], alts: [...], packed: "..."})

The figures are those of lib.explore. A book has fewer settings than a notebook: `GRID` says which
sliders it has, and where they stop; the others stay where they begin. What all figures have in
common, mostly letters, is packed once.
"""

import base64
import concurrent.futures
import gc
import hashlib
import importlib.metadata
import inspect
import itertools
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

GRID = {
    "all_reduce_cost": {
        "ranks": [2, 8, 64, 1024], "size": [1e3, 1e6, 1e9], "latency": [1e-6, 1e-5, 1e-4],
        "bandwidth": [1e9, 1e10],
    },
    "model_memory": {
        "parameters": [m * 10**6 for m in (350, 1300, 7000, 13_000, 34_000, 70_000, 175_000)],
        "ranks_that_share_the_state": [1, 2, 4, 8, 16, 32, 64],
    },
    "ring_against_hierarchical": {
        "nodes": [2, 4, 16, 64], "ranks_per_node": [2, 8], "size": [1e6, 1e8],
        "link_inside": [2.5e10, 3e11], "link_between": [1e10, 2.5e10],
    },
    "data_parallel_step": {
        "ranks": [8, 64, 1024], "tokens_per_rank": [2048, 8192, 32_768],
        "bandwidth": [1e10, 2.5e10, 1e11],
        "buckets": [1, 4],
    },
    "scaling_explorer": {
        "batch_if_divided": [2**20, 2**22], "tokens_per_rank": [4096, 16_384],
        "bandwidth": [1e10, 2.5e10, 1e11],
        "buckets": [1, 4],
    },
    "pipeline": {
        "schedule": ["relay", "GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-V", "DualPipeV"],
        "p": [2, 4, 8], "m": [4, 8, 16],
    },
    "zero_memory": {
        "parameters": [1_300_000_000, 7_500_000_000, 70_000_000_000, 405_000_000_000],
        "ranks": [8, 64, 1024],
        "precision": ["fp32", "mixed", "mixed, fp32 gradients", "bf16"],
    },
    "zero_volume": {"ranks": [8, 64, 1024], "microbatches": [1, 4, 16],
                    "bandwidth": [1e10, 2.5e10, 1e11]},
    "capacity": {"capacity_factor": [0.5, 1.0, 1.25, 2.0, 4.0], "experts": [8, 16, 64],
                 "skew": [0.0, 0.25, 0.5, 1.0]},
    "plans": {"tp": [1, 2, 4, 8], "pp": [1, 4, 8, 16], "zero": [1, 3],
              "recompute": ["none", "full"]},
}  # fmt: skip
LIB = Path(__file__).parents[2]
ROOMS = ("explore", "plots", "cost", "collectives", "pipeline")  # what the figures depend on
READ = (".py", ".csv", ".json")
AT_ONCE = 24  # figures that a process draws before it is given more
SHARED = re.compile(r"<defs>\s*(.*?)\s*</defs>", re.DOTALL)
PARTS = re.compile(r'<path id="([^"]+)"[^>]*/>|<clipPath id="([^"]+)".*?</clipPath>', re.DOTALL)


def controls(name: str) -> list[dict]:
    """The sliders and menus of an explorer: [{"name", "stops": {how it reads: value}, "start":
    place, "menu"}, ...]."""
    from lib import explore

    draw, choices = explore.settings(getattr(explore, name))
    start = inspect.signature(draw).parameters
    found = []
    for control, shown in GRID[name].items():
        all_stops = choices[control]
        words = (
            all_stops if isinstance(all_stops, dict) else {str(value): value for value in all_stops}
        )
        stops = {word: value for word, value in words.items() if value in shown}
        default = start[control].default
        if len(stops) != len(shown) or default not in shown:
            raise ValueError(
                f"{name}, {control}: {shown} must be stops of the notebook's, with its start "
                f"{default!r}"
            )
        place = list(stops.values()).index(default)
        found.append(
            {"name": control, "stops": stops, "start": place, "menu": isinstance(default, str)}
        )
    return found


def draw_some(name: str, some: list[dict]) -> list[tuple[str, str]]:
    """[(SVG, alt text), ...] of an explorer at these settings."""
    from lib import explore
    from lib.plots.style import as_svg

    draw, _ = explore.settings(getattr(explore, name))
    return [as_svg(draw, **setting) for setting in some]


def script(name: str, controls: list[dict], drawn: list[tuple[str, str]], **more) -> str:
    """The script that brings these figures, one for each combination of the controls' stops, the
    last one's first."""
    shared, figures = {}, []
    for svg, _ in drawn:
        for part in (part for block in SHARED.findall(svg) for part in PARTS.finditer(block)):
            shared[part[1] or part[2]] = part[0]
        figures.append(re.sub(r"\s+", " ", SHARED.sub("", svg[svg.index("<svg") :])))
    packed = zlib.compress(
        json.dumps({"shared": "".join(shared.values()), "figures": figures}).encode(), 9
    )
    told = [
        {key: list(value) if key == "stops" else value for key, value in one.items()}
        for one in controls
    ]
    data = {
        "controls": told,
        "alts": [alt for _, alt in drawn],
        "packed": base64.b64encode(packed).decode(),
        **more,
    }
    return f"book.figure({json.dumps(name)}, {json.dumps(data)});\n"


def write(folder: Path, names: list[str], kept: Path, processes: int = 2) -> None:
    """Write NAME.js into `folder` for each of these explorers, drawn by that many processes.

    kept: where they stay for the next book, until a source that they come from changes.
    """
    kept = kept / _sources()
    if not all((kept / f"{name}.js").exists() for name in names):
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as part:
            _draw(Path(part), names, processes)
            for drawn in Path(part).iterdir():
                # another book may have drawn the same meanwhile
                os.replace(drawn, kept / drawn.name)
        for old in set(kept.parent.iterdir()) - {kept}:
            shutil.rmtree(old, ignore_errors=True)
    for name in names:
        shutil.copy(kept / f"{name}.js", folder)


def _sources() -> str:
    """A name for all that the figures depend on."""
    files = [
        path for room in ROOMS for path in sorted((LIB / room).rglob("*.*")) if path.suffix in READ
    ]
    versions = [sys.version, *map(importlib.metadata.version, ("matplotlib", "numpy"))]
    content = [
        Path(__file__).read_bytes(),
        *(path.read_bytes() for path in files),
        *map(str.encode, versions),
    ]
    return hashlib.sha256(b"".join(content)).hexdigest()[:16]


def _begin() -> None:
    from lib import explore  # noqa: F401

    gc.freeze()  # what is imported stays: garbage is looked for among what is drawn


def _draw(folder: Path, names: list[str], processes: int) -> None:
    jobs = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context, initializer=_begin) as pool:
        for name in names:
            found = controls(name)
            settings = list(combinations(found))
            parts = [settings[i : i + AT_ONCE] for i in range(0, len(settings), AT_ONCE)]
            jobs.append((name, found, [pool.submit(draw_some, name, part) for part in parts]))
        for name, found, parts in jobs:
            drawn = [figure for part in parts for figure in part.result()]
            (folder / f"{name}.js").write_text(script(name, found, drawn), encoding="utf-8")


def write_animation(folder: Path, name: str, frames: list[tuple[str, str]], seconds: float) -> None:
    """Write NAME.js with a control of time, and NAME.svg, its last frame, for who has no script."""
    stops = {f"{number} of {len(frames) - 1}": number for number in range(len(frames))}
    time = {"name": "time", "stops": stops, "start": len(frames) - 1, "menu": False}
    (folder / f"{name}.js").write_text(
        script(name, [time], frames, seconds=seconds), encoding="utf-8"
    )
    (folder / f"{name}.svg").write_text(frames[-1][0], encoding="utf-8")


def combinations(controls: list[dict]) -> Iterator[dict]:
    """Each combination of the controls' stops, the last control's first, as a drawing
    function's arguments."""
    for values in itertools.product(*(one["stops"].values() for one in controls)):
        yield {one["name"]: value for one, value in zip(controls, values, strict=True)}
