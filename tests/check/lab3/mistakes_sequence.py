"""Known mistakes in gather_sequence, scatter_sequence and sum_gradients."""

from mistakes import Mistake, edit

RANK_N = "rank, N = dist.get_rank(group), dist.get_world_size(group)\n        "


def _gathers(result, before=""):
    """gather_sequence that returns this."""
    return edit("return gather_along_dim(x, -2, group, all_gather)", f"{before}return {result}")


def _back(result):
    """gather_sequence with this gradient of dy."""
    how = "group, all_gather, reduce_scatter = ctx.how\n        B, T, D = dy.shape\n        "
    return edit("return scatter_sequence(dy, *ctx.how),", f"{how}{RANK_N}return {result},")


def _scatters(result):
    """scatter_sequence that returns this; total: the sum."""
    how = "group, all_gather, reduce_scatter = ctx.how\n        B, T, D = x.shape\n        "
    own = "reduce_scatter_along_sequence(x, *ctx.how)"
    full = f"total = gather_along_dim({own}, -2, group, all_gather)\n        "
    call = "return reduce_scatter_along_sequence(x, *how)"
    return edit(call, f"{how}{RANK_N}{full if 'total' in result else ''}return {result}")


TURNED = "x.transpose(0, 1).contiguous()"
WHOLE = "gather_along_dim(x, -2, group, all_gather)"
GATHER = (
    Mistake("sequences for tokens", _gathers("all_gather(x.contiguous(), group)")),
    *(Mistake("a view for a transpose", answer) for answer in (
        _gathers("all_gather(x, group).view(len(x), -1, x.shape[-1])"),
        _gathers(f"all_gather({TURNED}, group).view(len(x), -1, x.shape[-1])"),
        _back("reduce_scatter(dy.reshape(T, B, D), group).view(B, -1, D)"),
        _back("reduce_scatter(dy.reshape(T, B, D), group).transpose(0, 1)"),
        _back("reduce_scatter(dy.transpose(0, 1).contiguous(), group).view(B, -1, D)"),
    )),
    *(Mistake("the order of the tokens", answer) for answer in (
        _gathers(f"torch.cat({WHOLE}.chunk(N, 1)[::-1], 1)", RANK_N),
        _gathers(f"{WHOLE}.roll(-rank * x.shape[1], 1)", RANK_N),
        _gathers(f"torch.stack({WHOLE}.chunk(N, 1), 2).flatten(1, 2)", RANK_N),
        _back("scatter_sequence(dy, *ctx.how).flip(1)"),
    )),
    Mistake("not gathered", _gathers("torch.cat([x if r == rank else 0 * x for r in range(N)], 1)",
        RANK_N)),
    Mistake("backward without the sum", _back("dy.chunk(N, 1)[rank]")),
    Mistake("a mean or a multiple", _back("scatter_sequence(dy, *ctx.how) / N")),
    Mistake("a mean or a multiple", _back("scatter_sequence(dy, *ctx.how) * N")),
    Mistake("another shape", _back("reduce_scatter(dy.contiguous(), group)")),
    Mistake("other calls", _gathers(WHOLE, "all_gather(x, group)\n        ")),
)  # fmt: skip
GATHERED = "return gather_sequence(dy, *ctx.how),"
SCATTER = (
    Mistake("sequences for tokens", _scatters("reduce_scatter(x.contiguous(), group)")),
    *(Mistake("a view for a transpose", _scatters(result)) for result in (
        "reduce_scatter(x.reshape(T, B, D), group).transpose(0, 1).contiguous()",
        "reduce_scatter(x.reshape(T, B, D), group).reshape(B, -1, D)",
        f"reduce_scatter({TURNED}, group).reshape(B, -1, D)",
    )),
    *(Mistake("the order of the tokens", _scatters(f"total{part}.contiguous()")) for part in (
        "[:, rank::N]", ".chunk(N, 1)[N - 1 - rank]", ".chunk(N, 1)[(rank + 1) % N]",
    )),
    Mistake("not summed", _scatters("x.chunk(N, 1)[rank].contiguous()")),
    Mistake("a mean or a multiple", _scatters("reduce_scatter_along_sequence(x, *ctx.how) / N")),
    Mistake("backward without the gather", edit(GATHERED, "group = ctx.how[0]\n        " + RANK_N +
            "return torch.cat([dy if r == rank else 0 * dy for r in range(N)], 1),")),
    Mistake("a mean or a multiple", edit(GATHERED,
        GATHERED[:-1] + " * dist.get_world_size(ctx.how[0]),")),
)  # fmt: skip
SUMMED, FLAT = (
    "all_reduce(flat, group)",
    "flat = flatten(gradients)  # (n,)\n        all_reduce(flat, group)",
)
SUMS = (
    Mistake("averaged", edit(SUMMED, f"{SUMMED}.div_(dist.get_world_size(group))")),
    Mistake("summed twice", edit(SUMMED, f"{SUMMED}\n        {SUMMED}")),
    Mistake("nothing written back", edit("unflatten(flat, gradients)", "pass")),
    Mistake("slices exchanged", edit("flatten(gradients)", "flatten(gradients[::-1])")),
    Mistake("one message per parameter", edit(FLAT,
        "for flat in gradients:\n            all_reduce(flat, group)")
            .then("unflatten(flat, gradients)", "pass")),
    Mistake("sizes that differ between ranks", edit("if p.requires_grad]",
        "if p.grad is not None]")),
    Mistake("frozen ones too", edit("if p.requires_grad]",
        "if p.requires_grad or p.grad is not None]")),
    Mistake("a gradient that is not contiguous",
            edit("gradient(p) for", "(gradient(p) if p.grad is None else p.grad) for")
            .then("flatten(gradients)", "torch.cat([g.view(-1) for g in gradients])")),
)  # fmt: skip
MISTAKES = {"gather_sequence": GATHER, "scatter_sequence": SCATTER, "sum_gradients": SUMS}
