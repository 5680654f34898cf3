"""The mistakes that are made in column_parallel and row_parallel, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab3.compare import it_is
from lib.check.lab3.given import ANOTHER_WAY, NOT_ALL_RANKS, WRONG_GROUP


def _of(tensor):
    """Fits if it is about that tensor: "x.grad", "y", "layer"."""
    return lambda p: p.kind in ("value", "form") and f": {tensor}" in p.text.splitlines()[0]


def _both(*fits):
    return lambda p: all(fit(p) for fit in fits)


CALLS_LIB = Hint(
    "called lib's",
    lambda p: p.kind == "built-in",
    "multiply with F.linear, and send by the mapping that is given.",
)
NO_BIAS = Hint(
    "a layer without bias",
    lambda p: p.kind == "raised" and "NoneType" in p.text,
    "linear.bias may be None. F.linear takes that; an addition does not.",
)
NOT_A_MODULE = Hint(
    "a part is no module",
    lambda p: p.kind == "raised" and "not callable" in p.text,
    "a rank's part has a .weight and a .bias, and no more: F.linear(x, linear.weight, linear.bias).",
)
TRANSPOSED = Hint(
    "shapes do not fit",
    lambda p: p.kind == "raised" and any(words in p.text for words in ("mat1 and mat2", "size", "shape", "dimension")),
    "torch keeps weights transposed, (out, in), and what you are given is cut already: F.linear(x, linear.weight) "
    "takes it as it is.",
)
NO_BIAS_ADDED = Hint("the bias is missing", it_is("without the bias"), "y = x A + a: the bias is a part of the layer.")
TOUCHED = Hint(
    "arguments overwritten",
    lambda p: p.kind == "touched",
    "in-place operations (+=, add_) on what you are given change the caller's model. Make new tensors.",
)
SOMETHING_ELSE = Hint(
    "another result",
    lambda p: p.kind in ("value", "form"),
    "columns: enter, then F.linear of each layer. Rows: F.linear without the bias, then leave, then the bias.",
)

COLUMN_HINTS = (
    CALLS_LIB, WRONG_GROUP, NOT_ALL_RANKS, NO_BIAS, NOT_A_MODULE, TRANSPOSED,
    Hint(
        "one result per layer",
        lambda p: p.kind == "no list",
        "the layers share x, not their results: return a list with this rank's columns of each.",
    ),
    Hint(
        "columns added up",
        it_is("columns added up"),
        "ranks have different columns, all finished: there is nothing to sum. An all-reduce adds column 0 to column "
        "F/tp.",
    ),
    Hint(
        "columns gathered",
        it_is("columns side by side"),
        "this rank's columns are the result. What comes next, rows, takes them as they are.",
    ),
    Hint(
        "x summed",
        it_is("times, plus the bias"),
        "every rank has the whole x already. Forward it enters as it is: enter(x, group) is f, not g.",
    ),
    Hint(
        "f at the end",
        _both(_of("x.grad"), it_is("had all ranks' columns one gradient")),
        "f stands where x enters, so that backward sums dx. Behind the product it adds up the gradients of different "
        "columns.",
    ),
    Hint(
        "f is missing",
        _both(_of("x.grad"), it_is("this rank's own part")),
        "a rank's columns give its own part of dx. The whole is their sum over the ranks: multiply what "
        "enter(x, group) returns, and not x.",
    ),
    Hint(
        "f twice",
        _both(_of("x.grad"), it_is("x expected")),
        "the gradient of x is summed over the ranks more than once: x enters once.",
    ),
    NO_BIAS_ADDED, SOMETHING_ELSE,
    Hint(
        "x enters once per layer",
        lambda p: p.kind == "calls" and len(p.facts["got"]) > 1,
        "all layers read the same x: enter once, before the loop. Autograd adds their gradients on the rank, and one "
        "all-reduce serves them all.",
    ),
    ANOTHER_WAY, TOUCHED,
)  # fmt: skip
ROW_HINTS = (
    CALLS_LIB, WRONG_GROUP, NOT_ALL_RANKS, NO_BIAS, NOT_A_MODULE, TRANSPOSED,
    Hint(
        "the bias N times",
        it_is("with the bias"),
        "every rank has the whole bias; added before the sum it enters once per rank. Add it after leave.",
    ),
    Hint(
        "g is missing",
        _both(_of("y"), it_is("this rank's partial sum")),
        "a rank's product is a partial sum, as large as the result: leave(partial, group) adds up all ranks'.",
    ),
    Hint(
        "gathered",
        it_is("partial sums side by side"),
        "partial sums are added, not joined: leave(partial, group).",
    ),
    Hint(
        "x summed",
        it_is("the sum of all ranks' x"),
        "ranks have different columns of x, which do not add up. First multiply, then leave.",
    ),
    Hint(
        "summed twice",
        _both(_of("y"), it_is("x expected", "the sum ")),
        "after the first sum all ranks have the whole; a second one multiplies it by the number of ranks.",
    ),
    Hint(
        "f does not belong here",
        _both(_of("x.grad"), it_is("gradients added up", "x expected")),
        "x is cut: each rank has its own columns of it, and the whole gradient of those. Nothing is sent backward.",
    ),
    Hint(
        "the bias inside the sum",
        _of("bias.grad"),
        "y is right, but not the gradient of the bias. It is whole on every rank, is added once, after leave, and its "
        "gradient is the same on all.",
    ),
    NO_BIAS_ADDED, SOMETHING_ELSE,
    Hint("sent more than once", lambda p: p.kind == "calls" and bool(p.facts["got"]), "leave once, with the product."),
    ANOTHER_WAY, TOUCHED,
)  # fmt: skip
