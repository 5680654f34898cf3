"""Lab 0, section 3: split_rows, split_columns, split_inner and pipeline, four ways to split one
product among ranks.

The product is x (B, K) times w (K, M); for `pipeline`, x passes through four layers (K, K). Each
function is judged by what it returns, by the matmuls of each rank, and by what each rank sends.
"""

from functools import partial

from lib.check.cases import Setting, draw, seen
from lib.check.causes import hints
from lib.check.exercise import Bundle, Problem
from lib.check.lab0.by_messages import PROBES
from lib.check.left_out import BUILT
from lib.check.products import count_products, multiply_adds
from lib.check.side_by_side import SideBySide
from lib.ledger.record import OPS
from lib.tensor_parallel import splits

WORLDS, LAYERS = (2, 4), 4
SIZES = {"x (4, 5)": (4, 5, 8), "x (8, 7)": (8, 7, 12)}  # B, K, M; N divides B and M, but not K
CASES = tuple(Setting(tuple(range(N)), what=what) for N in WORLDS for what in SIZES)
MAY_CALL = (*OPS.values(), "p2p.send", "p2p.recv", "p2p.send_recv", "p2p.exchange")
SAME = {"all_gather_into_tensor": "all_gather"}  # the same collective, into one tensor
LEFT_OUT = BUILT | {
    "alone": "one rank has nothing to split",
    "empty rank": "every rank has rows, columns and layers: N divides B, M and the layers",
    "returned": "a result of its own in any case",
}
# the calls with which rank r sends: [(op, elements, peer), ...]
GIVES = {
    "split_rows": lambda B, K, M, r, N: [],
    "split_columns": lambda B, K, M, r, N: [("all_gather", B * M // N, None)],
    "split_inner": lambda B, K, M, r, N: [("all_reduce", B * M, None)],
    "pipeline": lambda B, K, M, r, N: [("send", B * K, r + 1)] if r < N - 1 else [],
}


def script(name, make, case, group, show):
    B, K, M = SIZES[case.what]
    x = show.give("x", draw(B, B, K, top=9))
    w = show.give("w", draw(K, K, M, top=9))
    layers = [show.give(f"layer {i}", draw(i, K, K, top=2)) for i in range(LAYERS)]
    with count_products(outer=True) as factors:
        y = show.run(make, x, layers if name == "pipeline" else w)
    show("the result", y)
    count, full = multiply_adds(factors), LAYERS * B * K * K if name == "pipeline" else B * K * M
    products = ", ".join(f"{a} @ {b}" for a, b in factors[:4])
    show("matrix products", "" if count else f"rank {show.place} did no matrix product")
    did = f"rank {show.place} did all of the work, {count} multiply-adds: {products}"
    show("all of the work", did if count >= full else "")
    show("multiply-adds", count, at_most=True, beside=f"Rank {show.place} did {products}.")


def what_is_given(name, runs):
    """A judge: apart from receives, each rank makes exactly the calls that the docstring allows."""
    of_world = lambda N: tuple(case for case in CASES if case.world_size == N)
    for run, case, _ in seen(runs, of_world):
        for rank in range(case.world_size):
            ops = [e for e in run.ledger.section(case.name).of(rank) if "recv" not in e.op]
            peer = lambda e: e.peer if e.op == "send" else None
            given = [(SAME.get(e.op, e.op), e.numel, peer(e)) for e in ops]
            expected = GIVES[name](*SIZES[case.what], rank, case.world_size)
            if given != expected:
                text = f"{case.name}: rank {rank} called {told(given)}; expected {told(expected)}"
                return Problem("calls", text, {"ops": [op for op, _, _ in given]})
    return None


def told(given):
    to = lambda peer: "" if peer is None else f" to rank {peer}"
    words = (f"{op} of {elements} elements{to(peer)}" for op, elements, peer in given)
    return ", ".join(words) or "nothing"


def part(name, return_says, work_says, wire_says):
    reference = getattr(splits, name)
    measure = SideBySide(
        partial(script, name), reference, CASES, world=lambda case: case.world_size,
        excused={"strided": "x, w and the layers are contiguous",
                 "bfloat16": "sums of products are rounded in many ways",
                 "two at once": "a call returns when all that it sent has arrived"},
    )  # fmt: skip
    return measure.exercise(
        (return_says, 1, "2 and 4 ranks; float32, float64", "the result", *PROBES),
        (work_says, 1, "multiply-adds of each rank",
         "matrix products", "all of the work", "multiply-adds"),
        (wire_says, 1, "by each rank, and no more", partial(what_is_given, name)),
        hints=hints("lab0", name, "splits"), worlds=WORLDS, may_call=MAY_CALL, leaves_out=LEFT_OUT,
    )  # fmt: skip


EXERCISE = Bundle(
    "four_splits",
    (
        part("split_rows", "own rows of x w", "1/N of the work", "nothing sent"),
        part("split_columns", "all of x w", "1/N of the work", "all_gather of (B, M/N)"),
        part("split_inner", "all of x w", "1/N of the work", "all_reduce of (B, M)"),
        part("pipeline", "the activation that leaves it", "1/N of the layers",
             "send of (B, K) to the next"),
    ),
)  # fmt: skip
