"""Lab 3, section 4: ParallelAttention(attention, group, columns, rows), a rank's heads.

What the given `columns` and `rows` multiply with is noted: those are the rank's layers, whatever the answer calls
them. Output and gradients are those of the plain attention in one process.
"""

import torch

from lib import ledger
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab3.attention_cases import CASES, UNEVEN_CASES, B, T, attend, how_cut, inputs, mistaken, plain
from lib.check.lab3.attention_hints import HINTS
from lib.check.lab3.compare import wrong
from lib.check.lab3.given import MAY_CALL, GivenProduct, only_these
from lib.check.lab3.groups import GROUPS_SAY, WAYS, WORLD, agreed, backward, forward, found, measured
from lib.tensor_parallel import attention as libs
from lib.tensor_parallel import linear, mappings


def _measure(fn):
    return measured([*CASES, *UNEVEN_CASES], lambda case, *args: (_one if case in CASES else _refused)(fn, case, *args))


def _one(fn, case, rank, group, wire):
    where, attention, (x, w) = f"{case.where}: {case.rank(rank)}", plain(case), inputs(case)
    given = plain(case)  # another one, in case the answer changes it
    columns = GivenProduct(linear.column_parallel, mappings.copy_to_group, group)
    rows = GivenProduct(linear.row_parallel, mappings.reduce_from_group, group)
    whole_x, x = x.clone().requires_grad_(), x.requires_grad_()
    want = attention(whole_x)
    (want * w).sum().backward()
    made = []

    def build_and_run():
        made.append(fn(given, group, columns, rows))
        return made[0](x)

    try:
        y, raised = forward(case, build_and_run), None
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        y, raised = None, error
        ledger.mark("")
    parts = _parts(attention, columns, rows, rank, case.world_size)
    astray = next((words for _, _, words in parts if words), None)
    if raised and not astray:
        raise raised
    problem = _libs(where, made) or columns.wrong_group(where) or rows.wrong_group(where)
    if raised:
        problem = problem or Problem("cut", f"{where} raised {raised}", {"is": ""})
    else:
        known = mistaken(attention, x.detach(), want.detach(), rank, case.world_size)
        problem = problem or wrong(f"{where}: y", y, want.detach(), known)
    if problem and astray:
        problem.text, problem.facts = f"{problem.text}\nOf its layers, one has {astray}.", {"is": astray}
    calls = {way: columns.calls[way] + rows.calls[way] for way in WAYS}
    record = {
        "ok": agreed(problem is None, wire), "problem": problem, "calls": calls, "gradient": None, "held": None,
    }  # fmt: skip
    if not record["ok"]:
        return record
    columns.way = rows.way = "backward"
    backward(case, (y * w).sum())
    record["calls"] |= {"backward": columns.calls["backward"] + rows.calls["backward"]}
    record["gradient"] = _wrong_gradient(where, case, rank, attention, x, whole_x, w, parts)
    record["held"] = _held(where, case, attention, given, made[0])
    record["ok"] = record["gradient"] is None
    return record


def _libs(where, made):
    if made and any(isinstance(module, libs.ParallelAttention) for module in made[0].modules()):
        return Problem("built-in", f"{where}: the answer is lib's ParallelAttention, or has one")
    return None


def _parts(attention, columns, rows, rank, N):
    """[(layer, of which plain layer it is a part or None, what else or None), ...] of all that was multiplied."""
    inward = {name: getattr(attention, name).weight.detach() for name in "qkv"}
    called = [layer for layers in columns.layers if isinstance(layers, (list, tuple)) for layer in layers]
    parts = [(layer, *how_cut(layer.weight.detach(), inward, 0, rank, N)) for layer in called]
    out = {"out": attention.out.weight.detach()}
    return parts + [(layer, *how_cut(layer.weight.detach(), out, 1, rank, N)) for layer in rows.layers]


def _wrong_gradient(where, case, rank, attention, x, whole_x, w, parts):
    N, alone = case.world_size, x.detach().clone().requires_grad_()
    (attend(attention, alone, rank, N) * w).sum().backward()
    known = {"this rank's own part": alone.grad} if N > 1 else {}
    problem = wrong(f"{where}: x.grad", x.grad, whole_x.grad, known)
    for layer, name, words in parts:
        if words:
            return problem or Problem("cut", f"{where}: one of its layers has {words}", {"is": words})
        whole, dim = getattr(attention, name), int(name == "out")
        want = whole.weight.grad.chunk(N, dim)[rank]
        problem = problem or wrong(f"{where}: {name}'s weight.grad", layer.weight.grad, want, {})
        want = whole.bias.grad if dim else whole.bias.grad.chunk(N)[rank]
        problem = problem or wrong(f"{where}: {name}'s bias.grad", layer.bias.grad, want, {})
    return problem


def _held(where, case, attention, given, module):
    """A Problem unless the module's parameters are as many as a rank's part, in memory of their own."""
    if not all(map(torch.equal, attention.parameters(), given.parameters())):
        return Problem("touched", f"{where}: the plain attention's parameters have changed")
    cut = sum(p.numel() for p in attention.parameters()) - attention.out.bias.numel()
    want, parameters = cut // case.world_size + attention.out.bias.numel(), list(module.parameters())
    got = sum(p.numel() for p in parameters)
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() // p.element_size() for p in parameters}
    kept = sum(storages.values())
    if got == want and kept == want:
        return None
    text = f"{where} has parameters of {got} elements, in memory for {kept}, expected {want}"
    return Problem("held", text, {"got": got, "kept": kept, "want": want})


def _refused(fn, case, rank, group, wire):
    """On sizes that four ranks do not divide: is there a ValueError?"""
    where = f"{case.where}: {case.rank(rank)}"
    columns = GivenProduct(linear.column_parallel, mappings.copy_to_group, group)
    rows = GivenProduct(linear.row_parallel, mappings.reduce_from_group, group)
    attention, problem = plain(case), None
    try:
        forward(case, fn, attention, group, columns, rows)
        problem = Problem("no error", f"{where} built its part, expected a ValueError")
    except ValueError:
        pass
    except Exception as error:
        problem = Problem("another error", f"{where} raised {type(error).__name__}, expected a ValueError")
    ledger.mark("")
    return {"ok": agreed(problem is None, wire), "calls": {way: [] for way in WAYS}, "refused": problem}


def _elements(case):
    n = B * T * plain(case).q.in_features
    return {"forward": [n], "backward": [n]}


EXERCISE = Exercise(
    name="ParallelAttention",
    reference=libs.ParallelAttention,
    measure=_measure,
    worlds=(WORLD,),
    may_call=(*MAY_CALL, "linear.column_parallel", "linear.row_parallel"),
    claims=(
        Claim("the plain attention's output", 5, f"{GROUPS_SAY}; grouped-query", found(CASES)),
        Claim("its gradients", 4, "of x, and of the rank's parts", found(CASES, "gradient")),
        Claim("a rank's heads only", 3, "parameters: all but the last bias cut by tp", found(CASES, "held")),
        Claim("one all-reduce each way", 2, "by the columns and rows it was given", only_these(CASES, _elements)),
        Claim("whole heads, or a ValueError", 2, "6 heads, 2 key/value heads on 4 ranks", found(
            [*CASES, *UNEVEN_CASES], "refused")),
    ),
    hints=HINTS,
)  # fmt: skip
