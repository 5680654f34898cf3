"""Reads a published row: which model was trained, on which GPUs, with which plan and software
stack.

Columns, as in data/rows.csv (an empty cell: not stated):

    source row model params_b layers hidden heads kv_heads ffn vocab seq experts topk gpu n_gpus
    tp pp vp cp ep dp micro_batch global_batch zero_stage recompute precision metric value unit

Few sources state everything. For an empty cell we assume the following, which in part depends on
what the row's stack does (stacks.py):

    pp, cp, ep   1
    vp           2 if the row's label says interleaved; as many as make two layers per stage if the
                 stack interleaves; or else 1
    micro_batch  if the stack always splits a batch into as many micro-batches as stages, or never
                 splits it: the size that follows from this. Otherwise that of the model with as
                 many parameters in Narayanan et al. 2021, table 1, or else 1
    zero_stage   1 if the stack communicates gradients during backward, or else 0
    recompute    what the stack does. With ZeRO-3 and a step that does not fit: all layers, or, if
                 the stack can offload, none, and what does not fit is moved to the host's memory
    stack        the planner's; for a new source of a known publisher, the publisher's latest stack
                 that is known
    precision    bf16

`assumed` lists what was assumed for a row. Rows whose columns contradict each other are refused.
For example, dp has to be n_gpus / (tp pp cp), or cp times that, since some tables count context
ranks as data ranks. The model is read in described.py.
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

COLUMNS = (
    "source", "row", "model", "params_b", *SIZES, "seq", "gpu", "n_gpus", "tp", "pp", "vp", "cp",
    "ep", "dp",
    "micro_batch", "global_batch", "zero_stage", "recompute", "precision", "metric", "value",
    "unit", *EXTRAS,
)  # fmt: skip
CHEAP = (  # kinds of recomputation that cost so little that we count them as none
    "none", "norm", "layernorm", "act", "moe_act", "mlp", "mla_up_proj", "shared_expert",
    "shared_experts",
)  # fmt: skip
SELECTIVE = ("selective", "selective-op", "selective-layer", "core_attn")
# {billions of parameters: micro-batch} of Narayanan et al. 2021, table 1
MICRO_BATCHES = {3.6: 16, 18.4: 8, 39.1: 4, 76.1: 2}


class Job(NamedTuple):
    """All that a prediction needs to know about a run."""

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


def _blank(cell, task, base):
    return not cell


def _of_new(cell, task, base):  # a model that data/models.csv does not know
    return not cell and not base


def _of_new_mixture(cell, task, base):
    return not cell and task.model.experts and not (base and base.experts)


def _unclear(cell, task, base):
    return not cell or "not stated" in cell or len(formats(cell)) > 1


def _counted_as_none(cell, task, base):
    cheap = set(recompute_words(cell)) - {"none", "sp"}
    return not cell or (task.plan.recompute == "none" and cheap)


ASSUMPTIONS = (  # column, does its cell leave something open?, the words for what was assumed
    ("gated", _of_new, "gated {model.gated:d}"),
    ("tied", _of_new, "tied {model.tied:d}"),
    ("head_dim", lambda cell, task, base: _of_new(cell, task, base)
        and task.model.hidden % task.model.heads, "head_dim {model.head_dim}"),
    ("shared_ffn", _of_new_mixture, "no shared expert"),
    ("dense_layers", _of_new_mixture, "no dense first layers"),
    ("kv_rank", _of_new_mixture, "no latent attention"),
    ("tp", _blank, "tp {plan.tp}"),
    ("pp", _blank, "pp {plan.pp}"),
    ("cp", _blank, "cp {plan.cp}"),
    ("ep", lambda cell, task, base: not cell and task.model.experts, "ep {plan.ep}"),
    ("micro_batch", _blank, "micro-batch {plan.micro_batch}"),
    ("vp", lambda cell, task, base: not cell and task.plan.pp > 1, "v {plan.v}"),
    ("zero_stage", _blank, "zero {plan.zero}"),
    ("precision", _unclear, "precision {plan.precision}{instead_of}"),
    ("recompute", _counted_as_none, "recompute {plan.recompute}{instead_of}"),
    ("window", lambda cell, task, base: task.model.window and not task.stack.flash,
        "no window, as this stack keeps all scores"),
    ("kv_heads", lambda cell, task, base: task.model.kv_rank
        and task.model.kv_heads != task.model.heads, "kv_heads without meaning"),
)  # fmt: skip


def assumed(row, task):
    """["vocab 51200", ...]: what was assumed for everything that the row leaves open. task: the
    row's Job."""
    base, found = known_model(row), []
    cell_of = lambda column: str(row.get(column) or "").strip()
    for column, is_open, words in ASSUMPTIONS:
        if is_open(cell := cell_of(column), task, base):
            instead_of = f" for {cell}" if cell else ""
            found.append(words.format(**task._asdict(), instead_of=instead_of))
    sizes = [
        f"{key} {value:g}"
        for key in ((*SIZES, *EXTRAS) if base else SIZES)
        if (value := getattr(task.model, key)) and not cell_of(key)
    ]
    if base:
        sizes = [f"{', '.join(sizes)} as data/models.csv"] if sizes else []
        if task.model.layers != base.layers:
            sizes.append(f"{task.model.layers} of {base.layers} layers")
    stack = [] if row["source"] in sources() else [f"stack {task.stack.name}"]
    return stack + sizes + found


def precision_of(text):
    """The precision of the matmuls, from a row's words. fp8 with row-wise scaling counts as bf16,
    because it was no faster where it was measured (torchtitan, June 2025).

    Raises Unpredictable for words that name none of bf16, fp16, fp8 and fp4.
    """
    named = formats(text)
    if not named:
        raise Unpredictable(f"precision is {text!r}: it should name one of bf16, fp16, fp8, fp4")
    return "bf16" if "rowwise" in text.lower() else named[0]


def formats(text):
    """The formats that a precision cell names, narrow ones first."""
    return [kind for kind in ("fp8", "fp4", "fp16", "bf16") if kind in text.lower()]


def recompute_words(text):
    """The words of a recompute cell: "norm,act" is two."""
    return [word for word in re.split("[,+ ]+", text.lower()) if word]


def recompute_of(text):
    """A row's words for recomputation as "none", "selective" or "full". If only CHEAP parts are
    recomputed, it is "none".

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
    """dp, which is n / (tp pp cp) for `n` GPUs. Raises Unpredictable if that is no whole number, or
    if the row states another dp."""
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
    """The row's ZeRO stage; `default` for an empty cell. Raises Unpredictable for a stage that does
    not exist."""
    zero = number(row, "zero_stage", default)
    if zero not in (0, 1, 2, 3):
        raise Unpredictable(f"zero_stage is {zero}: there are 0, 1, 2, 3")
    return zero


def micro_batch_of(row, stack, share, stages):
    """The micro-batch that we assume where a row has none. share: sequences of a data rank in a
    step; the micro-batch divides it. stages: of the pipeline, counting all v of each rank."""
    if stack.splits_batch and stages > 1:
        b = max(1, share // stages)
    elif stack.name == "megatron-2020":
        b = share
    else:
        b = MICRO_BATCHES.get(number(row, "params_b"), 1)
    return math.gcd(b, share)


def chunks_of(model, stack, pp, m):
    """v, the stages on a rank, that we assume where a row has none: as many as make two layers per
    stage if the stack interleaves and m micro-batches allow it, or else 1."""
    shared = slots(model.layers, pp)
    if stack.interleaves and pp > 1 and shared % pp == 0 and m % pp == 0:
        return max(1, shared // pp // 2)
    return 1


def plan_of(row, model, stack, device):
    """The Plan of a row. Raises Unpredictable where degrees or batch are missing, or where they do
    not fit together."""
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
    v = v or (2 if "interleaved" in row["row"] else None)
    b = b or micro_batch_of(row, stack, batch // dp, pp * (v or 1) if pp > 1 else 1)
    v = v or chunks_of(model, stack, pp, batch // (dp * b))
    text = (row.get("recompute") or "").strip()
    words = recompute_words(text)
    # in a mixture "mlp" means its few dense layers, which costs little
    if "mlp" in words and "full" not in words and not model.experts:
        raise Unpredictable("recompute of the mlp alone is not modelled for a dense model")
    zero = zero_of(row, 1 if stack.dp_overlap else 0)
    plan = Plan(
        batch, b, tp, pp, dp, cp, ep, v, zero,
        recompute=recompute_of(text) if text else stack.recompute,
        sequence_parallel="sp" in words or bool(stack.sequence_parallel and tp > 1),
        precision=precision_of(row.get("precision") or "bf16"),
        schedule=next((s for s in ("zb-1p", "zb-2p", "zb-v") if s in row["row"]), "1f1b"),
    )  # fmt: skip
    if why := plan.problem(model):
        raise Unpredictable(why)
    if text or zero < 3 or plan.recompute != "none":
        return plan
    return relieved(plan, model, stack, device)


def relieved(plan, model, stack, device):
    """`plan`, changed so that it fits, for a row that does not say what it recomputes. If the stack
    can offload, the activations that do not fit are moved to the host's memory; otherwise all
    layers are recomputed."""
    parts = memory(model, plan, stack)
    excess = sum(parts.values()) - 0.95 * device.memory
    if excess <= 0:
        return plan
    if stack.offloads and excess < parts["activations"]:
        return replace(plan, offload=excess / parts["activations"])
    return replace(plan, recompute="full")
