"""Lab 3, section 12: split_state_dict(state, rank, tp, fused), a rank's shard of the unsharded
model's parameters.

A pure function: it runs here. The model is grouped-query, its head not tied, so that q is split
otherwise than k and the head otherwise than the embedding; no value is in it twice, and float32
holds none. It is checked as it is, inside another model whose names have "out", "up" and "token" in
them, and with q, k, v and an MLP's gate and up fused. All results are looked at again after the
last call.
"""

import functools

import torch

from lib.check import symptoms as s
from lib.check.cases import FINE, form_of, is_a
from lib.check.claims import claim, refuses, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.guard import raised
from lib.check.pure import noting_calls
from lib.tensor_parallel import shards
from lib.training.model import GPT, Shape

SHAPE = Shape(
    vocab_size=12, seq_len=5, n_layers=2, hidden=24, n_heads=12, n_kv_heads=6, mlp_hidden=36
)
PREFIX = "group.token.output.up."
# sizes of the parts along dim 0
FUSED = {"attention.qkv.weight": (24, 12, 12), "attention.qkv.bias": (24, 12, 12),
         "mlp.gate_up.weight": (36, 36)}  # fmt: skip
MODELS = {"the model": "", "the model inside another": PREFIX, "the model with fused weights": ""}
CASES = [(model, rank, tp) for model in MODELS for tp in (1, 2, 3, 6) for rank in range(tp)]
# one of these is made one shorter where it is sharded
ODD = "blocks.1.mlp.up.bias", "blocks.1.attention.out.weight"


@functools.cache
def _shapes(fused):
    shapes = {name: p.shape for name, p in GPT(SHAPE).state_dict().items()}
    if not fused:
        return shapes
    separate = (*(f"attention.{layer}." for layer in "qkv"), "mlp.up.")
    shapes = {n: shape for n, shape in shapes.items() if not any(part in n for part in separate)}
    sizes = {ending: sum(of_parts) for ending, of_parts in FUSED.items()}
    return shapes | {
        f"blocks.{i}.{ending}": torch.Size([size] if "bias" in ending else [size, SHAPE.hidden])
        for i in range(SHAPE.n_layers)
        for ending, size in sizes.items()
    }


def _fused(model):
    """What is passed as `fused`, as further arguments: nothing where no weight is fused."""
    return (dict(FUSED),) if "fused" in model else ()


def _whole(model="the model"):
    """{name: tensor}, no value twice."""
    whole, start = {}, 1
    for name, shape in _shapes("fused" in model).items():
        numbers = torch.arange(start, start + shape.numel(), dtype=torch.float64, device="cpu")
        whole[MODELS[model] + name] = numbers.view(shape) * FINE[torch.float64]
        start += shape.numel()
    return whole


def _dim(name):
    return 0 if name.endswith(tuple(FUSED)) else shards.split_dim(name)


def _odd(name):
    """The model with one size that 2 does not divide."""
    whole, dim = _whole(), shards.split_dim(name)
    return whole | {name: whole[name].narrow(dim, 0, whole[name].shape[dim] - 1)}


def _words(model, rank, tp):
    return f"{model}, rank {rank} of tp={tp}"


def _measure(fn):
    """({kind: the first Problem}, {what was asked: what came instead of an error, or the error})"""
    wanted = {
        case: shards.split_state_dict(_whole(case[0]), *case[1:], *_fused(case[0]))
        for case in CASES
    }
    found, results = {}, {}
    odd = {f"tp={tp}, 12 words": (_whole(), tp) for tp in (5, 8, 7)} | {
        f"tp=2, odd {n}": (_odd(n), 2) for n in ODD
    }
    # tp=8 divides the 48 rows of q, k and v together, and q's 24, but not k's 12
    qkv = {"blocks.0.attention.qkv.weight": torch.zeros(48, 24, dtype=torch.float64)}
    odd["tp=8, fused k of 12 rows"] = qkv, 8, {"attention.qkv.weight": (24, 12, 12)}
    with noting_calls(shards.split_state_dict) as calls:
        for case, want in wanted.items():
            given = _whole(case[0])
            results[case] = got = _called(fn, given, *case[1:], *_fused(case[0]))
            found = {problem.kind: problem for problem in _problems(case, given, got, want)} | found
        refused = {
            what: _called(fn, whole, tp - 1, tp, *more) for what, (whole, tp, *more) in odd.items()
        }
    if calls:
        found = {
            "built-in": Problem(
                "built-in", "it calls lib's split_state_dict, which this exercise builds"
            )
        }
    if any(_wrong(case, got, wanted[case]) for case, got in results.items()):
        found.setdefault(
            "not kept", Problem("not kept", "a result was right, and has changed with a later call")
        )
    return found, refused


def _called(fn, *args):
    """What it returns, or the error."""
    try:
        return fn(*args)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet
            raise
        return error


def _problems(case, given, got, want):
    whole = _whole(case[0])
    if wrong := _wrong(case, got, want):
        yield wrong
    else:
        places = {tensor.untyped_storage().data_ptr() for tensor in given.values()}
        if name := next(
            (name for name, part in got.items() if part.untyped_storage().data_ptr() in places),
            None,
        ):
            text = (
                f"{_words(*case)}: {name} shares its memory with the whole model's, expected a copy"
            )
            yield Problem("shared", text, {"cut": _dim(name) is not None})
    if given.keys() != whole.keys() or not all(is_a(given[name], whole[name]) for name in whole):
        yield Problem("input", f"{_words(*case)}: the state that was given has changed")


def _wrong(case, got, want):
    """The Problem of the first parameter that is wrong; facts: name (without the prefix),
    cut (on a dim or not)."""
    (model, rank, tp), where = case, _words(*case)
    prefix, fused = MODELS[model], "fused" in model
    if isinstance(got, Exception):
        problem = raised(got, where)
        problem.facts |= {"inside": bool(prefix), "fused": fused}
        return problem
    if not isinstance(got, dict):
        return Problem(
            "returned", f"{where}: expected a dict, got {form_of(got)}", {"got": form_of(got)}
        )
    if odd := sorted(got.keys() ^ want.keys()):
        words = "is missing" if odd[0] in want else "is no name of the unsharded model's"
        return Problem("names", f"{where}: {odd[0]} {words}")
    wrong = [name for name in want if not is_a(got[name], want[name])]
    if not wrong:
        return None
    name, part, whole = wrong[0], got[wrong[0]], _whole(model)[wrong[0]]
    dim, parts = _dim(name), FUSED.get(".".join(name.split(".")[-3:])) if fused else None
    known = {"replicated": whole} | {
        f"sharded on dim {d}": whole.tensor_split(tp, d)[rank] for d in range(whole.dim())
    }
    words = next((words for words, tensor in known.items() if is_a(part, tensor)), "another part")
    expected = "replicated" if dim is None else f"sharded on dim {dim}"
    if parts:
        expected += f", each of its parts of {', '.join(map(str, parts))} rows on its own"
    text = (
        f"{where}: {name} is {words}, {form_of(part)}; expected {expected}, {form_of(want[name])}"
    )
    facts = {"name": name.removeprefix(prefix), "cut": dim is not None, "inside": bool(prefix)}
    facts["fused"] = parts is not None
    facts["dtype"] = torch.is_tensor(part) and part.dtype != whole.dtype
    trace = [
        [n, form_of(got[n]), got[n].flatten()[:2].tolist() if torch.is_tensor(got[n]) else 0]
        for n in wrong
    ]
    return Problem("form" if facts["dtype"] else "value", text, facts, [where, trace])


def _no(*kinds):
    """No Problem of these kinds was found."""
    return without_ranks(
        lambda seen: next((found for kind in kinds if (found := seen[0].get(kind))), None)
    )


def _of(*endings):
    return lambda p: p.kind == "value" and p.facts["name"].endswith(endings)


EXERCISE = Exercise(
    name="split_state_dict", reference=shards.split_state_dict, measure=_measure, bonus=True,
    worlds=(),
    leaves_out={
        "under way": "a pure function, without backward",
        "empty rank": "there are no ranks",
        "alone": "there are no ranks; tp=1 is a case",
        "generators": "no argument is an iterator",
        "given used": "no function is given to it",
        "memory": "it keeps nothing; that a part is a copy is a claim",
    },
    claims=(
        claim("every rank's shard", 6, "tp 1, 2, 3, 6; whatever the prefix; fused weights",
              _no("built-in", "raised", "returned", "names", "form", "value", "not kept")),
        claim("copies", 2, "of sharded and of replicated tensors", _no("shared")),
        claim("ValueError where it does not divide", 1, "12 words over 5, 7, 8; a fused k over 8",
              refuses(lambda runs: runs[0].results[0][1], (ValueError,))),
        claim("the given state left alone", 1, "", _no("input")),
    ),
    hints=(
        s.CALLED_LIB.saying("write the loop over state.items() yourself."),
        Hint("names left out", s.kind("names", "returned"),
             "every name of the model is in the result, those of replicated tensors too: return "
             "{name: tensor}."),
        Hint("another dtype", s.fact("dtype"),
             "a shard has the dtype of the full tensor: chunk and clone, and nothing else."),
        Hint("not by the end of the name", s.fact("inside"),
             "without a prefix it was right. Look at how a name ends, its last two words, not at "
             "what is anywhere in it."),
        Hint("a fused weight chunked as one", s.kind("value", fused=True),
             "a fused weight holds the weights of several layers, one below the other. Split it "
             "into its parts first (tensor.split(sizes)), shard each part, and concatenate the "
             "shards of this rank."),
        Hint("an error with fused weights", s.kind("raised", fused=True),
             "without fused weights it was right. `fused` maps how a name ends to the sizes of "
             "the parts; such a name is not in the table, and it is sharded on dim 0."),
        Hint("an error where all divides", s.raised("ValueError", "IndexError", "KeyError"),
             "tp divides all that is sharded here. Norms, positions and the biases of row-parallel "
             "layers are replicated, and a bias has only dim 0; the last two words of the name "
             "say which layer it is, whatever the prefix."),
        Hint("the bias of a row layer", _of("out.bias", "down.bias"),
             "a row-parallel layer adds its bias once, after the sum: it is replicated."),
        Hint("the bias of a column layer", _of("q.bias", "k.bias", "v.bias", "up.bias"),
             "a column-parallel layer has some of the outputs on a rank, and their bias: dim 0."),
        Hint("a norm or a position", lambda p: p.kind == "value" and not p.facts["cut"],
             "norms and positions work on full tokens, so they are replicated."),
        Hint("rows for columns", _of("out.weight", "down.weight"),
             "torch stores weights as (out, in). mlp.down and attention.out take sharded inputs, "
             "so their weight is sharded on dim 1."),
        Hint("the vocabulary", _of("token.weight", "head.weight"),
             "embedding and head are (V, D), and sharded by vocabulary, dim 0."),
        Hint("columns for rows", s.kind("value"),
             "torch stores weights as (out, in). mlp.up and attention.q, k, v have sharded "
             "outputs, so their weight is sharded on dim 0."),
        Hint("views of sharded tensors", s.kind("shared", cut=True),
             "chunk and slices are views: the shard would keep the full tensor alive, and change "
             "with it. Clone it."),
        Hint("replicated tensors not copied", s.kind("shared"),
             "replicated tensors must be copies as well, or training the rank's model changes the "
             "given one: tensor.clone()."),
        Hint("no error", s.kind("accepted"),
             "chunk and tensor_split make unequal shards silently. Check first: if "
             "tensor.shape[dim] % tp: raise ValueError(...), with the name and the sizes."),
        Hint("changed what it was given", s.kind("input"),
             "put the parts into a new dict: state[name] = ... writes into the caller's."),
        s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
