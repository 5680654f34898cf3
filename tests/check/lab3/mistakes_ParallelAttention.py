"""Known mistakes in ParallelAttention."""

from mistakes import Mistake, edit

ATTEND, OUT = "causal_attention(q, k, v, p)", "self.dropout(self.out(merge_heads(mixed)))"
COLUMNS = "self.column_linear(x, [self.q, self.k, self.v], self.group)"
HEADS = "split_heads(column, self.head_dim)"
SCALE = (
    "scores are divided by sqrt(d), d the width of one head. Sharding changes the number of "
    "heads, not d."
)
PLAIN = "nn.functional.linear(merge_heads(mixed), self.out.weight"
FACTORS = (  # of the scores
    "self.head_dim", "dist.get_world_size(self.group)", "1 / dist.get_world_size(self.group)",
    "self.head_dim / self.q.weight.shape[0]", "self.head_dim / self.q.weight.shape[1]",
)  # fmt: skip
MISTAKES = (
    *(Mistake("another scale", edit(ATTEND, f"causal_attention(q * ({factor}) ** 0.5, k, v, p)"),
              SCALE)
      for factor in FACTORS),
    Mistake("another scale", edit(HEADS, HEADS.replace("head_dim",
        "head_dim // dist.get_world_size(self.group)"))),
    Mistake("another key/value head", edit(ATTEND, """causal_attention(
                q, *(t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v)), p)"""),
            "query head i reads key/value head i // (H/K): neighbours share one, as "
            "repeat_interleave does and repeat does not."),
    Mistake("no mask", edit(ATTEND,
        "nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)"),
            "token t sees tokens 0 to t only, as in causal_attention."),
    Mistake("the bias N times", edit(OUT,
        OUT + " + (dist.get_world_size(self.group) - 1) * self.out.bias"),
            "out's bias is replicated and is added once, after the sum: "
            "row_linear(x, layer, group) does."),
    Mistake("summed twice", edit(OUT, "dist.get_world_size(self.group) * " + OUT),
            "row_linear(x, layer, group) has summed over the ranks: a second sum makes it tp times "
            "as large."),
    *(Mistake("g is missing", edit(OUT, PLAIN + more),
              "a rank's heads give a partial sum; row_linear(x, layer, group) adds up all ranks'.")
      for more in (")", ", self.out.bias)")),
    Mistake("the bias is missing", edit(OUT, OUT + " - self.out.bias"),
            "out has a bias: row_linear(x, layer, group) adds the layer's."),
    Mistake("f is missing", edit(
        COLUMNS, "[nn.functional.linear(x, l.weight, l.bias) for l in (self.q, self.k, self.v)]"),
            "y is right, the gradient of x only this rank's part of it. x enters the parallel "
            "region through f, which is in column_linear(x, [layers], group)."),
    Mistake("x enters three times",
            edit(COLUMNS,
                 "[self.column_linear(x, [l], self.group)[0] for l in (self.q, self.k, self.v)]")),
    Mistake("another result", edit(ATTEND, "causal_attention(q, v, k, p)")),
)  # fmt: skip
