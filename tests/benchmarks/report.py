"""What a benchmark found, as a table on the terminal, as Markdown for README.md here, and as JSON
with the machine."""

import datetime
import os
import pathlib
import platform
import sys
from dataclasses import dataclass, field

import numpy as np
import psutil
import torch

from lib import linux, plots
from lib.plots.labels import in_unit
from tests.benchmarks.measure import Bar, Comparison

COLUMNS = [
    "comparison",
    "ranks",
    "size",
    "ours",
    "theirs",
    "ratio [95 %]",
    "control [95 %]",
    "bar",
    "verdict",
]
QUICK = (
    "QUICK: fewer sizes and rounds, to see that it works. These numbers are not for "
    "tests/benchmarks/README.md."
)


@dataclass(frozen=True)
class Row:
    """One comparison: what, on how many ranks, at which size ("-": it has none), and its
    bar (None: it has none)."""

    what: str
    ranks: int
    size: str
    comparison: Comparison
    bar: Bar | None

    @property
    def verdict(self) -> str:
        return "-" if self.bar is None else "met" if self.bar.met(self.comparison) else "missed"

    def __str__(self):
        return f"{self.what}, {self.ranks} ranks" + (f", {self.size}" if self.size != "-" else "")

    def cells(self) -> list[str]:
        c = self.comparison
        return [
            self.what, str(self.ranks), self.size, duration(c.ours), duration(c.theirs),
            within(c.ratio),
            within(c.control), "none" if self.bar is None else str(self.bar), self.verdict,
        ]  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Further numbers that are no comparison of two sides. cells: (rows, columns) of text."""

    title: str
    header: list[str]
    cells: list[list[str]]


@dataclass(frozen=True)
class Outcome:
    """All that one benchmark found."""

    on: str  # "gloo", "nccl, NVIDIA H100"
    drawing: plots.Drawing
    rows: list[Row] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    # what the numbers do not say, one sentence or two each
    notes: list[str] = field(default_factory=list)
    data: dict = field(default_factory=dict)  # every time measured, in seconds, for the JSON file

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.verdict == "missed"]

    def all_tables(self) -> list[Table]:
        rows = [row.cells() for row in self.rows]
        return ([Table("", COLUMNS, rows)] if rows else []) + self.tables

    def lines_below(self) -> list[str]:
        """Where the bars come from, how many rounds there were, and the notes."""
        counts = sorted({row.comparison.rounds for row in self.rows})
        said = (
            [f"{counts[0]} rounds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} rounds"]
            if counts
            else []
        )
        bars = dict.fromkeys(f"Bar: {row.bar}. {row.bar.why}" for row in self.rows if row.bar)
        return [f"On {', '.join([self.on, *said])}.", *bars, *self.notes]


def as_text(outcome: Outcome) -> str:
    """The outcome for a terminal."""
    out = []
    for table in outcome.all_tables():
        widths = [max(map(len, column)) for column in zip(table.header, *table.cells, strict=True)]
        if table.title:
            out += ["", table.title]
        for line in [table.header, *table.cells]:
            out.append(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(line, widths, strict=True)
                ).rstrip()
            )
    return "\n".join([*out, "", *outcome.lines_below()])


def as_markdown(outcomes: dict[str, Outcome], facts: dict, quick: bool) -> str:
    """The tables of all benchmarks of a run, and the machine."""
    out = [f"**{QUICK}**", ""] if quick else []
    out += [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']:.0f} GB, {facts['os']}; "
        f"torch {facts['torch']}, Python {facts['python']}; {facts['date'][:10]}.",
        "Times are medians of one call on the slowest rank. Ratio: ours / theirs, paired by round; "
        "control: theirs / "
        'theirs in the same rounds. "Not slower": the ratio\'s lower bound is at most max(1, the '
        "control's upper "
        'bound). "At most x": the ratio\'s upper bound is.',
    ]
    for name, outcome in outcomes.items():
        out += ["", f"### {name}"]
        for table in outcome.all_tables():
            out += ["", *([f"{table.title}", ""] if table.title else [])]
            out += [
                f"| {' | '.join(cells)} |"
                for cells in [table.header, ["---"] * len(table.header), *table.cells]
            ]
        out += ["", *(f"{line}  " for line in outcome.lines_below())]
    return "\n".join(out) + "\n"


def as_json(name: str, outcome: Outcome, facts: dict, quick: bool) -> dict:
    """Everything, the single rounds included."""
    return {
        "benchmark": name,
        "quick": quick,
        "machine": facts,
        "on": outcome.on,
        "rows": [
            {
                "what": row.what, "ranks": row.ranks, "size": row.size, **row.comparison._asdict(),
                "ratio": row.comparison.ratio._asdict(),
                "control": row.comparison.control._asdict(),
                "bar": None if row.bar is None else {"says": str(row.bar), **row.bar._asdict()},
                "verdict": row.verdict,
            }
            for row in outcome.rows
        ],
        "tables": [{"title": t.title, "header": t.header,
                    "cells": t.cells} for t in outcome.tables],
        "notes": outcome.lines_below(),
        "data": plain(outcome.data),
    }  # fmt: skip


def machine() -> dict:
    """What these numbers hold for."""
    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next(
            (
                x.split(":")[1].strip()
                for x in cpuinfo.read_text().splitlines()
                if "model name" in x
            ),
            model,
        )
    return {
        "cpu": model,
        "cores": len(linux.processors()),
        "memory_gb": psutil.virtual_memory().total / 1e9,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "os": platform.platform(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "load_before": os.getloadavg()[0],
        "compiles_lib_anew": sys.dont_write_bytecode,
    }


def warnings(facts: dict) -> list[str]:
    """What makes the numbers of this run worse than the machine's."""
    out = []
    if facts["load_before"] > 0.5:
        out.append(
            f"others use this machine (load {facts['load_before']:.1f}): measure again when it is "
            f"quiet"
        )
    if facts["compiles_lib_anew"]:
        out.append("PYTHONDONTWRITEBYTECODE is set, so every rank compiles lib anew: unset it")
    return out


def plain(value):
    """Arrays as lists and keys as text, as JSON wants them."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def within(interval) -> str:
    digits = 4 if 0.0005 < interval.median < 0.1 else 2
    return f"{interval.median:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def duration(seconds: float) -> str:
    """Three digits: 12.3 us, 4.56 ms, 1.2 s."""
    return in_unit(seconds, {"us": 1e-6, "ms": 1e-3, "s": 1.0}, 3)


def size(nbytes: float) -> str:
    """1024 -> "1 KB", 4194304 -> "4 MB"."""
    return in_unit(nbytes, {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}, 3)
