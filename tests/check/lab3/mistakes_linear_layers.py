"""Known mistakes of column_parallel and row_parallel, each named after its cause."""

from mistakes import Mistake, edit

COLUMNS, PRODUCT, ADDED = (
    "F.linear(x, linear.weight, linear.bias)",
    "F.linear(x, linear.weight)",
    "y if linear.bias is None else y + linear.bias",
)
ENTERS, LEAVES = "x = input_mapping(x, group)", "y = output_mapping(partial, group)"
BIAS = "y = x A + a: the bias is a part of the layer."
MISTAKES = {
    "column_parallel": (
        Mistake("f is missing", edit(ENTERS, "input_mapping(x, group)"),
                "a rank's columns give its own part of dx. The full one is the sum over the ranks: "
                "multiply what input_mapping(x, group) returns, and not x."),
        Mistake("f at the end", edit(ENTERS, "pass").then(COLUMNS,
            f"input_mapping({COLUMNS}, group)"),
                "f is applied to x, so that backward sums dx. After the matmul it would add up "
                "the gradients of different columns."),
        Mistake("f twice", edit(ENTERS, "x = input_mapping(input_mapping(x, group), group)"),
                "the gradient of x is summed over the ranks more than once: apply f once."),
        Mistake("x enters once per layer", edit(ENTERS, "pass").then("F.linear(x,",
            "F.linear(input_mapping(x, group),")),
        Mistake("x summed", edit(ENTERS, "x = reduce_from_group(x, group)"),
                "x is replicated already, so forward leaves it as it is: input_mapping(x, group) "
                "is f, not g."),
        Mistake("columns added up", edit(COLUMNS, f"reduce_from_group({COLUMNS}, group)"),
                "ranks have different columns, all finished: there is nothing to sum. An "
                "all-reduce adds column 0 to column F/tp."),
        Mistake("the bias is missing", edit(COLUMNS, PRODUCT), BIAS),
    ),
    "row_parallel": (
        Mistake("the bias N times", edit(PRODUCT, COLUMNS).then(ADDED, "y"),
                "every rank has the full bias, so before the sum it is added once per rank. Add it "
                "after output_mapping."),
        Mistake("g is missing", edit(LEAVES, "y = partial"),
                "a rank's product is a partial sum, as large as the result: "
                "output_mapping(partial, group) adds up all ranks'."),
        Mistake("x summed", edit(PRODUCT,
            "F.linear(output_mapping(x, group), linear.weight)").then(LEAVES, "y = partial"),
                "ranks have different columns of x, which do not add up. First multiply, then call "
                "output_mapping."),
        Mistake("summed twice", edit(LEAVES,
            "y = output_mapping(output_mapping(partial, group), group)"),
                "after the first sum all ranks have the full result; a second one multiplies it by "
                "the number of ranks."),
        Mistake("f does not belong here", edit(PRODUCT,
            "F.linear(copy_to_group(x, group), linear.weight)"),
                "x is sharded: each rank has its own columns, and the full gradient of those. "
                "Nothing is sent backward."),
        Mistake("the bias is missing", edit(ADDED, "y"), BIAS),
        Mistake("a tensor as a condition", edit(ADDED, "y + linear.bias if linear.bias else y")),
        Mistake("another result", edit(ADDED, ADDED.replace("+", "-"))),
    ),
}  # fmt: skip
