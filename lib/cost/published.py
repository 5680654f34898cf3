"""Published facts, one CSV file per table in `data/`, each row with its source.

gpus          memory of a few GPUs
machines      memory, rates and links of all GPUs of the cost model
models        shapes of known models
gpt3_models   shapes of the GPT-3 family
links         what NCCL's all-reduce reaches over NVLink, PCIe and networks
nccl          collectives measured with nccl-tests, by size
zero_bubble   bubbles of pipeline schedules, with the times that they were computed from: of F, of
              B (the gradient of the input), of W and of a message
zero_bubble_times    those times for every configuration
rows          about 2,000 published measurements: model, plan, step time, throughput, memory
unseen        116 more rows, from other pages of the same sources, which no fit has seen
unseen_stacks 124 rows of releases and publishers that have no row in `rows`
residuals     cross-validated errors of step times, and errors of peak memory
sweeps        the rest of a published sweep of plans, with the columns of rows;
              nothing is fitted to it
sources       where each of these measurements was published, and under which conditions
stacks        properties of software stacks
parameters    the fitted parameters of the cost model
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

DATA = Path(__file__).parent / "data"


def table(name):
    """The rows of data/`name`.csv as dicts; numbers are int or float, empty cells None.

    Raises ValueError for a table that does not exist.
    """
    return [{key: _value(text) for key, text in row.items()} for row in table_as_text(name)]


def table_as_text(name):
    """The rows of data/`name`.csv as dicts of texts, as `lib.calibration.rows` reads them. Raises
    ValueError for a table that does not exist."""
    path = DATA / f"{name}.csv"
    if not path.exists():
        raise ValueError(
            f"no table {name!r}: there are {', '.join(sorted(p.stem for p in DATA.glob('*.csv')))}"
        )
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


class AllReduceTimes(NamedTuple):
    """NCCL's all-reduce as published. measured, lines: {gpu: (sizes in bytes, seconds)} on 8 GPUs,
    as measured and on the line through the first and the last point; off: the largest factor
    between the two.

    took: the factor by which 8 A100s take longer than 2 for 1 GiB. by_bytes: {algorithm: the same
    factor for the bytes that it sends}.
    """

    measured: dict
    lines: dict
    off: float
    took: float
    by_bytes: dict


def nccl_all_reduce_times(gpus=("A100", "H200", "B200")):
    """The `AllReduceTimes` of these GPUs, from the table nccl.

    Raises ValueError if the times are not flat first and proportional to the size at the end.
    """
    from lib.collectives.cost import COST  # imports torch, which the tables above do not need

    rows = [r for r in table("nccl") if r["collective"] == "allreduce" and r["time_us"]]
    measured, lines, off = {}, {}, []
    for gpu in gpus:
        mine = [r for r in rows if (r["gpu"], r["ranks"]) == (gpu, 8) and "stas00" in r["source"]]
        n, t = np.array(sorted((r["size_bytes"], r["time_us"] * 1e-6) for r in mine)).T
        line = t[0] + (n - n[0]) * (t[-1] - t[0]) / (n[-1] - n[0])
        measured[gpu], lines[gpu] = (n, t), (n, line)
        off += [*np.maximum(t / line, line / t)]
        if not (t[2] < 1.5 * t[0] and t[-1] > 6 * t[-4]):
            raise ValueError(f"{gpu}: {t} s are not flat first and then proportional to {n} bytes")
    gib = [r for r in rows if "trace/a100" in r["source"] and r["size_bytes"] == 1 << 30]
    a100 = {r["ranks"]: r["time_us"] for r in gib}
    by_bytes = {
        name: COST[name].time(1, 8, 0, 1) / COST[name].time(1, 2, 0, 1)
        for name in ("ring", "tree", "star")
    }
    return AllReduceTimes(measured, lines, max(off), a100[8] / a100[2], by_bytes)


def seconds_of(key, **settings):
    """{value of `key`: seconds of a step} of the published runs with these settings, in ascending
    order of the key.

    key: a column, such as "tp". settings: columns and their values, such as source="vtrain-multi",
    n_gpus=64; they have to select rows whose metric is a step time.
    """
    runs = [row for row in table("rows") if all(row[name] == v for name, v in settings.items())]
    return {row[key]: row["value"] for row in sorted(runs, key=lambda row: row[key])}
