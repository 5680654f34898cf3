"""Lab 3, section 7: split_state_dict(state, rank, tp), a rank's part of the whole model's parameters.

A pure function: it runs here. The model is grouped-query, its head not tied, so that q is cut otherwise than k and the
head otherwise than the embedding; its numbers are all different. It is checked as it is, and inside another model whose
names have "out", "up" and "token" in them.
"""

import functools

import torch

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab1.calls import noting_calls
from lib.check.lab3.compare import same
from lib.check.lab3.split_state_dict_hints import HINTS
from lib.model import GPT, Shape
from lib.tensor_parallel import state

SHAPE = Shape(vocab_size=12, seq_len=5, n_layers=2, hidden=24, n_heads=12, n_kv_heads=6, mlp_hidden=36)
TPS = (1, 2, 3, 6)
PREFIX = "group.token.output.up."
AS_IT_IS, INSIDE = "the model", "the model inside another"


def _state(prefix=""):
    """{name: tensor}, no number twice."""
    whole, start = {}, 0.0
    for name, shape in _shapes().items():
        whole[prefix + name] = torch.arange(start, start + shape.numel(), dtype=torch.float64).view(shape)
        start += shape.numel()
    return whole


@functools.cache
def _shapes():
    return {name: p.shape for name, p in GPT(SHAPE).state_dict().items()}


def _measure(fn):
    seen = {"value": None, "memory": None, "touched": None, "error": None}
    with noting_calls(state.split_state_dict) as calls:
        for what, prefix in ((AS_IT_IS, ""), (INSIDE, PREFIX)):
            for tp in TPS:
                for rank in range(tp):
                    _compare(seen, fn, f"{what}, rank {rank} of tp={tp}", prefix, rank, tp)
        seen["error"] = next(filter(None, (_raises(fn, tp) for tp in (5, 8, 7))), None)
    if calls:
        seen = dict.fromkeys(seen, Problem("built-in", "it calls lib's split_state_dict, which this exercise builds"))
    return seen


def _compare(seen, fn, where, prefix, rank, tp):
    whole = _state(prefix)
    given = {name: tensor.clone() for name, tensor in whole.items()}
    got = fn(given, rank, tp)
    seen["value"] = seen["value"] or _wrong(where, got, whole, prefix, rank, tp)
    if seen["value"] is None:
        theirs = {tensor.untyped_storage().data_ptr() for tensor in given.values()}
        shared = next((name for name, t in got.items() if t.untyped_storage().data_ptr() in theirs), None)
        if shared and not seen["memory"]:
            cut = state.split_dim(shared) is not None
            text = f"{where}: {shared} shares its memory with the whole model's, expected a copy"
            seen["memory"] = Problem("memory", text, {"cut": cut})
    if not seen["touched"] and (given.keys() != whole.keys() or not all(same(given[n], whole[n]) for n in whole)):
        seen["touched"] = Problem("touched", f"{where}: the state that was given has changed")


def _wrong(where, got, whole, prefix, rank, tp):
    """A Problem with the first parameter that is wrong; facts: name (without the prefix), is."""
    if not isinstance(got, dict):
        return Problem("form", f"{where}: expected a dict, got {type(got).__name__}", {"is": ""})
    if got.keys() != whole.keys():
        odd = sorted(got.keys() ^ whole.keys())[0]
        words = f"{odd} is missing" if odd in whole else f"{odd} is no name of the whole model's"
        return Problem("names", f"{where}: {words}", {"is": "", "missing": odd in whole})
    for name, tensor in whole.items():
        dim = state.split_dim(name)
        want = tensor if dim is None else tensor.chunk(tp, dim)[rank]
        if same(got[name], want):
            continue
        known = {"uncut": tensor}
        for d in range(tensor.dim()):
            known[f"cut on dim {d}"] = tensor.tensor_split(tp, d)[rank]
            known[f"cut on dim {d}, another rank's"] = tensor.tensor_split(tp, d)[tp - 1 - rank]
            known[f"cut on dim {d}, every {tp}th"] = tensor.movedim(d, 0)[rank::tp].movedim(0, d)
        words = next((words for words, t in known.items() if same(got[name], t)), "none of its parts")
        expected = "uncut" if dim is None else f"cut on dim {dim}, {tuple(want.shape)}"
        shape = tuple(got[name].shape) if torch.is_tensor(got[name]) else type(got[name]).__name__
        facts = {"is": words, "name": name.removeprefix(prefix), "dim": dim, "inside": bool(prefix)}
        return Problem("value", f"{where}: {name} is {words}, {shape}; expected {expected}", facts)
    return None


def _raises(fn, tp):
    try:
        got = fn(_state(), tp - 1, tp)
    except ValueError:
        return None
    except Exception as error:
        return Problem(
            "error", f"tp={tp}: expected a ValueError, got {type(error).__name__}: {error}", {"another": True}
        )
    shape = tuple(got["embedding.token.weight"].shape) if isinstance(got, dict) else None
    text = (
        f"tp={tp}: expected a ValueError, as 12 words cannot be cut into {tp} equal parts; got a part of shape {shape}"
    )
    return Problem("error", text, {"another": False})


def _found(what):
    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        return seen[what]

    return judge


EXERCISE = Exercise(
    name="split_state_dict",
    reference=state.split_state_dict,
    measure=_measure,
    worlds=(),
    claims=(
        Claim(
            "every rank's part", 6, f"tp {', '.join(map(str, TPS))}; 2 blocks, whatever stands before", _found("value")
        ),
        Claim("copies", 2, "of what is cut and of what is not", _found("memory")),
        Claim("ValueError where it does not divide", 1, "12 words over 5, 7 and 8", _found("error")),
        Claim("the whole state left alone", 1, "", _found("touched")),
    ),
    hints=HINTS,
)
