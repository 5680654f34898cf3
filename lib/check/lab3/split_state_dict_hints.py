"""The mistakes that split_state_dict knows."""

from lib.check.framework import Hint


def _value(fits):
    return lambda p: p.kind == "value" and bool(fits(p.facts))


def _of(*endings):
    return lambda facts: facts["name"].endswith(endings)


ROWS = ("out.weight", "down.weight")
ROW_BIASES = ("out.bias", "down.bias")
COLUMN_BIASES = ("q.bias", "k.bias", "v.bias", "up.bias")

HINTS = (
    Hint("called lib's", lambda p: p.kind == "built-in", "write the loop over state.items() yourself."),
    Hint(
        "names left out",
        lambda p: p.kind == "names" or p.kind == "form",
        "every name of the whole model is in the result, also of what is not cut: return {name: tensor}.",
    ),
    Hint(
        "not by the end of the name",
        lambda p: _value(lambda f: f["inside"])(p) or (p.kind == "raised" and "out of range" in p.text),
        "without a prefix it was right. Look at how a name ends, its last two words, not at what is anywhere in it.",
    ),
    Hint(
        "another rank's part",
        _value(lambda f: "another rank's" in f["is"]),
        "tensor.chunk(tp, dim)[rank]: rank r has the r-th part.",
    ),
    Hint(
        "interleaved",
        _value(lambda f: "every " in f["is"]),
        "parts are contiguous: rank r's come one after the other, so that a part is whole heads.",
    ),
    Hint(
        "the bias of a row layer",
        _value(_of(*ROW_BIASES)),
        "by rows the bias is added once, after the sum: every rank has all of it.",
    ),
    Hint(
        "the bias of a column layer",
        _value(_of(*COLUMN_BIASES)),
        "by columns each rank has some of the outputs, so that part of the bias: dim 0.",
    ),
    Hint(
        "a norm or a position",
        _value(lambda f: f["dim"] is None),
        "norms and positions work on whole tokens: every rank has all of them.",
    ),
    Hint(
        "rows for columns",
        _value(_of(*ROWS)),
        "torch keeps weights as (out, in). mlp.down and attention.out take cut inputs: their weight is cut on dim 1.",
    ),
    Hint(
        "the vocabulary",
        _value(_of("token.weight", "head.weight")),
        "embedding and head are (V, D), and cut by vocabulary, dim 0.",
    ),
    Hint(
        "columns for rows",
        _value(lambda f: True),
        "torch keeps weights as (out, in). mlp.up and attention.q, k, v give cut outputs: their weight is cut on "
        "dim 0.",
    ),
    Hint(
        "views of what is cut",
        lambda p: p.kind == "memory" and p.facts["cut"],
        "chunk and slices are views: the part would keep the whole tensor alive, and change with it. Clone it.",
    ),
    Hint(
        "the same tensor where nothing is cut",
        lambda p: p.kind == "memory",
        "what is not cut must be a copy as well, or training the part changes the whole: tensor.clone().",
    ),
    Hint(
        "no error",
        lambda p: p.kind == "error",
        "chunk and tensor_split make unequal parts without a word. Look first: if tensor.shape[dim] % tp: raise "
        "ValueError(...), with name and numbers.",
    ),
    Hint(
        "changed what it was given",
        lambda p: p.kind == "touched",
        "put the parts into a new dict: state[name] = ... writes into the caller's.",
    ),
)
