"""Lab 0, section 3: split_rows, split_columns, split_inner and pipeline, four ways to share one
product among ranks.

x (B, K) times w (K, M), or x through four layers (K, K). Each function is judged by what it
returns, by what every rank multiplied, and by what it gave to be sent.
"""

from functools import cache, partial, reduce

import torch

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import FINE, Case, seen
from lib.check.claims import claim, kept, left_alone, values
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.left_out import BUILT
from lib.check.products import count_products, multiply_adds
from lib.ledger.record import OPS
from lib.tensor_parallel import splits

LAYERS = 4
# x's elements -> B, K, M: 2 and 4 divide B and M, not K
SIZES = {20: (4, 5, 8), 56: (8, 7, 12)}
MAY_CALL = (*OPS.values(), "p2p.send", "p2p.recv", "p2p.send_recv", "p2p.exchange")
SAME = {"all_gather_into_tensor": "all_gather"}  # the same collective, into one tensor
LEFT_OUT = BUILT | {
    "alone": "one rank has nothing to split",
    "empty rank": "every rank has rows, columns and layers: N divides B, M and the layers",
    "returned": "a result of its own in any case",
}

# name -> a rank's share of the multiply-adds, at most; what it gives to be sent: (op, elements,
# peer)
SHARE = {
    "split_rows": lambda B, K, M, N: B // N * K * M,
    "split_columns": lambda B, K, M, N: B * K * M // N,
    "split_inner": lambda B, K, M, N: B * -(-K // N) * M,  # K need not divide: the largest piece
    "pipeline": lambda B, K, M, N: LAYERS // N * B * K * K,
}
GIVES = {
    "split_rows": lambda B, K, M, r, N: [],
    "split_columns": lambda B, K, M, r, N: [("all_gather", B * M // N, None)],
    "split_inner": lambda B, K, M, r, N: [("all_reduce", B * M, None)],
    "pipeline": lambda B, K, M, r, N: [("send", B * K, r + 1)] if r < N - 1 else [],
}


@cache
def _cases(name, world_size):
    members, cases = tuple(range(world_size)), []
    for n, dtype in zip(SIZES, (torch.float32, torch.float64), strict=True):
        B, K, M = SIZES[n]
        what = f"x ({B}, {K}), " + (
            f"{LAYERS} layers ({K}, {K})" if name == "pipeline" else f"w ({K}, {M})"
        )
        cases.append(Case(members, n, dtype, what))
    return tuple(cases)


def _draw(case):
    """x (B, K), w (K, M), LAYERS layers (K, K): small whole numbers, x's as fine as the
    dtype: sums are exact."""
    B, K, M = SIZES[case.n]
    generator = torch.Generator("cpu").manual_seed(10 * B + K)
    some = lambda rows, columns, top: torch.randint(
        -top, top + 1, (rows, columns), generator=generator, device="cpu"
    ).to(case.dtype)  # fmt: skip
    x, w = some(B, K, 9), some(K, M, 9)
    return x * FINE.get(case.dtype, 1), w, [some(K, K, 2) for _ in range(LAYERS)]


def _give(name, case, rank):
    x, w, layers = _draw(case)
    return {"x": x, "layers": layers} if name == "pipeline" else {"x": x, "w": w}


def _want(name, case, rank):
    x, w, layers = _draw(case)
    if name == "pipeline":
        return reduce(torch.matmul, layers[: LAYERS // case.world_size * (rank + 1)], x)
    return (x @ w).tensor_split(case.world_size)[rank] if name == "split_rows" else x @ w


def _what_is_multiplied(name, cases, runs):
    for _, case, records in seen(runs, cases):
        B, K, M = SIZES[case.n]
        share, whole = (
            SHARE[name](B, K, M, case.world_size),
            LAYERS * B * K * K if name == "pipeline" else B * K * M,
        )
        for rank, record in enumerate(records):
            factors, where = record["watched"], f"{case.name}: rank {rank}"
            count = multiply_adds(factors)
            facts = {"whole": count >= whole, "nothing": count == 0}
            if count > share:
                what = (
                    f"did the whole work, {whole}" if count == whole else f"did {count} of {whole}"
                )
                products = ", ".join(f"{a} @ {b}" for a, b in factors[:4])
                return Problem(
                    "work", f"{where} {what} multiply-adds: {products}. Its share is {share}", facts
                )
            if count == 0:
                return Problem(
                    "work", f"{where} did no matrix product, expected {share} multiply-adds", facts
                )
    return None


def _what_is_given(name, cases, runs):
    for run, case, _ in seen(runs, cases):
        for rank in range(case.world_size):
            ops = [
                e
                for e in run.ledger.section(case.name).of(rank)
                if e.op not in ("recv", "recv_any")
            ]
            given = [
                (SAME.get(e.op, e.op), e.numel, e.peer if e.op == "send" else None) for e in ops
            ]
            expected = GIVES[name](*SIZES[case.n], rank, case.world_size)
            if given != expected:
                text = f"{case.name}: rank {rank} called {_list(given)}; expected {_list(expected)}"
                return Problem("calls", text, {"ops": [op for op, _, _ in given]})
    return None


def _list(given):
    to = lambda peer: "" if peer is None else f" to rank {peer}"
    return (
        ", ".join(f"{op} of {elements} elements{to(peer)}" for op, elements, peer in given)
        or "nothing"
    )


def _rank_0_waits(p):
    """For somebody: for a rank that does not send, or for rank -1, which there is not."""
    waits = s.hung(p) and s.failed(p).waits_in.get(0) == "recv"
    return waits or (s.refused("outside the group")(p) and not _sends(p))


def _sends(p):
    """Was the last op that a rank began, and did not end, a send?"""
    return s.failed(p) is not None and "send" in (
        *s.failed(p).waits_in.values(),
        s.failed(p).refused_op,
    )


HINTS = {
    "split_rows": (
        Hint("sent what nobody needs", s.kind("calls"),
             "a rank can compute its rows of the result from its rows of x and from w. It has "
             "both, so it needs no communication."),
    ),
    "split_columns": (
        Hint("all-reduced with zeros", s.kind("calls", ops=["all_reduce"]),
             "the ranks add up results of full size that are mostly zeros. all_gather sends only "
             "what each rank has computed."),
        Hint("cut along rows", s.refused("shape"),
             "x has K columns and w has K rows, and neither dimension is split here. Split w's "
             "columns, dim=1, and concatenate along dim=1."),
        Hint("more than one all-gather", s.kind("calls"),
             "one dist.all_gather of this rank's (B, M/N) is enough."),
    ),
    "split_inner": (
        Hint("gathered and added", s.kind("calls", ops=["all_gather"]),
             "every rank fetches all partial sums and adds them itself: N times (B, M) arrive. "
             "all_reduce is made for this, and a good one needs only about twice (B, M), whatever "
             "N is."),
        Hint("more than one collective", s.kind("calls"),
             "one dist.all_reduce of the partial sum, (B, M), is enough."),
        Hint("chunk gave too few pieces", s.raised("IndexError"),
             "tensor.chunk(4) splits 5 rows into three chunks, 2 + 2 + 1. tensor.tensor_split(4) "
             "returns four, 2 + 1 + 1 + 1."),
    ),
    "pipeline": (
        Hint("rank 0 waits for somebody", _rank_0_waits,
             "there is no rank before rank 0, so it begins with x and receives nothing."),
        Hint("nothing was sent on", s.both(s.hung,
            lambda p: "recv" in s.failed(p).waits_in.values()),
             "a rank returned without sending its activation: every rank but the last sends to "
             "rank + 1."),
        Hint("the last rank sends", s.either(s.both(s.hung, _sends),
            s.refused("outside the group")),
             "there is no rank after the last one, so it returns the result and sends nothing."),
        Hint("told everybody", s.kind("calls"),
             "only the next rank needs the activation: one dist.send to rank + 1."),
    ),
}  # fmt: skip
SHARED = (
    Hint("everyone computes everything", s.kind("work", whole=True),
         "the result is right, but no work was saved. Split first, then multiply only this rank's "
         "share."),
    Hint("a product that cannot be counted", s.kind("work", nothing=True),
         "only matrix products are counted, so use @ or torch.matmul."),
    s.CALLED_LIB.saying("build it from torch's @ and dist.all_gather, dist.all_reduce, dist.send, "
                        "dist.recv."),
    Hint("a buffer of the wrong dtype", s.either(s.another_dtype, s.refused("dtype"),
        s.kind("mismatch")),
         "a buffer has another dtype or shape than what is received into it: make it with "
         "torch.empty_like."),
    s.RETURNED_NONE.saying("the function must end with `return ...`, on every rank."),
    s.NARROW, s.NOT_KEPT, s.OVERWRITTEN, *s.ANYWHERE,
)  # fmt: skip


def _part(name, return_says, work_says, wire_says):
    cases = partial(_cases, name)
    calls = Calls(
        cases, partial(_give, name), partial(_want, name), watch=partial(count_products, outer=True)
    )
    return Exercise(
        name=name, reference=getattr(splits, name), measure=calls, worlds=(2, 4), may_call=MAY_CALL,
        leaves_out=LEFT_OUT,
        claims=(
            claim(return_says, 1, "2 and 4 ranks; float32, float64", values(calls),
                  left_alone(cases), kept(cases)),
            claim(work_says, 1, "multiply-adds of each rank",
                  partial(_what_is_multiplied, name, cases)),
            claim(wire_says, 1, "by each rank, and no more", partial(_what_is_given, name, cases)),
        ),
        hints=(*HINTS[name], *SHARED),
    )  # fmt: skip


EXERCISE = Bundle(
    "four_splits",
    (
        _part("split_rows", "own rows of x w", "1/N of the work", "nothing sent"),
        _part("split_columns", "all of x w", "1/N of the work", "all_gather of (B, M/N)"),
        _part("split_inner", "all of x w", "1/N of the work", "all_reduce of (B, M)"),
        _part(
            "pipeline",
            "the activation that leaves it",
            "1/N of the layers",
            "send of (B, K) to the next",
        ),
    ),
)
