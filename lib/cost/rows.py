"""A published row, read: which model, on which GPUs, under which plan, in which stack.

Columns, as in data/rows.csv (an empty cell: not stated):

    source row model params_b layers hidden heads kv_heads ffn vocab seq experts topk gpu n_gpus
    tp pp vp cp ep dp micro_batch global_batch zero_stage recompute precision metric value unit

What a source does not state is taken from its stack (stacks.py), or else:

    layers        (P - V h) / 12 h^2, to the nearest multiple of the pipeline's stages
    vp            1; two layers per stage where the stack is known to interleave
    micro_batch   1, or that of the same model in Narayanan et al. 2021, table 1
    recompute     what the stack does; with ZeRO-3 all layers, if the step does not fit otherwise
"""

from dataclasses import replace
from typing import NamedTuple

from lib.cost import shapes
from lib.cost.hardware import GPU, gpu
from lib.cost.memory import peak_bytes
from lib.cost.plan import Plan
from lib.cost.shapes import Model
from lib.cost.stacks import Stack, stack_of

MICRO_BATCHES = {3.6: 16, 18.4: 8, 39.1: 4, 76.1: 2}  # Narayanan et al. 2021, by billions of parameters


class Unpredictable(ValueError):
    """A row that lacks what a prediction needs; the text says what."""


class Job(NamedTuple):
    """Everything that a prediction needs."""

    model: Model
    plan: Plan
    gpu: GPU
    stack: Stack


def number(row, key, default=None):
    """A cell as int or float; `default` if it is empty. Raises Unpredictable for anything else."""
    text = str(row.get(key) if row.get(key) is not None else "").strip()
    if not text:
        return default
    try:
        value = float(text)
        return int(value) if value == int(value) else value
    except (ValueError, OverflowError):
        raise Unpredictable(f"{key} is {text!r}, not a number") from None


def whole(row, key, default=None):
    """A cell as a whole number above 0. Raises Unpredictable for another."""
    value = number(row, key, default)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise Unpredictable(f"{key} is {value}, not a whole number above 0")
    return value


def job(row):
    """The Job that a row describes. Raises Unpredictable."""
    stack = stack_of(row["source"], row["row"])
    if stack is None:
        raise Unpredictable(f"source {row['source']!r}: no stack is known for it, add one to lib/cost/data/stacks.csv")
    try:
        device = gpu(row["gpu"])
    except ValueError as problem:
        raise Unpredictable(str(problem)) from None
    model = model_of(row)
    return Job(model, plan_of(row, model, stack, device), device, stack)


def model_of(row):
    """The Model of a row: its numbers, and what data/models.csv knows beside them under its name."""
    name, seq = row["model"], whole(row, "seq")
    if seq is None:
        raise Unpredictable("seq is empty: the sequence length decides the step")
    hidden, heads, layers = (whole(row, key) for key in ("hidden", "heads", "layers"))
    base = next((m for n, m in shapes.known().items() if name == n or name.startswith(n + "-")), None)
    if base is not None and (base.experts or hidden is None):
        layers = layers or base.layers
        dense = base.dense_layers if layers == base.layers else min(1, base.dense_layers)
        return replace(base, name=name, seq=seq, layers=layers, dense_layers=dense)
    if hidden is None or heads is None:
        raise Unpredictable(f"model {name!r}: hidden and heads are empty, and data/models.csv does not have it")
    if heads > hidden:
        raise Unpredictable(f"{heads} heads in a hidden size of {hidden}: each would have less than one number")
    vocab = whole(row, "vocab", 51200)
    layers = layers or _layers(row, hidden, vocab)
    more = {"head_dim": base.head_dim} if base else {}
    return shapes.shape(name, layers, hidden, heads, vocab, seq, whole(row, "kv_heads"), whole(row, "ffn"), **more)


def _layers(row, hidden, vocab):
    billions, p = number(row, "params_b"), whole(row, "pp", 1)
    if billions is None:
        raise Unpredictable("layers and params_b are both empty")
    # P = 12 L h^2 + V h
    return max(1, round((billions * 1e9 - vocab * hidden) / (12 * hidden**2) / p)) * p


def precision_of(text):
    """Of matrix products. Row-wise scaled fp8 ran at bf16's speed where it was measured (torchtitan, June 2025)."""
    text = text.lower()
    if "fp8" in text and "rowwise" not in text:
        return "fp8"
    return "fp4" if "fp4" in text else "fp16" if "fp16" in text else "bf16"


def recompute_of(text):
    """A row's words for recomputation as one of plan.RECOMPUTE. Norms and activations alone cost next to nothing."""
    text = text.lower()
    return "full" if text == "full" else "selective" if "selective" in text or "core_attn" in text else "none"


def plan_of(row, model, stack, device):
    """The Plan of a row. Raises Unpredictable where degrees or batch are missing or do not fit together."""
    n, batch = whole(row, "n_gpus"), whole(row, "global_batch")
    tp, pp, cp, ep = (whole(row, key, 1) for key in ("tp", "pp", "cp", "ep"))
    if n is None or batch is None:
        raise Unpredictable(f"{'n_gpus' if n is None else 'global_batch'} is empty")
    if n > 1 and number(row, "tp") is None:
        raise Unpredictable("tp, pp and dp are empty: the plan is not known")
    if n % (tp * pp * cp):
        raise Unpredictable(f"tp {tp} x pp {pp} x cp {cp} does not divide {n} GPUs")
    if pp > model.layers:
        raise Unpredictable(f"pp {pp} stages, but there are {model.layers} layers")
    dp = n // (tp * pp * cp)  # a table may count context ranks as data ranks
    b = whole(row, "micro_batch")
    if b is None:
        b = max(1, batch // dp) if stack.name == "megatron-2020" else MICRO_BATCHES.get(number(row, "params_b"), 1)
    b = min(b, max(1, batch // dp))
    if batch < dp:
        raise Unpredictable(f"global batch {batch} is less than dp {dp}: {dp - batch} data ranks have nothing to do")
    m = batch // (dp * b)
    v = whole(row, "vp")
    if v is None:
        v = 2 if "interleaved" in row["row"] else 1
        slots = model.layers + (2 if model.layers % pp else 0)  # as lib.cost.step.split counts
        if stack.interleaves and pp > 1 and slots % pp == 0 and m % pp == 0:
            v = max(1, slots // pp // 2)
    text = row.get("recompute") or ""
    zero = number(row, "zero_stage", 1 if stack.dp_overlap else 0)
    if zero not in (0, 1, 2, 3):
        raise Unpredictable(f"zero_stage is {zero}: there are 0, 1, 2, 3")
    label = row["row"]
    plan = Plan(
        batch, b, tp, pp, dp, cp, ep, v, zero,
        recompute=recompute_of(text) if text else stack.recompute,
        sequence_parallel="sp" in text.split("+") or bool(stack.sequence_parallel and tp > 1),
        precision=precision_of(row.get("precision") or "bf16"),
        schedule=next((s for s in ("zb-1p", "zb-2p", "zb-v") if s in label), "1f1b"),
    )  # fmt: skip
    if not text and zero == 3 and plan.recompute == "none" and peak_bytes(model, plan, stack) > 0.95 * device.memory:
        return replace(plan, recompute="full")
    return plan
