"""Known mistakes of ulysses_attention, each named after its cause."""

from mistakes import Mistake, edit

MASK = "*((order, order) if causal else ())"
MISTAKES = (
    Mistake("the mask", edit(MASK, "order, order")),
    Mistake("the mask", edit(MASK, "*()")),
    Mistake("the order of the tokens", edit(MASK,
        "*((order, order) if causal and order[0] == 0 else ())")),
    Mistake("k and v exchanged",
            edit("    q, k, v = (exchange(x, True) for", "    q, v, k = (exchange(x, True) for")),
    Mistake("the next rank's key/value head",
            edit("x.repeat_interleave(cp // K, 1)", "x.repeat(1, cp // K, 1, 1)")),
    Mistake("every N-th head", edit("rows = x.permute(1, 2, 0, 3).reshape(",
            "rows = x.permute(1, 2, 0, 3).unflatten(0, (mine, cp)).transpose(0, 1).reshape(")),
    Mistake("the gradient divided",
            edit("_heads_for_shards(d_y, *ctx.how)", "_heads_for_shards(d_y, *ctx.how) / 2")),
)  # fmt: skip
