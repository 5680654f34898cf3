"""Lab 3, section 12: split_state_dict(state, rank, tp, fused), a rank's shard of the unsharded
model's parameters.

A pure function: it runs here. The model is grouped-query, its head not tied, so that q is split
otherwise than k and the head otherwise than the embedding; no value is in it twice. It is checked
as it is; inside another model, where names have "out", "up" and "attention.q" in them but not at
their end; and with k, q, v and an MLP's gate and up fused, once also without `fused`. All results
are looked at when the last rank has its own.
"""

import functools

import torch

from lib.check import symptoms as s
from lib.check.cases import FINE, form_of
from lib.check.causes import hints
from lib.check.exercise import Exercise
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.tensor_parallel import shards
from lib.training.model import GPT, Shape

SHAPE = Shape(
    vocab_size=12, seq_len=5, n_layers=2, hidden=24, n_heads=12, n_kv_heads=6, mlp_hidden=36
)
PREFIX = "group.token.output.up."
MORE = {"blocks.0.attention.q.norm.weight": (24,), "blocks.1.mlp.up.low_rank.weight": (6, 4)}
# sizes of the parts along dim 0, the largest neither first nor last
FUSED = {"attention.kqv.weight": (12, 24, 12), "attention.kqv.bias": (12, 24, 12),
         "mlp.gate_up.weight": (36, 36)}  # fmt: skip
MODELS = PLAIN, INSIDE, WITH_FUSED = "the model", "inside another", "with fused weights"
UNKNOWN = "without `fused`:"
SIZES = {f"{model}, tp={tp}": (model, tp) for model in MODELS for tp in (1, 2, 3, 6)}
# one of these is made one shorter where it is sharded
ODD = "blocks.1.mlp.up.bias", "blocks.1.attention.out.weight"
# tp=8 divides the 48 rows of k, q and v together, and q's 24, but not k's 12
FUSED_K = "tp=8, fused k of 12 rows"
REFUSED = {f"tp={tp}, 12 words": tp for tp in (5, 8, 7)} | {f"tp=2, odd {n}": 2 for n in ODD}
REFUSED |= {FUSED_K: 8}
CASES = here(*SIZES, *REFUSED)


@functools.cache
def _shapes(model):
    shapes = {name: p.shape for name, p in GPT(SHAPE).state_dict().items()}
    if model == INSIDE:
        return shapes | {name: torch.Size(size) for name, size in MORE.items()}
    if model == PLAIN:
        return shapes
    separate = (*(f"attention.{layer}." for layer in "qkv"), "mlp.up.")
    shapes = {n: shape for n, shape in shapes.items() if not any(part in n for part in separate)}
    sizes = {ending: sum(of_parts) for ending, of_parts in FUSED.items()}
    return shapes | {
        f"blocks.{i}.{ending}": torch.Size([size] if "bias" in ending else [size, SHAPE.hidden])
        for i in range(SHAPE.n_layers)
        for ending, size in sizes.items()
    }


def _whole(model):
    """{name: tensor}, no value twice."""
    whole, start = {}, 1
    for name, shape in _shapes(model).items():
        numbers = torch.arange(start, start + shape.numel(), dtype=torch.float64, device="cpu")
        whole[PREFIX * (model == INSIDE) + name] = numbers.view(shape) * FINE[torch.float64]
        start += shape.numel()
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
        of_ranks = [(f"on rank {rank}", one.get(name)) for rank, one in enumerate(got)]
        show(name.removeprefix(PREFIX), of_ranks)
    if fused:
        plainly = show.run(make, dict(state), 0, tp)
        show(UNKNOWN, [(name, plainly.get(name)) for name in state if name.endswith((*FUSED,))])


def _not_divided(what):
    """(state, rank, tp) that is refused."""
    tp, name, whole = REFUSED[what], what.rpartition(" ")[2], _whole(PLAIN)
    if what == FUSED_K:
        kqv = {n: x for n, x in _whole(WITH_FUSED).items() if n.endswith("kqv.weight")}
        return kqv, tp - 1, tp, dict(FUSED)
    if name in ODD:
        dim = shards.split_dim(name)
        whole[name] = whole[name].narrow(dim, 0, whole[name].shape[dim] - 1)
    return whole, tp - 1, tp


MEASURE = SideBySide(
    script, shards.split_state_dict, CASES, groups=None,
    excused={
        "two at once": "nothing is under way between two calls",
        "once more": "each script calls it for all ranks, and then looks at all results",
    },
)  # fmt: skip
EVERYWHERE = tuple({name: None for model in MODELS for name in _shapes(model)})


def _of(*endings):
    return lambda p: p.kind in ("value", "form") and p.fact("name", "").endswith(endings)


def _in(what):
    return lambda p: what in getattr(p.fact("case"), "what", "")


EXERCISE = Exercise(
    name="split_state_dict", reference=shards.split_state_dict, measure=MEASURE, bonus=True,
    worlds=(),
    leaves_out={
        "under way": "a pure function, without backward",
        "empty rank": "there are no ranks",
        "alone": "there are no ranks; tp=1 is a case",
        "generators": "no argument is an iterator",
        "given used": "no function is given to it",
        "memory": "it keeps nothing; that a part is a copy is a claim",
    },
    claims=claims(
        MEASURE,
        ("every rank's shard", 6, "tp 1, 2, 3, 6; whatever the prefix; fused weights",
         "result", "names", *EVERYWHERE, UNKNOWN),
        ("copies", 2, "of sharded and of replicated tensors",
         ("storage", [case for case in MEASURE.runs() if case.what not in REFUSED])),
        ("ValueError where it does not divide", 1, "12 words over 5, 7, 8; a fused k over 8",
         "the error raised"),
        ("the given state left alone", 1, "", "arguments"),
    ),
    hints=hints(
        "lab3", "split_state_dict",
        not_by_the_end_of_the_name=_in(INSIDE),
        a_fused_weight_chunked_as_one=_of(*FUSED),
        an_error_with_fused_weights=s.both(s.kind("raised"), _in(WITH_FUSED)),
        the_bias_of_a_row_layer=_of("attention.out.bias", "mlp.down.bias"),
        the_bias_of_a_column_layer=_of(".bias"),
        a_norm_or_a_position=_of("norm1.weight", "norm2.weight", "norm.weight", "position.weight"),
        rows_for_columns=_of("attention.out.weight", "mlp.down.weight"),
        the_vocabulary=_of("token.weight", "head.weight"),
        columns_for_rows=_of(".q.weight", ".k.weight", ".v.weight", "up.weight"),
    ),
)  # fmt: skip
