"""Known mistakes of column_parallel and row_parallel, each named after its cause."""

from mistakes import Mistake, edit

COLUMNS, PRODUCT, ADDED = (
    "F.linear(x, linear.weight, linear.bias)",
    "F.linear(x, linear.weight)",
    "y if linear.bias is None else y + linear.bias",
)
ENTERS, LEAVES = "x = input_mapping(x, group)", "y = output_mapping(partial, group)"
MISTAKES = {
    "column_parallel": (
        Mistake("f is missing", edit(ENTERS, "input_mapping(x, group)")),
        Mistake("f at the end",
                edit(ENTERS, "pass").then(COLUMNS, f"input_mapping({COLUMNS}, group)")),
        Mistake("f twice", edit(ENTERS, "x = input_mapping(input_mapping(x, group), group)")),
        Mistake("x enters once per layer", edit(ENTERS, "pass").then("F.linear(x,",
            "F.linear(input_mapping(x, group),")),
        Mistake("x summed", edit(ENTERS, "x = reduce_from_group(x, group)")),
        Mistake("columns added up", edit(COLUMNS, f"reduce_from_group({COLUMNS}, group)")),
        Mistake("the bias is missing", edit(COLUMNS, PRODUCT)),
    ),
    "row_parallel": (
        Mistake("the bias N times", edit(PRODUCT, COLUMNS).then(ADDED, "y")),
        Mistake("g is missing", edit(LEAVES, "y = partial")),
        Mistake("x summed", edit(PRODUCT,
            "F.linear(output_mapping(x, group), linear.weight)").then(LEAVES, "y = partial")),
        Mistake("summed twice",
                edit(LEAVES, "y = output_mapping(output_mapping(partial, group), group)")),
        Mistake("f does not belong here",
                edit(PRODUCT, "F.linear(copy_to_group(x, group), linear.weight)")),
        Mistake("the bias is missing", edit(ADDED, "y")),
        Mistake("a tensor as a condition", edit(ADDED, "y + linear.bias if linear.bias else y")),
        Mistake("another result", edit(ADDED, ADDED.replace("+", "-"))),
    ),
}  # fmt: skip
