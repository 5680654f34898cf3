"""Mistakes that are made in accumulate: edits of lib's. No release has this file."""

from lib.check.mistakes import Mistake, edit

DIVIDED, SENDS = "loss_fn(model, microbatch) / len(microbatches)", "\n    model.average_gradients()"
NO_SYNC = "contextlib.nullcontext() if is_last else model.no_sync()"
MISTAKES = (
    Mistake("not averaged over ranks", edit(SENDS, "")),
    Mistake("not divided by k", edit(DIVIDED, "loss_fn(model, microbatch)"),
            "gradients of micro-batches add up. The batch's loss is the mean of theirs: loss / k "
            "before backward."),
    Mistake("divided twice", edit(DIVIDED, f"{DIVIDED} / len(microbatches)"),
            "divide by k once, the loss or the gradient. loss_fn gives the mean over a micro-batch "
            "already."),
    Mistake("divided by the number of ranks too", edit(DIVIDED, f"{DIVIDED} / 4"),
            "average_gradients() divides by the number of ranks. Here divide by k, the number of "
            "micro-batches, only."),
    Mistake("gradients thrown away", edit("        is_last = i",
        "        model.zero_grad()\n        is_last = i"),
            "only the last micro-batch is left. backward adds to .grad: no zero_grad between "
            "micro-batches."),
    Mistake("a micro-batch is missing", edit("in enumerate(microbatches)",
        "in enumerate(microbatches[:-1])")),
    Mistake("nothing returned", edit("    return total", "")),
    Mistake("the sum of the losses", edit("return total", "return total * len(microbatches)")),
    Mistake("a plain number", edit("return total", "return total.item()")),
    Mistake("a loss with its graph", edit("loss.detach()", "loss")),
    Mistake("an average in every micro-batch", edit(SENDS, "\n        model.average_gradients()")),
    Mistake("every micro-batch sends", edit(NO_SYNC, "contextlib.nullcontext()")),
    Mistake("no_sync for the last one too", edit(NO_SYNC, "model.no_sync()")),
)  # fmt: skip
