"""A published row, read: which model, on which GPUs, under which plan, in which stack.

Columns, as in data/rows.csv (an empty cell: not stated):

    source row model params_b layers hidden heads kv_heads ffn vocab seq experts topk gpu n_gpus
    tp pp vp cp ep dp micro_batch global_batch zero_stage recompute precision metric value unit

What a source does not state is taken from its stack (stacks.py), or else:

    vp            1; two layers per stage where the stack is known to interleave
    micro_batch   1, or that of the same model in Narayanan et al. 2021, table 1
    recompute     what the stack does; with ZeRO-3 all layers, if the step does not fit otherwise

What was put in is said (`assumed`). The model is read in described.py.
"""

from dataclasses import replace
from typing import NamedTuple

from lib.cost.described import EXTRAS, SIZES, Unpredictable, known_model, model_of, number, whole
from lib.cost.hardware import GPU, gpu
from lib.cost.memory import peak_bytes
from lib.cost.plan import Plan
from lib.cost.shapes import Model
from lib.cost.stacks import Stack, stack_of

PLAIN = {  # a mixture of which no more is known
    "shared_ffn": "no shared expert", "dense_layers": "no dense first layers", "kv_rank": "no latent attention",
}  # fmt: skip
MICRO_BATCHES = {3.6: 16, 18.4: 8, 39.1: 4, 76.1: 2}  # Narayanan et al. 2021, by billions of parameters


class Job(NamedTuple):
    """Everything that a prediction needs."""

    model: Model
    plan: Plan
    gpu: GPU
    stack: Stack


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


def assumed(row, task):
    """["vocab 51200", ...]: what the row of `task`, a Job, left open, and what was put there."""
    model, plan, base = task.model, task.plan, known_model(row)
    empty = lambda key: number(row, key) is None
    keys = (*SIZES, *EXTRAS) if base and model.experts else SIZES
    found = [f"{key} {getattr(model, key):g}" for key in keys if empty(key) and getattr(model, key)]
    if base:
        known = ", ".join(found)
        found = [f"{known} as data/models.csv"] if known else []
        if model.layers != base.layers:
            found.append(f"{model.layers} of {base.layers} layers")
    elif model.experts:
        found += [text for key, text in PLAIN.items() if empty(key)]
    found += [f"micro-batch {plan.micro_batch}"] if empty("micro_batch") else []
    found += [f"v {plan.v}"] if empty("vp") and plan.pp > 1 else []
    found += [f"zero {plan.zero}"] if empty("zero_stage") else []
    return found if row.get("recompute") else [*found, f"recompute {plan.recompute}"]


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
    if batch < dp:
        raise Unpredictable(f"global batch {batch} is less than dp {dp}: {dp - batch} data ranks have nothing to do")
    b, v = whole(row, "micro_batch"), whole(row, "vp")
    if v is None and "interleaved" in row["row"]:
        v = 2
    if b is None:
        b = batch // dp if stack.name == "megatron-2020" else MICRO_BATCHES.get(number(row, "params_b"), 1)
        if stack.splits_batch and pp > 1:
            b = max(1, batch // dp // (pp * (v or 1)))
    b = min(b, batch // dp)
    if v is None:
        v, m = 1, batch // (dp * b)
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
