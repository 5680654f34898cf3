"""Known mistakes of unequal_shards."""

from mistakes import Mistake, edit

SUM, N = "    all_reduce(total, group)\n", "dist.get_world_size(group)"
LOSS = f"return loss_sum * ({N} / total.item())"
HAS_ONE, NOBODY = "[0 if batch is None else 1]", "if ranks_with_a_batch == 0:\n            return\n"
ASK = "        all_reduce(ranks_with_a_batch, group)\n"
NEXT, ITER, TURN = "next(batches, None)", "    batches = iter(batches)\n", "yield batch"

MISTAKES = {
    "weighted_loss": (
        Mistake("a mean of means", edit(LOSS, "return loss_sum / count")),
        Mistake("N forgotten", edit(LOSS, "return loss_sum / total.item()")),
        Mistake("another number of examples", edit("dtype=torch.float64", "dtype=loss_sum.dtype")),
        Mistake("another number of examples", edit("torch.tensor([count]",
            "torch.tensor([max(count, 1)]")),
        Mistake("weighted twice", edit(LOSS, "return loss_sum * count / total.item()")),
        Mistake("weighted twice", edit(LOSS, f"return loss_sum * count * {N} / total.item()")),
        Mistake(
            "its own count for the total",
            edit(SUM, "    all_reduce(total.clone(), group)\n")
            .then("if total == 0", "if total < 0")
            .then(LOSS, f"return loss_sum * {N} / total.item()"),
        ),
        Mistake("the world's size, not the group's", edit(LOSS, LOSS.replace("(group)", "()"))),
        Mistake("the counts averaged", edit(LOSS, f"return loss_sum * {N} / (total.item() / {N})")),
        Mistake("counts not used", edit(LOSS, "return loss_sum")),
        Mistake("counts not used", edit(LOSS, f"return loss_sum / {N}")),
        Mistake("cut from the graph", edit(LOSS, LOSS.replace("loss_sum", "loss_sum.detach()"))),
        Mistake("a rank without examples left out",
                edit(SUM, f"    if count == 0:\n        return loss_sum\n{SUM}")),
        Mistake("the group is not passed on", edit(SUM, "    all_reduce(total)\n")),
        Mistake("not what it was given", edit(SUM, "    dist.all_reduce(total, group=group)\n")),
        Mistake("no loss", edit(LOSS, "loss_sum * 1")),
        Mistake("no loss", edit(LOSS, "return loss_sum.item()")),
        Mistake("more than the count", edit(SUM,
            f"{SUM}    all_reduce(loss_sum.detach().clone(), group)\n")),
        Mistake("another shape or dtype", edit(LOSS, f"return loss_sum * {N} / total")),
        Mistake("another shape or dtype", edit(LOSS, LOSS.replace("loss_sum",
            "loss_sum.double()"))),
        Mistake("rounded on the way", edit("dtype=torch.float64", "dtype=torch.bfloat16")),
    ),
    "until_all_done": (
        Mistake("stops with the first", edit("ranks_with_a_batch == 0",
            f"ranks_with_a_batch < {N}")),
        Mistake("not all take part", edit("ranks_with_a_batch == 0", "batch is None")),
        Mistake("the group is not passed on", edit(ASK, ASK.replace(", group", ""))),
        Mistake("a list in mind", edit(ITER, "")),
        Mistake("the truth of a batch", edit(HAS_ONE, "[1 if batch else 0]")),
        Mistake("the truth of a batch", edit(HAS_ONE,
            "[int(batch is not None and len(batch) > 0)]")),
        Mistake("next at the end", edit(NEXT, "next(batches)")),
        Mistake("other turns", edit("        yield batch", "        yield batch\n" * 2)),
        Mistake("nothing yielded", edit("        yield batch", "        batch")),
        Mistake("one turn too many", edit(f"{NOBODY}        {TURN}", f"{TURN}\n        {NOBODY}")),
        Mistake("one turn too many", edit(NOBODY, "pass\n")),
        Mistake(
            "not None",
            edit("        yield batch",
                 "        last = last if batch is None else batch\n        yield last").then(
                ITER, "    batches, last = iter(batches), torch.zeros(2)\n"
            ),
        ),
        Mistake("batches lost", edit("yield batch", f"yield {NEXT}")),
        Mistake("fetched too early", edit(ITER, "    batches = iter(list(batches))\n")),
        Mistake("not what it was given", edit(ASK, ASK.replace("all", "dist.all").replace(", ",
            ", group="))),
        Mistake("more than one number",
                edit(HAS_ONE, f"{HAS_ONE} * 2").then("if ranks_with_a_batch",
                    "if ranks_with_a_batch[0]")),
    ),
}  # fmt: skip
