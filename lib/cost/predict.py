"""Predict published rows: the same metric in the same unit, or the reason why not.

    step time and its kin     step.py, metrics.py
    peak_mem, fits            memory.py; what fits leaves 17 % of the GPU's memory to peaks that are not modelled
    parts of memory           states or activations of the first stage
    bubble_rate               bubbles.py
    layer_fwd_time ...        one layer of layer.py

A row never stops the run: what is missing is said in `note`.
"""

import csv
from dataclasses import replace
from pathlib import Path

from lib.cost.bubbles import published_rate
from lib.cost.hardware import GIB
from lib.cost.layer import layer
from lib.cost.memory import peak_bytes, stage_memory
from lib.cost.metrics import TIME_METRICS, from_seconds
from lib.cost.parameters import parameters
from lib.cost.rows import Unpredictable, job, number, whole
from lib.cost.state import model_state_bytes
from lib.cost.step import step_seconds

FITS = 0.83  # of the GPU's memory: a published run for which the model says 67 of 80 GiB ran out
UNITS = {"GB": 1e9, "GiB": GIB, "GB(nvidia-smi)": GIB}  # nvidia-smi counts in powers of two


def predict(row, k=None):
    """(value, note) for a row of the columns of lib.cost.rows. value is None where it cannot be predicted.

    k: Parameters, those of data/parameters.csv if not given.
    """
    text = {column: "" if cell is None else str(cell) for column, cell in row.items()}  # a short line has None
    try:
        return _predict(text, k or parameters())
    except (Unpredictable, ValueError) as reason:
        return None, str(reason)
    except KeyError as column:
        return None, f"the row has no column {column}"


def _predict(row, k):
    metric = row["metric"]
    if metric == "bubble_rate":
        return bubble(row)
    if metric == "model_state_mem":
        return zero_states(row)
    if metric in TIME_METRICS:
        task = job(row)
        seconds = sum(step_seconds(*task, k).values())
        return from_seconds(metric, row["source"], task, seconds), f"{task.plan}; {task.stack.name}"
    if metric in MEMORY:
        task = job(row)
        return MEMORY[metric](row, task), f"{task.plan}; {task.stack.name}"
    if metric in LAYERS:
        return one_layer(row, k)
    if metric == "tflops_per_gpu_without_cp":
        raise Unpredictable("the source does not list the plan it ran without context parallelism")
    raise Unpredictable(f"metric {metric!r} is not modelled")


def bubble(row):
    p, m, v = whole(row, "pp"), whole(row, "global_batch"), whole(row, "vp")
    label, b = row["row"], whole(row, "micro_batch")
    parts = label.split("-")
    in_label = next((int(part[1:]) for part in parts if part[0] == "m" and part[1:].isdigit()), None)
    m = in_label or (m // b if m and b else None)
    if p is None or m is None:
        raise Unpredictable("pp or the number of micro-batches is not known")
    return published_rate(label, p, m, v, b), "schedule on the times of Qi et al. 2024, table 9"


def zero_states(row):
    """Mixed precision, 2 + 2 + 12 bytes per parameter, divided over dp ranks by the ZeRO stage."""
    billions, dp, zero = number(row, "params_b"), whole(row, "dp", 1), number(row, "zero_stage", 0)
    if billions is None or billions <= 0:
        raise Unpredictable(f"params_b is {row['params_b'] or 'empty'}: it should be billions of parameters")
    shares = [2 / (dp if zero >= 3 else 1), 2 / (dp if zero >= 2 else 1), 12 / (dp if zero >= 1 else 1)]
    undivided = model_state_bytes(billions * 1e9, "mixed")
    return undivided * sum(shares) / 16 / UNITS.get(row["unit"], 1e9), "2 + 2 + 12 bytes per parameter"


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
    return factor * seconds[row["metric"]] * 1e3, f"one layer; {task.stack.name}"


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
    "fits": lambda row, task: int(peak_bytes(task.model, task.plan, task.stack) < FITS * task.gpu.memory),
    "act_mem": lambda row, task: _activations(task) / _unit(row),
    "act_mem_rel_to_tp_baseline": _share_of_baseline,
    "weight_grad_opt_mem": _states,
}
LAYERS = ("layer_fwd_time", "layer_bwd_time", "layer_fwd_bwd_time")


def predict_file(rows, out):
    """Read the CSV file `rows`, write it to `out` with the columns predicted and note. Returns (predicted, not).

    Raises ValueError for a file without a header.
    """
    with open(rows, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not reader.fieldnames:
            raise ValueError(f"{rows} is empty: its first line must name the columns of lib/cost/data/rows.csv")
        columns, content = list(reader.fieldnames), list(reader)
    done = 0
    with open(Path(out), "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns + ["predicted", "note"], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in content:
            value, note = predict(row)
            done += value is not None
            writer.writerow({**row, "predicted": "" if value is None else f"{value:.6g}", "note": note})
    return done, len(content) - done
