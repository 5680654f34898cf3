"""Lab 0, section 2: split_rows, split_columns, split_inner and pipeline, four ways to share one product among ranks.

Each function is judged by what it returns, by what every rank multiplied, and by what it gave to be sent.
"""

from functools import partial

import torch
import torch.distributed as dist

from lib import backend, ledger, splits
from lib.check.framework import Bundle, Claim, Exercise, Problem
from lib.check.lab0 import four_splits_hints as hints
from lib.check.lab0.four_splits_cases import GIVES, LAYERS, RETURNS, SHARE, SIZES, draw, words
from lib.check.products import count_products, multiply_adds
from lib.ledger.record import OPS

MAY_CALL = (*OPS.values(), "p2p.send", "p2p.recv", "p2p.send_recv", "p2p.exchange")
SAME = {"all_gather_into_tensor": "all_gather"}  # the same collective, into one tensor


def _measure(name, fn):
    seen = []
    for size in SIZES:
        x, w, layers = draw(*size)
        x, w, layers = (x.to(backend.device()), w.to(backend.device()), [t.to(backend.device()) for t in layers])
        ledger.mark(words(name, *size))
        with count_products() as factors:
            out = fn(x, layers) if name == "pipeline" else fn(x, w)
        ledger.mark("")
        dist.barrier()  # a rank must not be in the next case while another still waits in this one
        seen.append((out.detach().cpu() if isinstance(out, torch.Tensor) else type(out).__name__, factors))
    return seen


def _cases(name, runs):
    """(words for the case, size, run, rank, what the rank returned, what it multiplied), smallest world first."""
    for run in runs:
        for place, size in enumerate(SIZES):
            what = f"{run.world_size} ranks, {words(name, *size)}"
            for rank, seen in enumerate(run.results):
                yield (f"{what}: rank {rank}", size, run, rank, *seen[place])


def _what_is_returned(name, runs):
    for where, size, run, rank, got, _ in _cases(name, runs):
        expected = RETURNS[name](*draw(*size), rank, run.world_size)
        facts = {"got": got, "size": size, "rank": rank, "world_size": run.world_size}
        wanted = f"expected {_form(expected)}"
        if not isinstance(got, torch.Tensor):
            got = got.replace("NoneType", "None")
            return Problem("no tensor", f"{where} returned {got}, {wanted}", {"got": got})
        if got.shape != expected.shape:
            return Problem("value", f"{where} returned {_form(got)}, {wanted}", facts)
        if got.dtype != expected.dtype:
            return Problem("dtype", f"{where} returned {_form(got)}, {wanted}, as x is")
        if not torch.equal(got, expected):
            i, j = (got != expected).nonzero()[0].tolist()
            text = f"{where}, element ({i}, {j}): expected {expected[i, j]:g}, got {got[i, j]:g}"
            return Problem("value", text, facts)
    return None


def _what_is_multiplied(name, runs):
    for where, (B, K, M, _), run, _, _, factors in _cases(name, runs):
        count, share = multiply_adds(factors), SHARE[name](B, K, M, run.world_size)
        whole = LAYERS * B * K * K if name == "pipeline" else B * K * M
        facts = {"count": count, "whole": whole}
        if count > share:
            what = f"did the whole work, {whole}" if count == whole else f"did {count} of {whole}"
            products = ", ".join(f"{a} @ {b}" for a, b in factors[:4])
            return Problem("work", f"{where} {what} multiply-adds: {products}. Its share is {share}", facts)
        if count == 0:
            return Problem("work", f"{where} did no matrix product, expected {share} multiply-adds", facts)
    return None


def _what_is_given(name, runs):
    for where, size, run, rank, _, _ in _cases(name, runs):
        ops = [e for e in run.ledger.section(words(name, *size)).of(rank) if e.op not in ("recv", "recv_any")]
        given = [(SAME.get(e.op, e.op), e.numel, e.peer if e.op == "send" else None) for e in ops]
        expected = GIVES[name](*size[:3], rank, run.world_size)
        if given != expected:
            facts = {"ops": [op for op, _, _ in given], "given": given, "expected": expected}
            return Problem("wire", f"{where} called {_list(given)}; expected {_list(expected)}", facts)
    return None


def _list(given):
    to = lambda peer: "" if peer is None else f" to rank {peer}"
    return ", ".join(f"{op} of {elements} elements{to(peer)}" for op, elements, peer in given) or "nothing"


def _form(tensor):
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _part(name, return_says, work_says, wire_says, known):
    return Exercise(
        name=name,
        reference=getattr(splits, name),
        measure=partial(_measure, name),
        worlds=(2, 4),
        may_call=MAY_CALL,
        claims=(
            Claim(return_says, 1, "2 and 4 ranks; float32, float64", partial(_what_is_returned, name)),
            Claim(work_says, 1, "multiply-adds of each rank", partial(_what_is_multiplied, name)),
            Claim(wire_says, 1, "by each rank, and no more", partial(_what_is_given, name)),
        ),
        hints=known,
    )


EXERCISE = Bundle(
    "four_splits",
    (
        _part("split_rows", "own rows of x w", "1/N of the work", "nothing sent", hints.ROWS),
        _part("split_columns", "all of x w", "1/N of the work", "all_gather of (B, M/N)", hints.COLUMNS),
        _part("split_inner", "all of x w", "1/N of the work", "all_reduce of (B, M)", hints.INNER),
        _part(
            "pipeline",
            "the activation that leaves it",
            "4/N of the layers",
            "send of (B, K) to the next",
            hints.PIPELINE,
        ),
    ),
)
