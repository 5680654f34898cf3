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
        Mistake("all rows", edit("x.tensor_split(world_size)[rank] @ w", "x @ w")),
        Mistake("rank 0's rows everywhere", edit("[rank] @", "[0] @")),
        Mistake("every N-th row", edit("x.tensor_split(world_size)[rank]", "x[rank::world_size]")),
        Mistake("columns instead of rows",
                edit("x.tensor_split(world_size)[rank] @ w", f"x @ {SPLIT_W}")),
    ),
    "split_columns": (
        Mistake("cut along rows", edit(SPLIT_W, "w.tensor_split(world_size)[rank]")),
        Mistake("not gathered", edit(JOIN, "return mine")),
        Mistake("joined along the rows", edit("dim=1)  # (B, M)\n", "dim=0)\n")),
        Mistake("reshaped after the gather",
                edit(JOIN, "return torch.cat(pieces).reshape(len(x), -1)")),
        Mistake("interleaved", edit(JOIN, "return torch.stack(pieces, dim=2).reshape(len(x), -1)")),
        Mistake("one tensor N times", _one_tensor),
        Mistake("added instead of joined", edit(JOIN, "return sum(pieces)")),
        Mistake("every N-th column", edit(SPLIT_W, "w[:, rank::world_size]")),
    ),
    "split_inner": (
        Mistake("not added up", edit(ADD, "pass")),
        Mistake("not added up", edit(ADD,
            "whole = y.clone(); dist.reduce(whole, 0); y = y if rank else whole")),
        Mistake("another op", edit(ADD, "dist.all_reduce(y, dist.ReduceOp.MAX, group=group)")),
        Mistake("another op", edit(ADD, "dist.all_reduce(y, dist.ReduceOp.MIN, group=group)")),
        Mistake("N times the result",
                edit("x.tensor_split(world_size, dim=1)[rank] @ w.tensor_split(world_size)[rank]",
                     "x @ w")),
        Mistake("averaged", edit("return y", "return y / world_size")),
        Mistake(
            "a remainder lost",
            edit("x.tensor_split(world_size, dim=1)[rank] @ w.tensor_split(world_size)[rank]",
                 "x[:, rank * (len(w) // world_size) :][:, : len(w) // world_size] "
                 "@ w[rank * (len(w) // world_size) :][: len(w) // world_size]"),
        ),
        Mistake("joined instead of added",
                edit(ADD,
                     "p = [y.clone() for _ in range(world_size)]; dist.all_gather(p, y); y = "
                     "torch.cat(p, dim=1)")),
    ),
    "pipeline": (
        Mistake("all layers at once",
                edit("    return h",
                     "    return x @ layers[0] @ layers[1] @ layers[2] @ layers[3]")),
        Mistake("began again with x", edit("    for layer in", "    h = x\n    for layer in")),
        Mistake(
            "passed on unchanged",
            edit("    for layer in", "    came = h.clone()\n    for layer in").then("    return h",
                "    return came"),
        ),
        Mistake("transposed", edit("h = h @ layer", "h = h @ layer.T")),
        Mistake("one layer each",
                edit("layers[rank * per_rank : (rank + 1) * per_rank]", "layers[rank : rank + 1]")),
        Mistake("every N-th layer", edit("layers[rank * per_rank : (rank + 1) * per_rank]",
            "layers[rank::world_size]")),
    ),
}  # fmt: skip
