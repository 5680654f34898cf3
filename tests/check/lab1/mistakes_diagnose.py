"""Known mistakes of diagnose, each named after its cause."""

from mistakes import Mistake, edit

MISTAKES = (
    Mistake("rank 0 and rank 1 only", edit("len(set(of_ranks)) > 1", "of_ranks[0] != of_ranks[1]")),
    Mistake("messages of one rank",
            edit("2 * (N - 1) * N * run.buckets", "2 * (N - 1) * run.buckets")),
    Mistake("messages of one bucket", edit(" * run.buckets", "")),
    Mistake("micro-batches are enough",
            edit("max(run.messages) > 2 * (N - 1) * N * run.buckets", "run.microbatches > 1")),
    Mistake("an epoch like the first", edit("run.batches[:epoch] == run.batches[epoch : ",
        "run.batches[:1] == run.batches[1:2] or run.batches[:epoch] == run.batches[epoch : 0 * ")),
    Mistake("batches of a healthy run", edit(
        "run.batches[:epoch] == run.batches[epoch : 2 * epoch]",
        "run.batches[0][0] == run.batches[epoch][0]")),
    Mistake("exactly the baseline", edit("abs(ratio - 1) < 1e-3", "ratio == 1")),
    Mistake("always a factor of 4", edit("abs(ratio / N - 1) < 1e-3", "abs(ratio / 4 - 1) < 1e-3")),
    Mistake("more is a sum", edit("abs(ratio / N - 1) < 1e-3", "ratio > 1")),
    Mistake("unequal numbers are enough", edit('"sum instead of mean" if abs(ratio / N - 1) < 1e-3',
        '"sum instead of mean" if len(set(run.examples[0])) == 1')),
    Mistake("another gradient", edit("abs(ratio - 1) < 1e-3", "abs(ratio - 1) < 0.05")),
)  # fmt: skip
