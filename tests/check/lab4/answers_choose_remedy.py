"""Answers to Lab 4's choose_remedy: wrong ones, each with the hint that it must get, and right
ones."""

from itertools import product

from as_an_answer import as_an_answer

from lib.cost import clinic
from lib.cost.clinic import Remedy


def peak(job, stage, checkpointing, offload, micro_batch):
    N, tokens = job.gpus, micro_batch * job.seq
    state = job.parameters * (2 / (N if stage == 3 else 1) + 2 / (N if stage >= 2 else 1))
    if not offload:
        state += 12 * job.parameters / N
    if stage == 3:
        state += 8 * job.parameters / job.layers
    layer, logits = 34 * tokens * job.hidden, 6 * tokens * job.vocab
    if checkpointing:
        return state + 2 * tokens * job.hidden * job.layers + max(layer, logits)
    return state + job.layers * layer + logits


def halves(n):
    while n:
        yield n
        n //= 2


def remedies(job):
    for offload, checkpointing in product((False, True), (False, True)):
        for micro_batch in halves(job.micro_batch):
            for stage in (1, 2, 3):
                yield Remedy(stage, checkpointing, offload, micro_batch)


# right


def first_that_fits(job, usable=66e9):
    return next((r for r in remedies(job) if peak(job, *r) <= usable), None)


def cheapest_of_all(job, usable=66e9):
    found = [r for r in remedies(job) if peak(job, *r) <= usable]
    return min(found, key=lambda r: (r[2], r[1], -r[3], r[0]), default=None)


# wrong


def a_dict(job, usable=66e9):
    found = first_that_fits(job, usable)
    return found and found._asdict()


def asks_libs(job, usable=66e9):
    return clinic.choose_remedy(job, usable)


def never_none(job, usable=66e9):
    return first_that_fits(job, usable) or Remedy(3, True, True, 1)


def gives_up(job, usable=66e9):
    tried = (r for r in remedies(job) if not (r.offload or r.checkpointing))
    return next((r for r in tried if peak(job, *r) <= usable), None)


def a_reserve(job, usable=66e9):
    return first_that_fits(job, 0.8 * usable)


def eight_bytes(job, usable=66e9):
    """Momentum and variance, no masters."""
    less = lambda r: 0 if r.offload else 4 * job.parameters / job.gpus
    return next((r for r in remedies(job) if peak(job, *r) - less(r) <= usable), None)


def rounds_up(job, usable=66e9):
    """Micro-batches of 7, 4, 2, 1."""
    for offload, checkpointing in product((False, True), repeat=2):
        micro_batch, tried = job.micro_batch, set()
        while micro_batch not in tried:
            tried.add(micro_batch)
            for stage in (1, 2, 3):
                if peak(job, stage, checkpointing, offload, micro_batch) <= usable:
                    return Remedy(stage, checkpointing, offload, micro_batch)
            micro_batch = -(-micro_batch // 2)
    return None


def not_written(job, usable=66e9):
    raise NotImplementedError


RIGHT = [first_that_fits, cheapest_of_all, as_an_answer(clinic.choose_remedy)]
WRONG = {
    a_dict: "not a Remedy",
    asks_libs: "called lib's",
    never_none: "None too seldom",
    gives_up: "None too often",
    a_reserve: "too dear",
    eight_bytes: "it does not fit",
    rounds_up: "another micro-batch",
    not_written: "not written",
}
