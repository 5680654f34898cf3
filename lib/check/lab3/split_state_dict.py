"""Lab 3, section 12: split_state_dict(state, rank, tp, fused), a rank's shard of the unsharded
model's parameters.

It is a pure function, so it runs without ranks. The model has grouped-query attention and an untied
head, and no value occurs twice. There are three models to shard: this one; the same one inside
another model, so that "out", "up" and "attention.q" also occur elsewhere in names than in the name
of the layer; and one in which k, q and v, and the MLP's gate and up, are fused. The fused model is
also sharded without the argument `fused`. All results are compared after the last rank's call.
"""

import math
import re

import torch

from lib.check.cases import FINE, form_of
from lib.check.causes import hints
from lib.check.left_out import BUILT
from lib.check.side_by_side import SideBySide, here
from lib.tensor_parallel import shards
from lib.training.model import GPT, Shape

SHAPE = Shape(
    vocab_size=12, seq_len=5, n_layers=2, hidden=24, n_heads=12, n_kv_heads=6, mlp_hidden=36
)
SHAPES = {name: p.shape for name, p in GPT(SHAPE).state_dict().items()}
PREFIX = "group.token.output.up."
MORE = {"blocks.0.attention.q.norm.weight": (24,), "blocks.1.mlp.up.low_rank.weight": (6, 4)}
# sizes of the fused parts along dim 0; q, which is larger than k and v, is between them
FUSED = {"attention.kqv.weight": (12, 24, 12), "attention.kqv.bias": (12, 24, 12),
         "mlp.gate_up.weight": (36, 36)}  # fmt: skip
MODELS = PLAIN, INSIDE, WITH_FUSED = "the model", "inside another", "with fused weights"
UNKNOWN = "without `fused`:"
SIZES = {f"{model}, tp={tp}": (model, tp) for model in MODELS for tp in (1, 2, 3, 6)}
# the parameter whose sharded dimension is made shorter by one
ODD = {f"tp=2, odd {n}": n for n in ("blocks.1.mlp.up.bias", "blocks.1.attention.out.weight")}
# tp=8 divides the 48 rows of k, q and v together, and q's 24, but not k's 12
FUSED_K = "tp=8, fused k of 12 rows"
REFUSED = {f"tp={tp}, 12 words": tp for tp in (5, 8, 7)} | dict.fromkeys(ODD, 2) | {FUSED_K: 8}
CASES = here(*SIZES, *REFUSED)


def _whole(model):
    """The unsharded model as {name: tensor}, in which no value occurs twice."""
    shapes = SHAPES | MORE if model == INSIDE else SHAPES
    sizes = [math.prod(shape) for shape in shapes.values()]
    values = FINE[torch.float64] * torch.arange(1, 1 + sum(sizes), device="cpu").double()
    parts = zip(shapes.items(), values.split(sizes), strict=True)
    whole = {PREFIX * (model == INSIDE) + name: x.view(shape) for (name, shape), x in parts}
    for block in range(SHAPE.n_layers) if model == WITH_FUSED else ():
        pop = lambda name, block=block: whole.pop(f"blocks.{block}.{name}")
        for of in ("weight", "bias"):
            kqv = [pop(f"attention.{layer}.{of}") for layer in "kqv"]
            whole[f"blocks.{block}.attention.kqv.{of}"] = torch.cat(kqv)
        up, _ = pop("mlp.up.weight"), pop("mlp.up.bias")
        whole[f"blocks.{block}.mlp.gate_up.weight"] = torch.cat([-up, up])
    return whole


def script(make, case, show):
    if case.what in REFUSED:
        show.refused(make, *_not_divided(case.what))
        return
    model, tp = next(both for name, both in SIZES.items() if case.what.startswith(name))
    fused, got = ((dict(FUSED),) if model == WITH_FUSED else ()), []
    state = {name: show.give(name, tensor) for name, tensor in _whole(model).items()}
    for rank in range(tp):
        got.append(show.run(make, dict(state), rank, tp, *fused))
        show("result", "" if isinstance(got[-1], dict) else f"got {form_of(got[-1])}, not a dict")
        if not isinstance(got[-1], dict):
            return
        odd = sorted(got[-1].keys() ^ state.keys())
        words = "is missing" if odd and odd[0] in state else "is no name of the unsharded model's"
        show("names", f"{odd[0]} {words}" if odd else "")
    for name in state:
        block, what = _block_and_name(name)
        of_ranks = {f"{block}on rank {rank}": one.get(name) for rank, one in enumerate(got)}
        sizes = {where: x.numel() for where, x in of_ranks.items() if torch.is_tensor(x)}
        show(f"elements of {what}", sizes)
        show(what, of_ranks)
    if fused:
        plainly = show.run(make, dict(state), 0, tp)
        show(UNKNOWN, [(name, plainly.get(name)) for name in state if name.endswith((*FUSED,))])


def _block_and_name(name):
    """("of blocks.0 ", "mlp.up.bias") of blocks.0.mlp.up.bias"""
    block, what = re.fullmatch(r"(blocks\.\d)?\.?(.*)", name.removeprefix(PREFIX)).groups()
    return f"of {block} " if block else "", what


def _not_divided(what):
    """The arguments of a call that has to be refused: (state, rank, tp), or (state, rank, tp,
    fused)."""
    tp, whole = REFUSED[what], dict(_whole(PLAIN))
    if what == FUSED_K:
        kqv = {n: x for n, x in _whole(WITH_FUSED).items() if n.endswith("kqv.weight")}
        return kqv, tp - 1, tp, dict(FUSED)
    if what in ODD:
        name, dim = ODD[what], shards.split_dim(ODD[what])
        whole[name] = whole[name].narrow(dim, 0, whole[name].shape[dim] - 1)
    return whole, tp - 1, tp


MEASURE = SideBySide(
    script, shards.split_state_dict, CASES, groups=None,
    excused={
        "two at once": "nothing is under way between two calls",
        "once more": "each script calls it for all ranks, and then looks at all results",
    },
)  # fmt: skip
NAMES = {_block_and_name(name)[1]: None for model in MODELS for name in _whole(model)}
EXERCISE = MEASURE.exercise(
    ("every rank's shard", 6, "tp 1, 2, 3, 6; whatever the prefix; fused weights",
     "result", "names", *NAMES, *(f"elements of {name}" for name in NAMES), UNKNOWN),
    ("copies", 2, "of sharded and of replicated tensors",
     ("storage", [case for case in MEASURE.runs() if case.what not in REFUSED])),
    ("ValueError where it does not divide", 1, "12 words over 5, 7, 8; a fused k over 8",
     "the error raised"),
    ("the given state left alone", 1, "", "arguments"),
    hints=hints("lab3", "split_state_dict"), bonus=True,
    leaves_out=BUILT
    | {"empty rank": "there are no ranks", "alone": "there are no ranks; tp=1 is a case"},
)  # fmt: skip
