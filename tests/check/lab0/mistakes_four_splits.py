"""Known mistakes of four_splits."""

import torch
import torch.distributed as dist
from mistakes import Mistake, edit

SPLIT_W, GATHER = (
    "w.tensor_split(world_size, dim=1)[rank]",
    "    dist.all_gather(pieces, mine, group)\n",
)
JOIN, ADD = "return torch.cat(pieces, dim=1)", "dist.all_reduce(y, group=group)"


def _one_tensor(x, w):
    mine = x @ w.tensor_split(dist.get_world_size(), dim=1)[dist.get_rank()]
    pieces = [torch.empty_like(mine)] * dist.get_world_size()
    dist.all_gather(pieces, mine)
    return torch.cat(pieces, dim=1)


MISTAKES = {
    "split_rows": (
        Mistake("all rows", edit("x.tensor_split(world_size)[rank] @ w", "x @ w"),
                "that is all of x w. A rank takes its rows of x and returns its rows of the "
                "result: nothing is gathered."),
        Mistake("rank 0's rows everywhere", edit("[rank] @", "[0] @"),
                "every rank took the first piece. Which one is this rank's? dist.get_rank() says."),
        Mistake("every N-th row", edit("x.tensor_split(world_size)[rank]", "x[rank::world_size]"),
                "rank r has every N-th row; give it consecutive ones, the r-th piece of "
                "x.tensor_split(N)."),
        Mistake("columns instead of rows", edit("x.tensor_split(world_size)[rank] @ w",
            f"x @ {SPLIT_W}"),
                "that splits w by columns, which is `split_columns`. Here x is split, by rows: dim "
                "0."),
    ),
    "split_columns": (
        Mistake("cut along rows", edit(SPLIT_W, "w.tensor_split(world_size)[rank]")),
        Mistake("not gathered", edit(JOIN, "return mine"),
                "these are this rank's columns alone. dist.all_gather brings the others'; join "
                "them with torch.cat."),
        Mistake("joined along the rows", edit("dim=1)  # (B, M)\n", "dim=0)\n"),
                "the pieces are columns, so they stand side by side: torch.cat(pieces, dim=1)."),
        Mistake("reshaped after the gather", edit(JOIN,
            "return torch.cat(pieces).reshape(len(x), -1)"),
                "the gathered pieces lie one below the other, (N * B, M/N); reshape cannot put "
                "them side by side. Cut them apart and use torch.cat(pieces, dim=1)."),
        Mistake("interleaved", edit(JOIN, "return torch.stack(pieces, dim=2).reshape(len(x), -1)")),
        Mistake("one tensor N times", _one_tensor,
                "[torch.empty_like(mine)] * N is one tensor in N places, and the last rank's piece "
                "overwrote the others: [torch.empty_like(mine) for _ in range(N)]."),
        Mistake("added instead of joined", edit(JOIN, "return sum(pieces)"),
                "all-reduce adds the ranks' pieces, but each rank has finished columns of its own: "
                "all-gather joins them."),
        Mistake("every N-th column", edit(SPLIT_W, "w[:, rank::world_size]"),
                "rank r has every N-th column of w; give it consecutive ones, so that torch.cat "
                "puts them in order."),
    ),
    "split_inner": (
        Mistake("not added up", edit(ADD, "pass"),
                "this is one rank's partial sum: as large as x w, but with only some of its terms. "
                "Add the ranks' partial sums, on every rank: dist.all_reduce."),
        Mistake("not added up", edit(ADD,
            "whole = y.clone(); dist.reduce(whole, 0); y = y if rank else whole")),
        Mistake("another op", edit(ADD, "dist.all_reduce(y, dist.ReduceOp.MAX, group=group)"),
                "the partial sums are terms of one sum: SUM, which all_reduce takes unless it is "
                "told otherwise."),
        Mistake("another op", edit(ADD, "dist.all_reduce(y, dist.ReduceOp.MIN, group=group)")),
        Mistake("N times the result",
                edit("x.tensor_split(world_size, dim=1)[rank] @ w.tensor_split(world_size)[rank]",
                     "x @ w"),
                "N times too large: every rank multiplied everything, and then these were added. "
                "Cut x and w first."),
        Mistake("averaged", edit("return y", "return y / world_size"),
                "the partial sums are averaged. They are terms of one sum: add them, op=SUM."),
        Mistake(
            "a remainder lost",
            edit("x.tensor_split(world_size, dim=1)[rank] @ w.tensor_split(world_size)[rank]",
                 "x[:, rank * (len(w) // world_size) :][:, : len(w) // world_size] "
                 "@ w[rank * (len(w) // world_size) :][: len(w) // world_size]"),
            "the inner dimension is no multiple of N, and its last terms belong to no rank. "
            "tensor_split shares out everything.",
        ),
        Mistake("joined instead of added",
                edit(ADD,
                     "p = [y.clone() for _ in range(world_size)]; dist.all_gather(p, y); y = "
                     "torch.cat(p, dim=1)"),
                "the pieces are partial sums of the same (B, M), so they are added, not put side "
                "by side."),
    ),
    "pipeline": (
        Mistake("all layers at once",
                edit("    return h",
                     "    return x @ layers[0] @ layers[1] @ layers[2] @ layers[3]"),
                "that is the result of all four layers. A rank returns what leaves it: x after its "
                "own layers and those of the ranks before it."),
        Mistake("began again with x", edit("    for layer in", "    h = x\n    for layer in"),
                "this rank applied its layers to x. Only rank 0 begins with x, the others with "
                "what the rank before sent."),
        Mistake(
            "passed on unchanged",
            edit("    for layer in", "    came = h.clone()\n    for layer in").then("    return h",
                "    return came"),
            "this is what arrived at the rank; its own layers have not been applied.",
        ),
        Mistake("transposed", edit("h = h @ layer", "h = h @ layer.T")),
        Mistake("one layer each", edit("layers[rank * per_rank : (rank + 1) * per_rank]",
            "layers[rank : rank + 1]"),
                "each rank has len(layers) // N layers, here more than one."),
        Mistake("every N-th layer", edit("layers[rank * per_rank : (rank + 1) * per_rank]",
            "layers[rank::world_size]"),
                "rank 0 applied every N-th layer; its layers follow each other: layers[0], "
                "layers[1], ..."),
    ),
}  # fmt: skip
