"""A published row, read: which model, on which GPUs, under which plan, in which stack.

Columns, as in data/rows.csv (an empty cell: not stated):

    source row model params_b layers hidden heads kv_heads ffn vocab seq experts topk gpu n_gpus
    tp pp vp cp ep dp micro_batch global_batch zero_stage recompute precision metric value unit

What a source does not state is taken from its stack (stacks.py), or else:

    layers        (P - V h) / 12 h^2, to the nearest multiple of the pipeline's stages
    vp            1; two layers per stage where the stack is known to interleave
    micro_batch   1, or that of the same model in Narayanan et al. 2021, table 1
    recompute     what the stack does; with ZeRO-3 all layers, if the step does not fit otherwise
    a mixture     what data/models.csv knows of it; else no shared expert, no dense first layers, no latent attention

What was put in is said (`assumed`). A mixture without experts, topk or the width of an expert is refused, and so is one
that the row says has another number of parameters.
"""

from dataclasses import replace
from typing import NamedTuple

from lib.cost import shapes
from lib.cost.hardware import GPU, gpu
from lib.cost.memory import peak_bytes
from lib.cost.plan import Plan
from lib.cost.shapes import Model
from lib.cost.stacks import Stack, stack_of

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk")
EXTRAS = (
    "head_dim", "gated", "tied", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank", "rope_dim", "window",
)  # fmt: skip
PLAIN = {  # a mixture of which no more is known
    "shared_ffn": "no shared expert", "dense_layers": "no dense first layers", "kv_rank": "no latent attention",
}  # fmt: skip
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


def known_model(row):
    """The Model of data/models.csv whose name the row's model has, or begins with; None if no name fits.

    A row with another width is another model, whatever it is called; one with other layers is a part of it.
    """
    name = row["model"].lower()
    fits = [known for known in shapes.known() if name == known or name.startswith(known + "-")]
    base = shapes.known()[max(fits, key=len)] if fits else None
    if base and any(whole(row, key, getattr(base, key)) != getattr(base, key) for key in ("hidden", "heads")):
        return None
    return base


def model_of(row):
    """The Model of a row: its own numbers, and beside them what data/models.csv knows. Raises Unpredictable.

    A row may also have columns of the other names in data/models.csv (shared_ffn, dense_layers, kv_rank ...).
    """
    name, seq, base = row["model"], whole(row, "seq"), known_model(row)
    if seq is None:
        raise Unpredictable("seq is empty: the sequence length decides the step")
    said = {key: whole(row, key) for key in SIZES} | {key: number(row, key) for key in EXTRAS}
    said = {key: value for key, value in said.items() if value is not None}
    hidden, heads = (said.get(key) or getattr(base, key, None) for key in ("hidden", "heads"))
    if hidden is None or heads is None:
        raise Unpredictable(f"model {name!r}: hidden and heads are empty, and data/models.csv does not have it")
    if heads > hidden:
        raise Unpredictable(f"{heads} heads in a hidden size of {hidden}: each would have less than one number")
    _check_mixture(name, said, base)
    if base is None:
        sizes = {"layers": None, "vocab": 51200, "hidden": hidden, "heads": heads, **said}
        sizes["layers"] = sizes["layers"] or _layers(row, hidden, sizes["vocab"])
        return _weighed(shapes.shape(name, seq=seq, **sizes), row)
    if said.get("layers", base.layers) != base.layers:  # a part of the model, measured: one dense layer, if it has any
        said.setdefault("dense_layers", min(1, base.dense_layers))
    return replace(base, name=name, seq=seq, **said)


def _check_mixture(name, said, base):
    """Raise Unpredictable where a mixture is named but not described."""
    if base and base.experts:
        return
    experts, topk = said.get("experts", 0), said.get("topk", 0)
    if bool(experts) != bool(topk) or topk > experts:
        raise Unpredictable(
            f"model {name!r}: experts is {experts or 'empty'} and topk {topk or 'empty'}: a mixture needs both, and "
            f"topk of at most experts"
        )
    if experts and "ffn" not in said:
        raise Unpredictable(f"model {name!r}: ffn is empty: it should be the width of one of the {experts} experts")


def _weighed(model, row):
    """`model`, unless it is a mixture that the row says is another size. Raises Unpredictable."""
    billions, ours = number(row, "params_b"), model.parameters / 1e9
    if model.experts and billions and not 0.75 < ours / billions < 1.33:
        raise Unpredictable(
            f"model {model.name!r}: its columns make {ours:.0f}B parameters, and params_b says {billions}: something "
            f"is left out; add columns ({', '.join(EXTRAS)}), or a row to lib/cost/data/models.csv"
        )
    return model


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
