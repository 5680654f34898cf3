"""The mistakes that are made in ParallelAttention, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab3.compare import it_is
from lib.check.lab3.given import WRONG_GROUP


def _of(tensor):
    return lambda p: p.kind in ("value", "form") and f": {tensor}" in p.text.splitlines()[0]


def _both(*fits):
    return lambda p: all(fit(p) for fit in fits)


HINTS = (
    Hint(
        "called lib's",
        lambda p: p.kind == "built-in",
        "write the class yourself, from tp.ColumnParallelLinear, tp.RowParallelLinear, split_heads, causal_attention, "
        "merge_heads, and the columns and rows that it is given.",
    ),
    WRONG_GROUP,
    Hint(
        "heads interleaved",
        it_is("every "),
        "cut where the heads stand together: rank r has the heads r H/tp to (r+1) H/tp - 1, so that query head i finds "
        "its key/value head i // (H/K) on the same rank. chunk(tp)[rank] gives that.",
    ),
    Hint(
        "a layer not cut",
        it_is("the whole of"),
        "q, k and v are cut by heads, all three, and out with them: with grouped-query attention too, each rank has "
        "K/tp of the key/value heads.",
    ),
    Hint(
        "cut on the wrong dim",
        it_is("cut on dim"),
        "torch keeps weights transposed, (out, in). The heads are the outputs of q, k and v, so these are cut on dim "
        "0; they are the inputs of out, which is cut on dim 1.",
    ),
    Hint(
        "another rank's heads",
        it_is("'s part of"),
        "rank r of the group has part r: chunk(tp)[dist.get_rank(group)], of q, k, v and out alike.",
    ),
    Hint(
        "another scale",
        it_is("scores divided by"),
        "scores are divided by sqrt(d), d the width of one head. Cutting changes the number of heads, not d.",
    ),
    Hint(
        "another key/value head",
        it_is("read other key/value heads"),
        "query head i reads key/value head i // (H/K): neighbours share one, as repeat_interleave does and repeat does "
        "not.",
    ),
    Hint("no mask", it_is("later tokens"), "token t sees tokens 0 to t only, as in causal_attention."),
    Hint(
        "the bias N times",
        it_is("with the bias"),
        "out's bias is whole on every rank and is added once, after the sum: rows(x, layer, group) does.",
    ),
    Hint(
        "g is missing",
        _both(_of("y"), it_is("this rank's partial sum")),
        "a rank's heads give a partial sum; rows(x, layer, group) adds up all ranks'.",
    ),
    Hint(
        "the bias is missing",
        it_is("without the bias"),
        "out has a bias: rows(x, layer, group) adds the layer's.",
    ),
    Hint(
        "f is missing",
        _both(_of("x.grad"), it_is("this rank's own part")),
        "y is right, the gradient of x only this rank's part of it. x enters the parallel region through f, which is "
        "in columns(x, [layers], group).",
    ),
    Hint(
        "no list of layers",
        lambda p: p.kind == "raised" and "not iterable" in p.text,
        "columns takes all layers that read x, in a list, and returns a list.",
    ),
    Hint(
        "shapes do not fit",
        lambda p: p.kind in ("raised", "form"),
        "on a rank q is H*d/tp wide, k and v K*d/tp, and so is what out takes in. split_heads and merge_heads work on "
        "however many heads there are; the width of one, head_dim, stays.",
    ),
    Hint(
        "another result",
        lambda p: p.kind in ("value", "cut"),
        "columns for q, k, v; split_heads; causal_attention; merge_heads; rows for out. Each rank's part is a chunk of "
        "the plain layer's weight and bias.",
    ),
    Hint(
        "no parameters",
        lambda p: p.kind == "held" and p.facts["got"] < p.facts["want"],
        "a part must be an nn.Parameter of this module, or of one inside it: else no optimizer finds it.",
    ),
    Hint(
        "the whole is kept",
        lambda p: p.kind == "held" and p.facts["got"] > p.facts["want"],
        "the plain attention, or a layer of it, is a part of your module: keep this rank's part alone, or nothing is "
        "saved.",
    ),
    Hint(
        "views of the whole",
        lambda p: p.kind == "held",
        "a chunk is a view, and holds the memory of the whole weight. clone() it.",
    ),
    Hint(
        "the plain attention changed",
        lambda p: p.kind == "touched",
        "the caller's attention stays as it is: make parameters of your own.",
    ),
    Hint(
        "x enters three times",
        lambda p: p.kind == "calls" and len(p.facts["got"]) > 1,
        "q, k and v read the same x: one call of columns with all three, and backward sends one all-reduce for them.",
    ),
    Hint(
        "not the ones it was given",
        lambda p: p.kind in ("calls", "another way"),
        "whoever makes the module chooses how to multiply: columns(x, [layers], group) and rows(x, layer, group). "
        "(A tp.ColumnParallelLinear has lib's inside, unless you hand it `columns`.)",
    ),
    Hint(
        "no error",
        lambda p: p.kind == "no error",
        "a size may divide where the heads do not: 6 heads of width 2 are 12 columns, 3 for each of 4 ranks, one head "
        "and a half. Ask whether tp divides the number of heads, and that of key/value heads.",
    ),
    Hint(
        "another error",
        lambda p: p.kind == "another error",
        "raise ValueError with the numbers in it: `raise ValueError(f'{H} heads over {tp} ranks')`.",
    ),
)
