"""Predicts published rows: the same metric in the same unit, with a range, or the reason why a row
cannot be predicted. The table says which files of lib.cost compute each kind of metric.

    step time, tokens/s, MFU ...  step.py, and metrics.py of this package
    peak_mem, fits                memory.py
    parts of memory               memory.py: states or activations of the first stage
    bubble_rate                   bubbles.py, with a range of its own
    layer_fwd_time ...            layer.py, for a single layer

The ranges are those of ranges.py. A row that cannot be predicted does not stop the run. Its column
`note` says why, and for the other rows it says what was assumed, and which columns were not used.
"""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lib.calibration.metrics import TIME_METRICS, from_seconds
from lib.calibration.rows import (
    COLUMNS,
    Unpredictable,
    assumed,
    data_ranks,
    job,
    number,
    precision_of,
    whole,
    zero_of,
)
from lib.cost.bubbles import SEARCHED, published_rate, schedule_of
from lib.cost.hardware import GIB
from lib.cost.layer import layer
from lib.cost.memory import FITS, peak_bytes, stage_memory, state_bytes
from lib.cost.parameters import parameters
from lib.cost.parts import stage_parts
from lib.cost.ranges import around
from lib.cost.state import model_state_bytes
from lib.cost.step import split, step_seconds

UNITS = {"GB": 1e9, "GiB": GIB, "GB(nvidia-smi)": GIB}  # nvidia-smi counts in powers of two


class Prediction(NamedTuple):
    """A row's predicted value, and the range that contains 80 % of such rows; all three are None if
    the row cannot be predicted."""

    value: float | None
    low: float | None
    high: float | None
    note: str


def predict(row, k=None):
    """The Prediction of a row with the columns of lib.calibration.rows. For a row that cannot be
    predicted no error is raised; the note says what is wrong with it.

    k: Parameters; those of data/parameters.csv if not given.
    """
    # csv gives None for the cells that a short line lacks
    given = {column: "" if cell is None else str(cell).strip() for column, cell in row.items()}
    text = {"source": "", "row": "", **given}
    if None in row:
        return Prediction(
            None, None, None, "the row has more cells than the first line names columns"
        )
    try:
        found = _predict(text, k or parameters())
    except ValueError as reason:
        found = Prediction(None, None, None, str(reason))
    except KeyError as column:
        found = Prediction(
            None, None, None, f"the file has no column {column}: add it to its first line"
        )
    strange = [
        column or "''" for column, cell in text.items() if cell and column not in (*COLUMNS, *ADDED)
    ]
    return found._replace(
        note=found.note + (f"; not used: {', '.join(strange)}" if strange else "")
    )


def _predict(row, k):
    metric = row["metric"]
    unit = {**TIME_METRICS, **OTHER_UNITS}.get(metric)
    if unit and row.get("unit", "") not in ("", unit):
        raise Unpredictable(f"unit is {row['unit']!r}: {metric} is predicted in {unit}")
    if metric == "bubble_rate":
        return bubble(row)
    if metric == "model_state_mem":
        return zero_states(row)
    if metric in LAYERS:
        return one_layer(row, k)
    if metric == "tflops_per_gpu_without_cp":
        raise Unpredictable("the source does not list the plan it ran without context parallelism")
    if metric not in (*MEMORY, *TIME_METRICS, "fits"):
        raise Unpredictable(f"metric {metric!r} is not modelled: use one of {', '.join(METRICS)}")
    task = job(row)
    open_ = assumed(row, task)
    if metric in TIME_METRICS and task.stack.name not in k.factors:
        open_.append(f"factor 1, as no step of {task.stack.name} was measured")
    note = f"{task.plan}; {task.stack.name}" + (f"; assumed: {', '.join(open_)}" if open_ else "")
    if metric in TIME_METRICS:
        value = from_seconds(metric, row["source"], task, sum(step_seconds(*task, k).values()))
        return Prediction(value, *around("time", value, task, row["source"]), note)
    if metric == "fits":
        peak = peak_bytes(task.model, task.plan, task.stack)
        low, high = around("memory", peak, task, row["source"])
        return Prediction(*(int(each < FITS * task.gpu.memory) for each in (peak, high, low)), note)
    value = MEMORY[metric](row, task)
    return Prediction(value, *around("memory", value, task, row["source"]), note)


def bubble(row):
    """The bubble rate of a pipeline schedule. The row's label names the schedule, and a model whose
    times Qi et al. 2024 measured. Apart from the label, only pp, vp, global_batch and micro_batch
    are used."""
    p, batch, v = whole(row, "pp"), whole(row, "global_batch"), whole(row, "vp")
    label, b = row["row"], whole(row, "micro_batch")
    in_label = next((int(m) for m in re.findall(r"(?<![^-])m(\d+)(?![^-])", label)), None)
    m = batch // b if batch and b else None
    if p is None or not (m or in_label):
        raise Unpredictable("pp or the number of micro-batches is not known")
    if m and in_label and m != in_label:
        raise Unpredictable(
            f"{label!r} says m is {in_label}, global_batch {batch} and micro_batch {b} that it is "
            f"{m}"
        )
    rate, low, high = published_rate(label, p, m or in_label, v, b)
    timed = f"{label.split('-')[0]} on {p} ranks"
    note = f"schedule on the times of {timed}, Qi et al. 2024, table 9, whatever other columns say"
    if schedule_of(label) in SEARCHED:
        note += "; " + SEARCHED[schedule_of(label)]
    return Prediction(rate, low, high, note)


def zero_states(row):
    """The bytes of weights, gradients and optimizer state in mixed precision: 2 + 2 + 12 per
    parameter, divided by tp pp. The parts that the ZeRO stage shards are also divided by dp."""
    billions, zero = number(row, "params_b"), zero_of(row, 0)
    tp, pp, dp = (whole(row, key, 1) for key in ("tp", "pp", "dp"))
    if billions is None or billions <= 0:
        raise Unpredictable(
            f"params_b is {row['params_b'] or 'empty'}: it should be billions of parameters"
        )
    precision_of(row.get("precision") or "fp16")  # raises unless it is of 16 bits or fewer
    if whole(row, "ep", 1) > 1:
        raise Unpredictable(
            "ep is more than 1: which of params_b are experts is not said; ask for "
            "weight_grad_opt_mem"
        )
    dp = data_ranks(row, whole(row, "n_gpus", tp * pp * dp * whole(row, "cp", 1)))
    shares = [
        2 / (dp if zero >= 3 else 1),
        2 / (dp if zero >= 2 else 1),
        12 / (dp if zero >= 1 else 1),
    ]
    undivided = model_state_bytes(billions * 1e9, "mixed") / (tp * pp)
    value = undivided * sum(shares) / 16 / _unit(row)
    note = (
        f"2 + 2 + 12 bytes of each of params_b, whatever other columns say; tp{tp} pp{pp} dp{dp} "
        f"zero{zero}"
    )
    return Prediction(value, value, value, note)


def one_layer(row, k):
    """The time of one layer: forward, backward or both. Empty cells for the layers and the batch
    are taken to mean one layer and one micro-batch."""
    filled = {"layers": 1, "vocab": 51200, "zero_stage": 0}
    text = {**row, **{key: row.get(key) or value for key, value in filled.items()}, "params_b": ""}
    text["global_batch"] = row.get("global_batch") or row["micro_batch"]
    task = job(text)
    times = layer(*task, k)
    factor = k.factors.get(task.stack.name, 1.0)
    back = times.again.total + times.backward.total
    seconds = {
        "layer_fwd_time": times.forward.total,
        "layer_bwd_time": back,
        "layer_fwd_bwd_time": times.whole.total,
    }
    value = factor * seconds[row["metric"]] * 1e3
    return Prediction(
        value,
        *around("time", value, task, row["source"]),
        f"one layer; {task.plan}; {task.stack.name}",
    )


def _unit(row):
    if row["unit"] not in UNITS:
        raise Unpredictable(f"unit {row['unit']!r} is not one of {', '.join(UNITS)}")
    return UNITS[row["unit"]]


def _activations(task):
    return stage_memory(task.model, task.plan, task.stack, 0)["activations"]


def _share_of_baseline(row, task):
    baseline = task._replace(plan=replace(task.plan, recompute="none", sequence_parallel=False))
    return 100 * _activations(task) / _activations(baseline)


def _states(row, task):
    """Weights, gradients and optimizer state of the first stage's layers, without embeddings, as
    the source counts them."""
    model, plan, _, stack = task
    layers = [
        part
        for part in stage_parts(model, plan, 0, split(model.layers, plan.pp))
        if part.name != "ends"
    ]
    return sum(state_bytes(layers, plan, stack).values()) / _unit(row)


MEMORY = {
    "peak_mem": lambda row, task: peak_bytes(task.model, task.plan, task.stack) / _unit(row),
    "act_mem": lambda row, task: _activations(task) / _unit(row),
    "act_mem_rel_to_tp_baseline": _share_of_baseline,
    "weight_grad_opt_mem": _states,
}
LAYERS = ("layer_fwd_time", "layer_bwd_time", "layer_fwd_bwd_time")
OTHER_UNITS = {
    "bubble_rate": "fraction of makespan", "fits": "bool", "act_mem_rel_to_tp_baseline": "%",
    **dict.fromkeys(LAYERS, "ms"),
}  # fmt: skip
METRICS = (*TIME_METRICS, *MEMORY, "model_state_mem", "fits", "bubble_rate", *LAYERS)
ADDED = ("predicted", "low", "high", "note")


def predict_file(rows, out):
    """Read the CSV file `rows`, and write it to `out` with the additional columns predicted, low,
    high and note. Returns (how many rows are predicted, how many are not).

    Raises ValueError if `rows` is not a CSV file in UTF-8, or if its first line names none of the
    known columns, or one column twice. Raises OSError for a file that cannot be read or written.
    """
    columns, content = _read(rows)
    done, new = 0, ADDED
    with open(Path(out), "w", newline="", encoding="utf-8") as file:
        columns += [column for column in new if column not in columns]
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in content:
            *numbers, note = predict(row)
            done += numbers[0] is not None
            cells = ["" if number is None else f"{number:.6g}" for number in numbers]
            writer.writerow({**row, **dict(zip(new, [*cells, note], strict=True))})
    return done, len(content) - done


def _read(rows):
    """([column], [row]) of a CSV file. Raises ValueError."""
    with open(rows, newline="", encoding="utf-8-sig") as file:
        # strict, because a quote that is left open would otherwise swallow the rows after it
        reader = csv.DictReader(file, strict=True)
        try:
            reader.fieldnames = columns = [column.strip() for column in reader.fieldnames or []]
            content = list(reader)
        except UnicodeDecodeError as problem:
            raise ValueError(
                f"{rows} is not UTF-8 (byte {problem.start}): save it as UTF-8"
            ) from None
        except csv.Error as problem:
            raise ValueError(
                f"{rows} is not a CSV file ({problem}): look for a quote that is left open"
            ) from None
    if not set(columns) & set(COLUMNS):
        first = f"begins with {','.join(columns)[:60]!r}" if columns else "is empty"
        named = (
            "its first line must name the columns of lib/cost/data/rows.csv, with commas between "
            "them"
        )
        raise ValueError(f"{rows} {first}: {named}")
    if twice := sorted({column for column in columns if column and columns.count(column) > 1}):
        raise ValueError(
            f"{rows} has more than one column {', '.join(twice)}: which one counts? Leave one"
        )
    return columns, content
