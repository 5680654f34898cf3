"""Known mistakes in accumulate: edits of lib's code."""

from mistakes import Mistake, edit

DIVIDED, SENDS = "loss_fn(model, microbatch) / tokens", "\n    model.average_gradients()"
LAST = "is_last = i == len(microbatches) - 1"
NO_SYNC = "contextlib.nullcontext() if is_last else model.no_sync()"
MISTAKES = (
    Mistake("not averaged over ranks", edit(SENDS, "")),
    Mistake("not divided", edit(DIVIDED, "loss_fn(model, microbatch)")),
    Mistake("a mean of means", edit(DIVIDED,
        "loss_fn(model, microbatch) / (counts[i] * len(microbatches))")),
    Mistake("divided by k only", edit(DIVIDED, "loss_fn(model, microbatch) / len(microbatches)")),
    Mistake("a sum of means", edit(DIVIDED, "loss_fn(model, microbatch) / counts[i]")),
    Mistake("divided twice", edit(DIVIDED, f"{DIVIDED} / len(microbatches)")),
    Mistake("divided by the number of ranks too", edit(DIVIDED, f"{DIVIDED} / 4")),
    Mistake("divided by another number", edit("sum(counts), torch",
        "sum(counts) // len(counts) * len(counts), torch")),
    Mistake("divided by another number", edit(DIVIDED, "loss_fn(model, microbatch)").then(SENDS,
        "\n    for p in model.parameters():\n        if p.grad is not None:\n"
        f"            p.grad /= tokens{SENDS}")),
    Mistake("a micro-batch is missing", edit(LAST,
        f"if not counts[i]:\n            continue\n        {LAST}")),
    Mistake("gradients thrown away",
            edit("        is_last = i", "        model.zero_grad()\n        is_last = i")),
    Mistake("a micro-batch is missing", edit("in enumerate(microbatches)",
        "in enumerate(microbatches[:-1])")),
    Mistake("another order", edit(f"        {LAST}",
        f"        if not i:\n            loss_fn(model, microbatch)\n        {LAST}")),
    Mistake("nothing returned", edit("    return mean", "")),
    Mistake("the sum of the losses", edit("return mean", "return mean * tokens")),
    Mistake("a plain number", edit("return mean", "return mean.item()")),
    Mistake("a loss with its graph", edit("loss.detach()", "loss")),
    Mistake("an average in every micro-batch", edit(SENDS, "\n        model.average_gradients()")),
    Mistake("every micro-batch sends", edit(NO_SYNC, "contextlib.nullcontext()")),
    Mistake("no_sync for the last one too", edit(NO_SYNC, "model.no_sync()")),
)  # fmt: skip
