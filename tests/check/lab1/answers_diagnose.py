"""Answers to Lab 1's diagnose: wrong ones, each with the hint that it must get, and right ones."""

import math

import torch
from as_an_answer import as_an_answer, told

from lib.data_parallel.sabotage import diagnose

# right


def by_losses(run):
    """Right: the losses instead of the norms, and numpy-like comparisons by hand."""
    apart = [abs(a / b - 1) for a, b in zip(run.losses, run.baseline_losses, strict=True)]
    if len({tuple(of_ranks) for of_ranks in run.checksums if len(set(of_ranks)) > 1}):
        return "no broadcast"
    if any(m != 2 * (run.world_size - 1) * run.world_size * run.buckets for m in run.messages):
        return "no no_sync"
    if max(apart) < 1e-4:
        return "healthy"
    if run.batches[0] == run.batches[run.steps_per_epoch]:
        return "no set_epoch"
    times = run.gradient_norms[0] / run.baseline_gradient_norms[0]
    return "sum instead of mean" if round(times, 2) == run.world_size else "unequal shards"


def by_elimination(run):
    """Right: tensors, and the sum first."""
    checksums = torch.tensor(run.checksums)  # (steps, N)
    if (checksums != checksums[:, :1]).any():
        return "no broadcast"
    norms = torch.tensor([run.gradient_norms, run.baseline_gradient_norms], dtype=torch.float64)
    ratio = (norms[0] / norms[1])[0].item()
    if run.world_size > 1 and math.isclose(ratio, run.world_size, rel_tol=1e-3):
        return "sum instead of mean"
    if not math.isclose(ratio, 1, rel_tol=1e-3):
        return "unequal shards"
    N = run.world_size
    each_micro_batch = run.microbatches * 2 * (N - 1) * N * run.buckets
    if N > 1 and run.microbatches > 1 and run.messages[-1] == each_micro_batch:
        return "no no_sync"
    epochs = len(run.losses) // run.steps_per_epoch
    seen = {str(run.batches[e * run.steps_per_epoch]) for e in range(epochs)}
    return "no set_epoch" if len(seen) < epochs else "healthy"


# wrong


def asks_for_a_sum_first(run):
    """On one rank the sum over the ranks is the mean."""
    if len(set(run.checksums[0])) > 1:
        return "no broadcast"
    ratio = run.gradient_norms[0] / run.baseline_gradient_norms[0]
    if math.isclose(ratio, run.world_size, rel_tol=1e-3):
        return "sum instead of mean"
    return by_elimination(run)


def healthy(run):
    return "healthy"


def prints_it(run):
    print(diagnose_again(run))


def a_list(run):
    return [diagnose_again(run)]


def capitals(run):
    return diagnose_again(run).capitalize()


def underscores(run):
    return diagnose_again(run).replace(" ", "_")


def sorts_the_log(run):
    for of_ranks in run.checksums:
        of_ranks.sort()
    run.losses.reverse()
    return diagnose_again(run)


def curves_only(run):
    """Everything by the loss: what costs only time is not seen."""
    apart = [abs(a / b - 1) > 1e-4 for a, b in zip(run.losses, run.baseline_losses, strict=True)]
    if not any(apart):
        return "healthy"
    if apart[0]:
        return "no broadcast"
    return diagnose_again(run)


def only_the_last_checksums(run):
    if len(set(run.checksums[-1])) > 1 and run.world_size > 2:
        return "no broadcast"
    return "healthy" if len(set(run.checksums[0])) > 1 else diagnose_again(run)


def norms_before_checksums(run):
    ratio = run.gradient_norms[0] / run.baseline_gradient_norms[0]
    if abs(ratio - 1) > 1e-3 and abs(ratio / run.world_size - 1) > 1e-3:
        return "unequal shards"
    return diagnose_again(run)


def calls_lib(run):
    return diagnose(run)


def steps_differ(run):
    return "no broadcast" if run.checksums[0] != run.checksums[1] else diagnose_again(run)


def any_number_of_messages(run):
    return "no no_sync" if run.messages[0] > 24 else diagnose_again(run)


def different_numbers_of_examples(run):
    found = diagnose_again(run)
    return "unequal shards" if found == "healthy" and len(set(run.examples[0])) > 1 else found


def an_exact_comparison(run):
    found = diagnose_again(run)
    if found == "healthy" and run.losses != run.baseline_losses:
        return "unequal shards"
    return found


def four_ranks(run):
    found = diagnose_again(run)
    return "unequal shards" if found == "sum instead of mean" and run.world_size < 4 else found


def every_difference_is_a_sum(run):
    return diagnose_again(run).replace("unequal shards", "sum instead of mean")


def no_differences(run):
    return diagnose_again(run).replace("unequal shards", "healthy")


def two_epochs_only(run):
    found = diagnose_again(run)
    epochs = len(run.losses) // run.steps_per_epoch
    return "unequal shards" if found == "no set_epoch" and epochs > 2 else found


def the_loss_leaves_in_epoch_one(run):
    """Takes every run that follows its baseline for an epoch for one without set_epoch."""
    found = diagnose_again(run)
    return "no set_epoch" if found == "healthy" and run.microbatches > 2 else found


LAST = []


def the_answer_before(run):
    LAST.append(diagnose_again(run))
    return LAST[-1] if len(LAST) % 21 else "healthy"


def not_written(run):
    raise NotImplementedError


diagnose_again = as_an_answer(diagnose)

NO_CHANGE = "a mistake that costs only time"
WRONG = {
    asks_for_a_sum_first: "a sum over one rank",
    healthy: "weights of the ranks",
    prints_it: "another name",
    a_list: "another name",
    capitals: "another name",
    underscores: "another name",
    sorts_the_log: "arguments changed",
    curves_only: NO_CHANGE,
    only_the_last_checksums: "weights of the ranks",
    norms_before_checksums: "weights of the ranks",
    calls_lib: "called what it builds",
    steps_differ: "weights change as they train",
    any_number_of_messages: "messages of a healthy run",
    different_numbers_of_examples: "unequal shards are no mistake",
    an_exact_comparison: "unequal shards are no mistake",
    four_ranks: "always a factor of 4",
    every_difference_is_a_sum: "more is a sum",
    no_differences: "another gradient",
    two_epochs_only: "an epoch like the first",
    the_loss_leaves_in_epoch_one: "batches of a healthy run",
    the_answer_before: "used again by a later call",
    not_written: "not written",
    **told(
        diagnose,
        ("messages_are_not_counted", NO_CHANGE, ('return "no no_sync"', "pass")),
        ("messages_of_two_ranks", NO_CHANGE, ("max(run.messages) >", "max(run.messages) > 9 *")),
        ("epochs_are_not_compared", "an epoch like the first", ('return "no set_epoch"', "pass")),
        ("a_sum_is_twice", "N times the gradient", ("ratio / N - 1", "ratio / 2 - 1")),
        ("a_wide_tolerance", "another gradient", ("abs(ratio - 1) < 1e-3", "abs(ratio - 1) < 0.9")),
    ),
}

RIGHT = [by_losses, by_elimination, as_an_answer(diagnose)]
