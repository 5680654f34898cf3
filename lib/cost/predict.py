"""Predict published rows: the same metric in the same unit, with a range, or the reason why not.

    step time and its kin     step.py, metrics.py; ranges: ranges.py
    peak_mem, fits            memory.py; what fits leaves 17 % of the GPU's memory to peaks that are not modelled
    parts of memory           states or activations of the first stage
    bubble_rate               bubbles.py, with a range of its own
    layer_fwd_time ...        one layer of layer.py

A row never stops the run: what is missing is said in `note`, and so is what the row left open and was put in.
"""

import csv
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lib.cost.bubbles import SEARCHED, published_rate, schedule_of
from lib.cost.hardware import GIB
from lib.cost.layer import layer
from lib.cost.memory import peak_bytes, stage_memory
from lib.cost.metrics import TIME_METRICS, from_seconds
from lib.cost.parameters import parameters
from lib.cost.ranges import around
from lib.cost.rows import Unpredictable, assumed, job, number, whole
from lib.cost.state import model_state_bytes
from lib.cost.step import step_seconds

FITS = 0.83  # of the GPU's memory: a published run for which the model says 67 of 80 GiB ran out
UNITS = {"GB": 1e9, "GiB": GIB, "GB(nvidia-smi)": GIB}  # nvidia-smi counts in powers of two


class Prediction(NamedTuple):
    """A row's predicted value and the range that holds 80 % of such rows; None where it cannot be predicted."""

    value: float | None
    low: float | None
    high: float | None
    note: str


def predict(row, k=None):
    """The Prediction of a row of the columns of lib.cost.rows.

    k: Parameters, those of data/parameters.csv if not given.
    """
    text = {column: "" if cell is None else str(cell) for column, cell in row.items()}  # a short line has None
    try:
        return _predict(text, k or parameters())
    except (Unpredictable, ValueError) as reason:
        return Prediction(None, None, None, str(reason))
    except KeyError as column:
        return Prediction(None, None, None, f"the row has no column {column}")


def _predict(row, k):
    metric = row["metric"]
    if metric == "bubble_rate":
        return bubble(row)
    if metric == "model_state_mem":
        return zero_states(row)
    if metric in LAYERS:
        return one_layer(row, k)
    if metric == "tflops_per_gpu_without_cp":
        raise Unpredictable("the source does not list the plan it ran without context parallelism")
    if metric not in (*MEMORY, *TIME_METRICS, "fits"):
        raise Unpredictable(f"metric {metric!r} is not modelled")
    task = job(row)
    open_ = assumed(row, task)
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
    p, m, v = whole(row, "pp"), whole(row, "global_batch"), whole(row, "vp")
    label, b = row["row"], whole(row, "micro_batch")
    parts = label.split("-")
    in_label = next((int(part[1:]) for part in parts if part[0] == "m" and part[1:].isdigit()), None)
    m = in_label or (m // b if m and b else None)
    if p is None or m is None:
        raise Unpredictable("pp or the number of micro-batches is not known")
    rate, low, high = published_rate(label, p, m, v, b)
    note = "schedule on the times of Qi et al. 2024, table 9"
    if schedule_of(label) in SEARCHED:
        note += "; " + SEARCHED[schedule_of(label)]
    return Prediction(rate, low, high, note)


def zero_states(row):
    """Mixed precision, 2 + 2 + 12 bytes per parameter, divided over dp ranks by the ZeRO stage."""
    billions, dp, zero = number(row, "params_b"), whole(row, "dp", 1), number(row, "zero_stage", 0)
    if billions is None or billions <= 0:
        raise Unpredictable(f"params_b is {row['params_b'] or 'empty'}: it should be billions of parameters")
    shares = [2 / (dp if zero >= 3 else 1), 2 / (dp if zero >= 2 else 1), 12 / (dp if zero >= 1 else 1)]
    undivided = model_state_bytes(billions * 1e9, "mixed")
    value = undivided * sum(shares) / 16 / UNITS.get(row["unit"], 1e9)
    return Prediction(value, value, value, "2 + 2 + 12 bytes per parameter, exactly")


def one_layer(row, k):
    """One layer's times. The source's row leaves out what a whole model has (layers, batch): 1 of each is put in."""
    filled = {"layers": 1, "vocab": 51200, "zero_stage": 0}
    text = {**row, **{key: row.get(key) or value for key, value in filled.items()}}
    text["global_batch"] = row.get("global_batch") or row["micro_batch"]
    task = job(text)
    times = layer(*task, k)
    factor = k.factors.get(task.stack.name, 1.0)
    back = times.again.total + times.backward.total
    seconds = {"layer_fwd_time": times.forward.total, "layer_bwd_time": back, "layer_fwd_bwd_time": times.whole.total}
    value = factor * seconds[row["metric"]] * 1e3
    return Prediction(value, *around("time", value, task, row["source"]), f"one layer; {task.stack.name}")


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
    """Without embeddings, as the source counts: 12 L h^2 parameters over all stages and tensor ranks."""
    layer_parameters = task.model.parameters - task.model.embedding_parameters * (1 if task.model.tied else 2)
    return sum(task.stack.state) * layer_parameters / (task.plan.tp * task.plan.pp) / _unit(row)


MEMORY = {
    "peak_mem": lambda row, task: peak_bytes(task.model, task.plan, task.stack) / _unit(row),
    "act_mem": lambda row, task: _activations(task) / _unit(row),
    "act_mem_rel_to_tp_baseline": _share_of_baseline,
    "weight_grad_opt_mem": _states,
}
LAYERS = ("layer_fwd_time", "layer_bwd_time", "layer_fwd_bwd_time")


def predict_file(rows, out):
    """Read the CSV file `rows`, write it to `out` with columns predicted, low, high, note. Returns (predicted, not).

    Raises ValueError for a file without a header.
    """
    with open(rows, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not reader.fieldnames:
            raise ValueError(f"{rows} is empty: its first line must name the columns of lib/cost/data/rows.csv")
        columns, content = list(reader.fieldnames), list(reader)
    done, new = 0, ["predicted", "low", "high", "note"]
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
