"""Known mistakes of ulysses_attention, each named after its cause."""

from mistakes import Mistake, edit

MASK = "*((order, order) if causal else ())"
MISTAKES = (
    Mistake("the mask", edit(MASK, "order, order"),
            "causal says whether keys later than the query are hidden: attend is given the "
            "positions of both where it is True, and none where it is False."),
    Mistake("the mask", edit(MASK, "*()")),
    Mistake("the order of the tokens", edit(MASK,
        "*((order, order) if causal and order[0] == 0 else ())")),
    Mistake("k and v exchanged", edit("    q, k, v = (exchange(x, True) for",
        "    q, v, k = (exchange(x, True) for"),
            "attend takes q, then k, then v."),
    Mistake("the next rank's key/value head", edit("x.repeat_interleave(cp // K, 1)",
        "x.repeat(1, cp // K, 1, 1)"),
            "query heads of one group are neighbours: heads 0, 0, 1, 1 (repeat_interleave), and "
            "not 0, 1, 0, 1."),
    Mistake("every N-th head", edit("rows = x.permute(1, 2, 0, 3).reshape(",
            "rows = x.permute(1, 2, 0, 3).unflatten(0, (mine, cp)).transpose(0, 1).reshape("),
            "rank r has the heads r H/N to (r+1) H/N - 1, one after the other: so are the "
            "key/value heads that they read, and all heads on the way back."),
    Mistake("the gradient divided", edit("_heads_for_shards(d_y, *ctx.how)",
        "_heads_for_shards(d_y, *ctx.how) / 2"),
            "an exchange only moves elements: its backward moves them back, and neither divides "
            "nor multiplies."),
)  # fmt: skip
