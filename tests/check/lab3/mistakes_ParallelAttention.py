"""Known mistakes in ParallelAttention."""

from mistakes import Mistake, edit

ATTEND, OUT = "causal_attention(q, k, v, p)", "self.dropout(self.out(merge_heads(mixed)))"
COLUMNS = "self.column_linear(x, [self.q, self.k, self.v], self.group)"
HEADS = "split_heads(column, self.head_dim)"
PLAIN = "nn.functional.linear(merge_heads(mixed), self.out.weight"
FACTORS = (  # of the scores
    "self.head_dim", "dist.get_world_size(self.group)", "1 / dist.get_world_size(self.group)",
    "self.head_dim / self.q.weight.shape[0]", "self.head_dim / self.q.weight.shape[1]",
)  # fmt: skip
MISTAKES = (
    *(Mistake("another scale", edit(ATTEND, f"causal_attention(q * ({factor}) ** 0.5, k, v, p)"))
      for factor in FACTORS),
    Mistake("another scale", edit(HEADS, HEADS.replace("head_dim",
        "head_dim // dist.get_world_size(self.group)"))),
    Mistake("another key/value head", edit(ATTEND, """causal_attention(
                q, *(t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v)), p)""")),
    Mistake("no mask", edit(ATTEND,
        "nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)")),
    Mistake("the bias N times", edit(OUT,
        OUT + " + (dist.get_world_size(self.group) - 1) * self.out.bias")),
    Mistake("summed twice", edit(OUT, "dist.get_world_size(self.group) * " + OUT)),
    *(Mistake("g is missing", edit(OUT, PLAIN + more)) for more in (")", ", self.out.bias)")),
    Mistake("the bias is missing", edit(OUT, OUT + " - self.out.bias")),
    Mistake("f is missing", edit(
        COLUMNS, "[nn.functional.linear(x, l.weight, l.bias) for l in (self.q, self.k, self.v)]")),
    Mistake("x enters more than once",
            edit(COLUMNS,
                 "[self.column_linear(x, [l], self.group)[0] for l in (self.q, self.k, self.v)]")),
    Mistake("another result", edit(ATTEND, "-causal_attention(q, k, v, p)")),
    Mistake("k and v exchanged", edit(ATTEND, "causal_attention(q, v, k, p)")),
    Mistake("heads and tokens mixed", edit("merge_heads(mixed)",
        "mixed.reshape(*x.shape[:2], -1)")),
    Mistake("heads and tokens mixed", edit(HEADS,
        "column.reshape(len(column), -1, column.shape[1], self.head_dim)")),
)  # fmt: skip
