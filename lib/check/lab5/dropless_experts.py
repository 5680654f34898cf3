"""Lab 5, section 13, bonus: grouped_mm(rows, weights, counts), and dropless(x, choice, n_experts,
experts, group, all_to_all), every token through all the experts that it asks for.

The two are judged apart: dropless is given experts that lib's grouped_mm computes. Its output and
its gradients are compared with one process that takes token after token, and applies that token's
experts to it alone.
"""

from dataclasses import dataclass
from functools import cache, partial

import torch

from lib import moe
from lib.check import forward_backward as fb
from lib.check import symptoms as s
from lib.check.claims import claim, each, kept, left_alone, without_ranks
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.footprint import Footprint
from lib.check.lab5.exchange_tokens import as_many, lists_do_not_fit
from lib.check.left_out import TENSORS, but
from lib.check.products import count_products, multiply_adds
from lib.check.tensors import Calls, draw, gradients, new, values
from lib.check.tensors import kept as all_kept
from lib.check.tensors import left_alone as all_left_alone
from lib.check.traffic import only_calls
from lib.moe import Choice

# --- grouped_mm -----------------------------------------------------------------------------------

GROUPS = {  # name -> rows of each group, D, F
    "3 groups of 2, 4, 1 rows": ((2, 4, 1), 3, 2),
    "groups of 0, 5, 0, 2, 0 rows": ((0, 5, 0, 2, 0), 2, 3),
    "all 6 rows in the last of 4 groups": ((0, 0, 0, 6), 3, 3),
    "one group": ((4,), 2, 5),
    "no rows": ((0, 0), 3, 2),
}
COUNTED, LONGEST = "9 rows in 6 groups", ((7, 0, 1, 0, 1, 0), 4, 5)


def _group(counts, D, F):
    m, E = sum(counts), len(counts)
    return {
        "rows": draw(m + D, m, D),
        "weights": draw(100 + E, E, D, F),
        "counts": torch.tensor(counts),
    }


GROUPED = Calls(
    moe.grouped_mm,
    {name: _group(*of) for name, of in GROUPS.items()},
    ("rows", "weights"),
    "the result",
)


def _grouped(fn):
    """The records of all cases; and of one more what it multiplies, and the largest tensor
    that it makes."""
    records = GROUPED(fn)
    if any(
        record["problem"] or record["wrong"] or record["gradients"] for record in records.values()
    ):
        return records
    given = _group(*LONGEST)
    leaves = [given[name].requires_grad_() for name in GROUPED.learns]
    footprint = Footprint(leaves)
    with footprint, count_products() as factors:
        out = fn(*given.values())
        out.backward(torch.ones_like(out))
    return records | {COUNTED: {"products": multiply_adds(factors), "largest": footprint.largest}}


@without_ranks
def _unpadded(records):
    seen, (counts, D, F) = records[COUNTED], LONGEST
    m, E = sum(counts), len(counts)
    if seen["products"] > 3 * m * D * F:
        text = (
            f"{COUNTED}: {seen['products']} multiply-adds, forward and backward, expected 3 m D F "
            f"= {3 * m * D * F}"
        )
        return Problem(
            "work", text, {"times": seen["products"] / (3 * m * D * F)}, [COUNTED, seen["products"]]
        )
    most = max(m * D, m * F, E * D * F)
    if seen["largest"] > most:
        text = (
            f"{COUNTED}: a tensor of {seen['largest']} numbers, more than rows, weights and the "
            f"result have: {most}"
        )
        return Problem("large", text, {}, [COUNTED, seen["largest"]])
    return None


GROUPED_MM = Exercise(
    name="grouped_mm", reference=moe.grouped_mm, measure=_grouped, worlds=(), bonus=True,
    leaves_out=but(TENSORS, "memory"),
    claims=(
        claim("each group by its own matrix", 1,
              f"{len(GROUPS)} cases; groups without rows, no rows",
              values(GROUPED, GROUPS), all_left_alone(GROUPS), new(GROUPS), all_kept(GROUPS)),
        claim("gradients", 1, "of rows and of all matrices", gradients(GROUPED, GROUPS)),
        claim("no row is padded", 1, "3 m D F multiply-adds; no tensor of padded groups",
              _unpadded),
    ),
    hints=(
        s.CALLED_LIB.saying("rows.split and @ are enough."),
        Hint("no rows at all", s.both(s.kind(*s.SHAPES, "returned", "no graph"),
            s.fact("case", [*GROUPS][4])),
             "the result is (0, F) then, as in every other case (m, F)."),
        s.NO_NUMBER,
        s.NARROW,
        Hint("another dtype", s.either(s.refused("dtype"), s.kind("form", dtype=True)),
             "torch.zeros makes float32: rows.new_zeros(m, F) takes dtype and device from the "
             "rows."),
        Hint("a group without rows",
             s.both(s.kind(*s.SHAPES, "returned", "no graph", "backward"),
                    lambda p: p.fact("case") in [*GROUPS][1:3]),
             "an expert may get no row: (0, D) @ (D, F) is (0, F), and its matrix has a gradient, "
             "of zeros."),
        Hint("no gradient", s.either(s.kind("no graph"), s.refused("no graph", "in place")),
             "rows and matrices learn through this: no detach, no item, no torch.no_grad."),
        Hint("another gradient", s.kind("value", gradient=True),
             "the numbers were right. Split, multiply and join, and autograd finds the gradients."),
        Hint("every row by every matrix", s.both(s.kind("work"), lambda p: p.fact("times") > 5.5),
             "each row is multiplied by E matrices, and E - 1 of the results are thrown away. Take "
             "each group's own rows: rows.split(counts.tolist())."),
        Hint("padded groups", s.kind("work"),
             "groups of equal length are computed with zeros in them: that is what slots are. A "
             "group is as long as it is."),
        Hint("a matrix for each row", s.kind("large"),
             "weights[expert] copies a whole matrix for every row. One product takes all rows of a "
             "group."),
        Hint("other rows", s.kind("value", "form", "returned", "raised"),
             "rows are sorted: the first counts[0] are group 0's, the next counts[1] group 1's. "
             "(m, F) comes out, in the same order."),
        Hint("changed in place", s.kind("input"),
             "rows, weights and counts are the caller's. Make new tensors."),
        s.NOT_KEPT, s.SHARED, *s.ANYWHERE,
    ),
)  # fmt: skip

# --- dropless -------------------------------------------------------------------------------------

D, WIDTH = 4, 3
ANY, SOME_IDLE, NOBODY, ONE, NO_TOKENS = (
    "every expert", "experts that get no token", "tokens that ask for nobody",
    "one expert gets all", "no tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Crowd(fb.Turn):
    """each: experts a rank. k: choices a token. tokens: of rank 0, 1, 2, 3 of the group."""

    each: int = 2
    k: int = 2
    tokens: tuple[int, ...] = (5, 3, 4, 6)


TWO, THREE, FOUR, SOME = fb.GROUPS
PLAIN = (
    Crowd(TWO, what=ANY, each=1, k=1), Crowd(TWO, what=ANY), Crowd(FOUR, what=ANY, each=1),
    Crowd(TWO, what=SOME_IDLE, each=3), Crowd(FOUR, what=SOME_IDLE), Crowd(THREE, what=NOBODY),
    Crowd(FOUR, what=ANY, each=2, k=3, tokens=(6, 0, 7, 4)), Crowd(FOUR, what=ONE, k=1),
    Crowd(SOME, what=ANY, each=3),
    Crowd(FOUR, what=NO_TOKENS, tokens=(0, 0, 0, 0)),
)  # fmt: skip
UNDER_WAY = Crowd(FOUR, what=ANY, pairs=((0, 2), (1, 3)))
CASES = (*PLAIN, UNDER_WAY, Crowd((2,), what=ANY))


def _chosen(case, N, rank, number):
    """The experts that a rank's tokens ask for, (n, k); -1 is nobody."""
    n, E = case.tokens[rank] + 2 * number, N * case.each
    if case.what == ONE:
        return torch.full((n, 1), E - 1, device="cpu")
    liking = draw(case.seed + 40 + 10 * number + rank, n, E)
    liking[:, 1::2] -= 100.0 * (case.what == SOME_IDLE)  # experts 1, 3, 5, ... get nobody
    chosen = liking.argsort(1, descending=True)[:, : case.k]
    # the last expert is asked, or bincount would be short: SOME_IDLE's point
    if case.what in (ANY, NOBODY):
        chosen[-1:] = torch.arange(E - 1, E - 1 - case.k, -1, device="cpu")
    if case.what == NOBODY:
        chosen[1:-1:2, 1:] = -1
        chosen[:1] = -1
    return chosen


@cache
def _one_process(case, N, number):
    """[(inputs, out, dy, gradients) of each rank]: one process, token after token.
    To be read only."""
    E, seed = N * case.each, case.seed + 1000 * number
    whole = {"w_in": 0.5 * draw(seed + 1, E, D, WIDTH), "w_out": 0.5 * draw(seed + 2, E, WIDTH, D)}
    w_in, w_out = (w.requires_grad_() for w in whole.values())
    ranks, loss = [], 0.0
    for rank in range(N):
        chosen = _chosen(case, N, rank, number)
        n, k = chosen.shape
        x, weights = (
            draw(seed + 10 + rank, n, D),
            draw(seed + 20 + rank, n, k).sigmoid() * (chosen >= 0),
        )
        x, weights, dy = x.requires_grad_(), weights.requires_grad_(), draw(seed + 30 + rank, n, D)
        asked = [
            [(weights[t, j], e) for j, e in enumerate(row) if e >= 0]
            for t, row in enumerate(chosen.tolist())
        ]
        ys = [
            sum((w * ((x[t] @ w_in[e]).tanh() @ w_out[e]) for w, e in of), 0 * x[t])
            for t, of in enumerate(asked)
        ]
        out = torch.stack(ys) if ys else torch.zeros_like(x)
        loss = loss + (out * dy).sum()
        ranks.append((x, chosen, weights, out.detach(), dy))
    leaves = [w_in, w_out, *(leaf for x, _, weights, *_ in ranks for leaf in (x, weights))]
    if loss.requires_grad:
        loss.backward()
    slopes = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    mine = lambda whole, rank: whole.detach()[rank * case.each : (rank + 1) * case.each].clone()
    found = []
    for rank, (x, chosen, weights, out, dy) in enumerate(ranks):
        inputs = {"x": x.detach(), "chosen": chosen, "weights": weights.detach()}
        inputs |= {"w_in": mine(w_in, rank), "w_out": mine(w_out, rank)}
        gradients = dict(zip(("x", "weights"), slopes[2 + 2 * rank : 4 + 2 * rank], strict=True))
        gradients |= {"w_in": mine(slopes[0], rank), "w_out": mine(slopes[1], rank)}
        found.append((inputs, out, dy, gradients))
    return found


def _truth(case, N, rank, number):
    inputs, out, dy, gradients = _one_process(case, N, number)[rank]
    return fb.Truth(
        {name: one.clone() for name, one in inputs.items()},
        out,
        dy,
        gradients,
        {},
        (N * case.each,),
    )


def _as_given(fn, x, chosen, weights, w_in, w_out, n_experts, group, all_to_all):
    """The answer, called as the notebook calls it."""
    probabilities = torch.full((len(x), n_experts), 1 / n_experts, dtype=x.dtype, device=x.device)

    def experts(rows, counts):
        if tuple(counts.shape) != (len(w_in),) or len(rows) != int(counts.sum()):
            told = f"experts got {len(rows)} rows and counts {counts.tolist()}"
            raise LookupError(f"{told}: of each of the {len(w_in)} experts here")
        return moe.grouped_mm(moe.grouped_mm(rows, w_in, counts).tanh(), w_out, counts)

    return fn(x, Choice(chosen, weights, probabilities), n_experts, experts, group, all_to_all)


CALLS = fb.ForwardBackward(CASES, _truth, lambda recorder: {"all_to_all": recorder.all_to_all})


def _elements(case, rank, way):
    """Those that leave the rank: counts, and the rows of pairs whose expert is elsewhere,
    there and home."""
    counts = rows = 0
    for number, (N, me) in enumerate(case.calls(rank)):
        chosen = [_chosen(case, N, r, number) for r in range(N)]
        # to each rank
        pairs = [torch.bincount(one[one >= 0] // case.each, minlength=N) for one in chosen]
        rows += D * int(sum(pairs[me]) + sum(of[me] for of in pairs) - 2 * pairs[me][me])
        counts += (N - 1) * case.each
    return (counts if way == "forward" else 0), rows


def _unfinished(case, rank, record):
    if record["calls"] or case.world_size == 1 or not case.tokens[rank]:
        return None
    return Problem("alone", f"{case.name}: {case.rank(rank)} sent nothing", {"case": case})


def _gradients(name):
    """fb.values of this argument's gradients, which its facts name."""
    judge = fb.values(CALLS, name)

    def named(runs):
        if found := judge(runs):
            found.facts |= {"argument": name}
        return found

    return named


DROPLESS = Exercise(
    name="dropless", reference=moe.dropless, measure=lambda fn: CALLS(partial(_as_given, fn)),
    worlds=(4,), bonus=True,
    may_call=(*fb.MAY_CALL, "exchange.exchange_counts", "exchange.exchange_tokens"),
    leaves_out={
        "generators": "no argument is an iterator",
        "returned": "the docstring promises a tensor, which only the caller has",
        "memory": "rows that travel are counted, and grouped_mm is the one that could pad",
    },
    claims=(
        claim("every token, all its experts", 2,
              "1 to 4 ranks, 1 to 3 experts each; none, one for all",
              each(CASES, _unfinished), fb.values(CALLS)),
        claim("every gradient", 2, "of x, the weights and all experts",
              *map(_gradients, ("x", "weights", "w_in", "w_out"))),
        claim("each pair's row, both ways", 1, "no padding; E/ep counts to each other rank",
              only_calls(CASES, None), as_many(CASES, _elements), left_alone(CASES), kept(CASES)),
    ),
    hints=(
        s.CALLED_LIB.saying(
            "build it from exchange_counts, exchange_tokens, transpose_blocks and the experts that "
            "you are given."),
        Hint("tokens that ask for nobody", s.in_case(CASES, lambda case: case.what == NOBODY),
             "an expert of -1 is no expert. Such a pair has no row, and a token without pairs gets "
             "zeros."),
        Hint("counts of other rows", s.raised("LookupError"),
             "experts(rows, counts): of the rows that have arrived here, from all ranks, those of "
             "each expert here: received.sum(0)."),
        Hint("another dtype", s.either(s.refused("dtype"), s.kind("form", dtype=True)),
             "the result has the dtype of x: torch.zeros_like(x), and no .float()."),
        Hint("the weights' gradient", s.fact("argument", "weights"),
             "the weight of pair i is applied on the token's own rank, to row i that came back, so "
             "that its gradient is computed there."),
        s.NO_GRAPH,
        Hint("nothing returned", s.both(s.kind("returned", "form"),
            lambda p: p.fact("got") in (None, "None")),
             "the function must end with a `return` of (n, D)."),
        s.under_way(CASES, lambda case: bool(case.pairs)), s.NO_GROUP, s.NARROW,
        Hint("nothing travels", s.kind("alone"),
             "the experts here are E/ep of E: tokens for the others are sent by exchange_tokens, "
             "after exchange_counts."),
        Hint("nobody here", s.both(s.either(s.hung, s.kind("clash", "raised", *s.SHAPES)),
                                   s.in_case(CASES,
                                             lambda case: 0 in case.tokens[:case.world_size])),
             "a rank without tokens calls all that the others call: its experts work for their "
             "tokens."),
        Hint("experts that get nobody", s.in_case(CASES, lambda case: case.what == SOME_IDLE),
             "counts has a number for each of the E experts, 0 too: torch.bincount(..., "
             "minlength=n_experts)."),
        Hint("the lists do not fit", lists_do_not_fit,
             "to rank j go the pairs of its experts, counts.view(ep, -1).sum(1); from rank i come "
             "received[i].sum(). On the way back the two lists are swapped."),
        Hint("another gradient", s.fact("gradient"),
             "the numbers were right. Rows that are copied, reordered, exchanged and added up need "
             "nothing more."),
        Hint("another order", s.kind(*s.SHAPES),
             "sort pairs by expert; exchange; blocks by expert; experts; blocks by sender; "
             "exchange back: row i is pair i again, and belongs to token pair // k."),
        s.NOT_GIVEN,
        Hint("more than the pairs", s.kind("elements"),
             "each is sent once: E/ep counts to each other rank, and the row of each pair whose "
             "expert is on another rank, to it and back. No block is padded to a common length."),
        Hint("changed what it was given", s.kind("input"),
             "x and the choice are the caller's: make new tensors."),
        s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("dropless_experts", (GROUPED_MM, DROPLESS), bonus=True)
