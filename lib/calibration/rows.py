"""A published row, read: which model, on which GPUs, under which plan, in which stack.

Columns, as in data/rows.csv (an empty cell: not stated):

    source row model params_b layers hidden heads kv_heads ffn vocab seq experts topk gpu n_gpus
    tp pp vp cp ep dp micro_batch global_batch zero_stage recompute precision metric value unit

What a source does not state is taken from its stack (stacks.py), or else:

    pp, cp, ep   1
    vp           1; two layers per stage where the stack is known to interleave
    micro_batch  1, or that of the same model in Narayanan et al. 2021, table 1
    recompute    what the stack does; with ZeRO-3, if the step does not fit otherwise, all layers;
                 or where the stack can, none, and what does not fit goes to the host's memory
    stack        the planner's; of a publisher's source that is not in data/sources.csv the latest
                 that is known
    precision    bf16

What was put in is said (`assumed`). Columns that contradict each other are refused: dp is n_gpus /
(tp pp cp), or what context ranks are counted as data ranks make of it. The model is read in
described.py.
"""

import functools
import math
import re
from dataclasses import replace
from typing import NamedTuple

from lib.calibration.described import (
    EXTRAS,
    SIZES,
    Unpredictable,
    known_model,
    model_of,
    number,
    whole,
)
from lib.cost.hardware import GPU, gpu
from lib.cost.memory import memory
from lib.cost.plan import Plan, slots
from lib.cost.published import table
from lib.cost.shapes import Model
from lib.cost.stacks import DEFAULT_STACK, Stack, stack_of, stacks

PLAIN = {  # a mixture of which no more is known
    "shared_ffn": "no shared expert", "dense_layers": "no dense first layers",
    "kv_rank": "no latent attention",
}  # fmt: skip
COLUMNS = (
    "source", "row", "model", "params_b", *SIZES, "seq", "gpu", "n_gpus", "tp", "pp", "vp", "cp",
    "ep", "dp",
    "micro_batch", "global_batch", "zero_stage", "recompute", "precision", "metric", "value",
    "unit", *EXTRAS,
)  # fmt: skip
CHEAP = (  # counted as none
    "none", "norm", "layernorm", "act", "moe_act", "mlp", "mla_up_proj", "shared_expert",
    "shared_experts",
)  # fmt: skip
SELECTIVE = ("selective", "selective-op", "selective-layer", "core_attn")
# Narayanan et al. 2021, by billions of parameters
MICRO_BATCHES = {3.6: 16, 18.4: 8, 39.1: 4, 76.1: 2}


class Job(NamedTuple):
    """Everything that a prediction needs."""

    model: Model
    plan: Plan
    gpu: GPU
    stack: Stack


def job(row):
    """The Job that a row describes. Raises Unpredictable."""
    stack = stack_of(row["source"], row["row"], row["gpu"])
    stack = stack or stacks()[DEFAULT_STACK]
    try:
        device = gpu(row["gpu"])
    except ValueError as problem:
        raise Unpredictable(str(problem)) from None
    model = model_of(row)
    plan = plan_of(row, model, stack, device)
    if why := device.lacks(plan.precision):
        raise Unpredictable(why)
    return Job(model, plan, device, stack)


@functools.cache
def sources():
    """Names of the sources whose stacks are known."""
    return {row["source"] for row in table("sources")}


def assumed(row, task):
    """["vocab 51200", ...]: what the row of `task`, a Job, left open, and what was put there."""
    model, plan, base = task.model, task.plan, known_model(row)
    guessed = [] if row["source"] in sources() else [f"stack {task.stack.name}"]
    empty = lambda key: not str(row.get(key) or "").strip()
    keys = (*SIZES, *EXTRAS) if base else SIZES
    found = [f"{key} {getattr(model, key):g}" for key in keys if empty(key) and getattr(model, key)]
    if base:
        known = ", ".join(found)
        found = [f"{known} as data/models.csv"] if known else []
        if model.layers != base.layers:
            found.append(f"{model.layers} of {base.layers} layers")
    else:
        found += [f"{key} {int(getattr(model, key))}" for key in ("gated", "tied") if empty(key)]
        found += (
            [f"head_dim {model.head_dim}"]
            if empty("head_dim") and model.hidden % model.heads
            else []
        )
    if model.experts and not (base and base.experts):
        found += [text for key, text in PLAIN.items() if empty(key)]
    degrees = ("tp", "pp", "cp", "ep") if model.experts else ("tp", "pp", "cp")
    found += [f"{key} {getattr(plan, key)}" for key in degrees if empty(key)]
    found += [f"micro-batch {plan.micro_batch}"] if empty("micro_batch") else []
    found += [f"v {plan.v}"] if empty("vp") and plan.pp > 1 else []
    found += [f"zero {plan.zero}"] if empty("zero_stage") else []
    text = (row.get("precision") or "").strip()
    if not text or "not stated" in text or len(formats(text)) > 1:
        found.append(f"precision {plan.precision}" + (f" for {text}" if text else ""))
    words = (row.get("recompute") or "").strip()
    if not words or (plan.recompute == "none" and set(recompute_words(words)) - {"none", "sp"}):
        found.append(f"recompute {plan.recompute}" + (f" for {words}" if words else ""))
    found += (
        ["no window, as this stack keeps all scores"]
        if model.window and not task.stack.flash
        else []
    )
    found += ["kv_heads without meaning"] if model.kv_rank and model.kv_heads != model.heads else []
    return guessed + found


def precision_of(text):
    """Of matrix products. Row-wise scaled fp8 ran at bf16's speed where it was measured
    (torchtitan, June 2025).

    Raises Unpredictable for words that name none of bf16, fp16, fp8 and fp4.
    """
    named = formats(text)
    if not named:
        raise Unpredictable(f"precision is {text!r}: it should name one of bf16, fp16, fp8, fp4")
    return "bf16" if "rowwise" in text.lower() else named[0]


def formats(text):
    """The formats that a precision cell names, the narrow ones first."""
    return [kind for kind in ("fp8", "fp4", "fp16", "bf16") if kind in text.lower()]


def recompute_words(text):
    """The words of a recompute cell: "norm,act" is two."""
    return [word for word in re.split("[,+ ]+", text.lower()) if word]


def recompute_of(text):
    """A row's words for recomputation as one of plan.RECOMPUTE. Norms and activations alone cost
    next to nothing.

    Raises Unpredictable for a word that is not known, and for words that exclude each other.
    """
    words = recompute_words(text)
    strange = set(words) - {"full", "sp", *SELECTIVE, *CHEAP}
    if strange:
        known = ", ".join(("full", *SELECTIVE, *CHEAP))
        raise Unpredictable(
            f"recompute is {text!r}: {', '.join(sorted(strange))} is not one of {known}"
        )
    if len(set(words) - {"sp"}) > 1 and {"none", "full"} & set(words):
        raise Unpredictable(
            f"recompute is {text!r}: none and full exclude all others, give one of them"
        )
    return "full" if "full" in words else "selective" if set(words) & set(SELECTIVE) else "none"


def data_ranks(row, n):
    """dp: what tp, pp and cp leave of `n` GPUs. Raises Unpredictable where the row's
    degrees say otherwise."""
    tp, pp, cp = (whole(row, key, 1) for key in ("tp", "pp", "cp"))
    dp, left = n // (tp * pp * cp), n % (tp * pp * cp)
    if left:
        raise Unpredictable(f"tp {tp} x pp {pp} x cp {cp} does not divide {n} GPUs")
    stated = whole(row, "dp", dp)
    if stated not in (dp, dp * cp):  # a table may count context ranks as data ranks
        raise Unpredictable(
            f"dp is {stated}, but {n} GPUs / (tp {tp} x pp {pp} x cp {cp}) leave {dp}"
        )
    return dp


def zero_of(row, default):
    """The row's ZeRO stage. Raises Unpredictable for one that does not exist."""
    zero = number(row, "zero_stage", default)
    if zero not in (0, 1, 2, 3):
        raise Unpredictable(f"zero_stage is {zero}: there are 0, 1, 2, 3")
    return zero


def plan_of(row, model, stack, device):
    """The Plan of a row. Raises Unpredictable where degrees or batch are missing or
    do not fit together."""
    n, batch = whole(row, "n_gpus"), whole(row, "global_batch")
    tp, pp, cp, ep = (whole(row, key, 1) for key in ("tp", "pp", "cp", "ep"))
    if n is None or batch is None:
        raise Unpredictable(
            f"{'n_gpus' if n is None else 'global_batch'} is empty: give GPUs, and sequences per "
            f"step"
        )
    if n > 1 and number(row, "tp") is None:
        raise Unpredictable(
            "tp, pp and dp are empty: the plan is not known; give tp, and pp if it is not 1"
        )
    dp = data_ranks(row, n)
    if batch < dp:
        raise Unpredictable(
            f"global batch {batch} is less than dp {dp}: {dp - batch} data ranks have nothing to do"
        )
    b, v = whole(row, "micro_batch"), whole(row, "vp")
    if v is None and "interleaved" in row["row"]:
        v = 2
    if b is None:
        b = (
            batch // dp
            if stack.name == "megatron-2020"
            else MICRO_BATCHES.get(number(row, "params_b"), 1)
        )
        if stack.splits_batch and pp > 1:
            b = max(1, batch // dp // (pp * (v or 1)))
        b = math.gcd(b, batch // dp)
    if v is None:
        v, m = 1, batch // (dp * b)
        shared = slots(model.layers, pp)
        if stack.interleaves and pp > 1 and shared % pp == 0 and m % pp == 0:
            v = max(1, shared // pp // 2)
    text = (row.get("recompute") or "").strip()
    words = recompute_words(text)
    # in a mixture its few dense layers' alone
    if "mlp" in words and "full" not in words and not model.experts:
        raise Unpredictable("recompute of the mlp alone is not modelled for a dense model")
    zero = zero_of(row, 1 if stack.dp_overlap else 0)
    label = row["row"]
    plan = Plan(
        batch, b, tp, pp, dp, cp, ep, v, zero,
        recompute=recompute_of(text) if text else stack.recompute,
        sequence_parallel="sp" in words or bool(stack.sequence_parallel and tp > 1),
        precision=precision_of(row.get("precision") or "bf16"),
        schedule=next((s for s in ("zb-1p", "zb-2p", "zb-v") if s in label), "1f1b"),
    )  # fmt: skip
    if why := plan.problem(model):
        raise Unpredictable(why)
    if not text and zero == 3 and plan.recompute == "none":
        parts = memory(model, plan, stack)
        excess = sum(parts.values()) - 0.95 * device.memory
        if excess > 0 and stack.offloads and excess < parts["activations"]:
            return replace(plan, offload=excess / parts["activations"])
        return replace(plan, recompute="full") if excess > 0 else plan
    return plan
