"""The mistakes that four_splits knows. Most are told by their result: `_as_if` makes the mistake and compares."""

import torch

from lib.check.failure import HANGS
from lib.check.framework import Hint
from lib.check.lab0.four_splits_cases import LAYERS, draw, layers_of, piece, through


def _as_if(mistake):
    """Fits if `mistake`, a function of (x, w, layers, rank, N), returns what the rank returned."""

    def fits(problem):
        if problem.kind != "value":
            return False
        facts = problem.facts
        guess = mistake(*draw(*facts["size"]), facts["rank"], facts["world_size"])
        return torch.equal(guess.to(facts["got"].dtype), facts["got"])

    return fits


def _rank_0_waits(problem):
    """For somebody: for a rank that does not send, or for rank -1, which there is not."""
    waits = problem.kind in HANGS and "rank 0 waits in recv" in problem.text
    return waits or (problem.kind == "raised" and "receive from rank -1" in problem.text)


def _pieces(t, N, dim):
    return list(t.tensor_split(N, dim))


def _partials(x, w, N):
    return [a @ b for a, b in zip(_pieces(x, N, 1), _pieces(w, N, 0), strict=True)]


EVERYONE_COMPUTES_ALL = Hint(
    "everyone computes everything",
    lambda p: p.kind == "work" and p.facts["count"] >= p.facts["whole"],
    "the result is right, but no work was saved: cut first, then multiply only this rank's piece.",
)
NOT_SEEN = Hint(
    "a product that cannot be counted",
    lambda p: p.kind == "work" and p.facts["count"] == 0,
    "only matrix products are counted: use @ or torch.matmul.",
)
NOTHING_RETURNED = Hint(
    "nothing returned",
    lambda p: p.kind == "no tensor" and p.facts["got"] == "None",
    "the function must end with `return ...`, on every rank.",
)
CALLS_LIB = Hint(
    "called lib's",
    lambda p: p.kind == "built-in",
    "build it from torch's @ and dist.all_gather, dist.all_reduce, dist.send, dist.recv.",
)
WRONG_DTYPE = Hint(
    "a buffer of the wrong dtype",
    lambda p: p.kind in ("dtype", "mismatch") or (p.kind == "raised" and "dtype" in p.text),
    "a buffer has another dtype or shape than what is received into it: make it with torch.empty_like.",
)
CHUNK = Hint(
    "chunk gave too few pieces",
    lambda p: p.kind == "raised" and "IndexError" in p.text,
    "tensor.chunk(4) cuts 5 rows into 2 + 2 + 1, three pieces. tensor.tensor_split(4) gives four: 2 + 1 + 1 + 1.",
)


ROWS = (
    Hint(
        "all rows",
        _as_if(lambda x, w, layers, r, N: x @ w),
        "that is all of x w. A rank takes its rows of x and returns its rows of the result: nothing is gathered.",
    ),
    Hint(
        "rank 0's rows everywhere",
        _as_if(lambda x, w, layers, r, N: piece(x, 0, N) @ w),
        "every rank took the first piece. Which one is this rank's? dist.get_rank() says.",
    ),
    Hint(
        "every N-th row",
        _as_if(lambda x, w, layers, r, N: x[r::N] @ w),
        "rank r has every N-th row; give it consecutive ones, the r-th piece of x.tensor_split(N).",
    ),
    Hint(
        "columns instead of rows",
        _as_if(lambda x, w, layers, r, N: x @ piece(w, r, N, 1)),
        "that splits w by columns, which is `split_columns`. Here x is split, by rows: dim 0.",
    ),
    Hint(
        "sent what nobody needs",
        lambda p: p.kind == "wire",
        "a rank can make its rows of the result from its rows of x and from w, which it has: no communication.",
    ),
    EVERYONE_COMPUTES_ALL,
    NOT_SEEN,
    NOTHING_RETURNED,
)
COLUMNS = (
    Hint(
        "not gathered",
        _as_if(lambda x, w, layers, r, N: x @ piece(w, r, N, 1)),
        "these are this rank's columns alone. dist.all_gather brings the others'; join them with torch.cat.",
    ),
    Hint(
        "joined along the rows",
        _as_if(lambda x, w, layers, r, N: torch.cat(_pieces(x @ w, N, 1), 0)),
        "the pieces are columns, so they stand side by side: torch.cat(pieces, dim=1).",
    ),
    Hint(
        "reshaped after the gather",
        _as_if(lambda x, w, layers, r, N: torch.cat(_pieces(x @ w, N, 1), 0).reshape(len(x), -1)),
        "the gathered pieces lie one below the other, (N * B, M/N); reshape cannot put them side by side. Cut them "
        "apart and use torch.cat(pieces, dim=1).",
    ),
    Hint(
        "one tensor N times",
        _as_if(lambda x, w, layers, r, N: torch.cat([piece(x @ w, N - 1, N, 1)] * N, 1)),
        "[torch.empty_like(mine)] * N is one tensor in N places, and the last rank's piece overwrote the others: "
        "[torch.empty_like(mine) for _ in range(N)].",
    ),
    Hint(
        "added instead of joined",
        _as_if(lambda x, w, layers, r, N: sum(_pieces(x @ w, N, 1))),
        "all-reduce adds the ranks' pieces, but each rank has finished columns of its own: all-gather joins them.",
    ),
    Hint(
        "every N-th column",
        _as_if(lambda x, w, layers, r, N: torch.cat([x @ w[:, q::N] for q in range(N)], 1)),
        "rank r has every N-th column of w; give it consecutive ones, so that torch.cat puts them in order.",
    ),
    Hint(
        "all-reduced with zeros",
        lambda p: p.kind == "wire" and p.facts["ops"] == ["all_reduce"],
        "the ranks add up whole results, mostly zeros. all_gather sends only what each rank has made.",
    ),
    Hint(
        "more than one all-gather",
        lambda p: p.kind == "wire",
        "one dist.all_gather of this rank's (B, M/N) is enough.",
    ),
    EVERYONE_COMPUTES_ALL,
    WRONG_DTYPE,
    CALLS_LIB,
    NOTHING_RETURNED,
)
INNER = (
    Hint(
        "not added up",
        _as_if(lambda x, w, layers, r, N: _partials(x, w, N)[r]),
        "this is one rank's partial sum: as large as x w, but with only some of its terms. Add the ranks' partial "
        "sums, on every rank: dist.all_reduce.",
    ),
    Hint(
        "N times the result",
        _as_if(lambda x, w, layers, r, N: N * (x @ w)),
        "N times too large: every rank multiplied everything, and then these were added. Cut x and w first.",
    ),
    Hint(
        "averaged",
        _as_if(lambda x, w, layers, r, N: x @ w / N),
        "the partial sums are averaged. They are terms of one sum: add them, op=SUM.",
    ),
    Hint(
        "a remainder lost",
        _as_if(lambda x, w, layers, r, N: x[:, : len(w) // N * N] @ w[: len(w) // N * N]),
        "the inner dimension is no multiple of N, and its last terms belong to no rank. tensor_split shares out "
        "everything.",
    ),
    Hint(
        "joined instead of added",
        _as_if(lambda x, w, layers, r, N: torch.cat(_partials(x, w, N), 1)),
        "the pieces are partial sums of the same (B, M), so they are added, not put side by side.",
    ),
    Hint(
        "gathered and added",
        lambda p: p.kind == "wire" and p.facts["ops"] == ["all_gather"],
        "every rank fetches all partial sums and adds them itself: N times (B, M) arrive. all_reduce is made for "
        "this, and a good one needs only about twice (B, M), whatever N is.",
    ),
    Hint(
        "more than one collective",
        lambda p: p.kind == "wire",
        "one dist.all_reduce of the partial sum, (B, M), is enough.",
    ),
    EVERYONE_COMPUTES_ALL,
    CHUNK,
    CALLS_LIB,
    NOTHING_RETURNED,
)
PIPELINE = (
    Hint(
        "all layers at once",
        _as_if(lambda x, w, layers, r, N: through(x, layers)),
        "that is the result of all four layers. A rank returns what leaves it: x after its own layers and those of "
        "the ranks before it.",
    ),
    Hint(
        "began again with x",
        _as_if(lambda x, w, layers, r, N: through(x, layers_of(layers, r, N))),
        "this rank applied its layers to x. Only rank 0 begins with x, the others with what the rank before sent.",
    ),
    Hint(
        "passed on unchanged",
        _as_if(lambda x, w, layers, r, N: through(x, layers[: LAYERS // N * r])),
        "this is what arrived at the rank; its own layers have not been applied.",
    ),
    Hint(
        "every N-th layer",
        _as_if(lambda x, w, layers, r, N: through(x, layers[r::N]) if r == 0 else torch.empty(0)),
        "rank 0 applied every N-th layer; its layers follow each other: layers[0], layers[1], ...",
    ),
    Hint(
        "rank 0 waits for somebody",
        _rank_0_waits,
        "nobody comes before rank 0: it begins with x and receives nothing.",
    ),
    Hint(
        "nothing was sent on",
        lambda p: p.kind in HANGS and "waits in recv" in p.text,
        "a rank returned without sending its activation: every rank but the last sends to rank + 1.",
    ),
    Hint(
        "the last rank sends",
        lambda p: (p.kind in HANGS and "waits in send" in p.text) or (p.kind == "raised" and "send(" in p.text),
        "nobody comes after the last rank: it returns the result and sends nothing.",
    ),
    Hint(
        "told everybody",
        lambda p: p.kind == "wire",
        "only the next rank needs the activation: one dist.send to rank + 1.",
    ),
    EVERYONE_COMPUTES_ALL,
    CALLS_LIB,
    NOTHING_RETURNED,
)
