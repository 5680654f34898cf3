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


def fits_with_room(job, usable=66e9):
    return next((r for r in remedies(job) if peak(job, *r) < usable), None)


def ignores_usable(job, usable=66e9):
    """The default of `usable`, whatever is asked."""
    return first_that_fits(job)


def in_gibibytes(job, usable=66e9):
    return first_that_fits(job, usable * 2**30 / 1e9)


def in_order(*axes):
    """Tries the remedies in another order; axes: of (offload, checkpointing, micro-batch, stage),
    the slowest first."""

    def answer(job, usable=66e9):
        ranked = sorted(remedies(job), key=lambda r: [axis(r) for axis in axes])
        return next((r for r in ranked if peak(job, *r) <= usable), None)

    return answer


OFFLOAD, CHECKPOINTING = (lambda r: r.offload), (lambda r: r.checkpointing)
LARGEST, STAGE = (lambda r: -r.micro_batch), (lambda r: r.stage)
stage_before_micro_batch = in_order(OFFLOAD, CHECKPOINTING, STAGE, LARGEST)
offload_before_checkpointing = in_order(CHECKPOINTING, OFFLOAD, LARGEST, STAGE)
smallest_micro_batch = in_order(OFFLOAD, CHECKPOINTING, lambda r: r.micro_batch, STAGE)
highest_stage = in_order(OFFLOAD, CHECKPOINTING, LARGEST, lambda r: -r.stage)
micro_batch_before_checkpointing = in_order(OFFLOAD, LARGEST, CHECKPOINTING, STAGE)


def with_terms(state=None, units=None, kept=None, logits=None, stages=(1, 2, 3)):
    """Another formula for one of the peak's terms."""

    def answer(job, usable=66e9):
        def peak(stage, checkpointing, offload, micro_batch):
            N, n, tokens = job.gpus, job.parameters, micro_batch * job.seq
            layer, words = 34 * tokens * job.hidden, 6 * tokens * job.vocab
            right = n * (2 / (N if stage == 3 else 1) + 2 / (N if stage >= 2 else 1))
            right += 0 if offload else 12 * n / N
            total = state(job, stage, offload) if state else right
            if units:
                total += units(job, stage)
            elif stage == 3:
                total += 8 * n / job.layers
            if kept:
                total += kept(job, checkpointing, tokens)
            else:
                total += (2 * tokens * job.hidden if checkpointing else layer) * job.layers
            if logits:
                return total + logits(job, checkpointing, tokens)
            return total + (max(layer, words) if checkpointing else words)

        tried = (r for r in remedies(job) if r.stage in stages)
        return next((r for r in tried if peak(*r) <= usable), None)

    return answer


gradients_sharded_at_stage_1 = with_terms(
    state=lambda job, stage, offload: (
        job.parameters
        * (2 / (job.gpus if stage == 3 else 1) + 2 / job.gpus + (0 if offload else 12 / job.gpus))
    )
)
optimizer_replicated = with_terms(
    state=lambda job, stage, offload: (
        job.parameters
        * (
            2 / (job.gpus if stage == 3 else 1)
            + 2 / (job.gpus if stage >= 2 else 1)
            + (0 if offload else 12)
        )
    )
)
offload_moves_nothing = with_terms(
    state=lambda job, stage, offload: (
        job.parameters
        * (
            2 / (job.gpus if stage == 3 else 1)
            + 2 / (job.gpus if stage >= 2 else 1)
            + 12 / job.gpus
        )
    )
)
shards_rounded_down = with_terms(
    state=lambda job, stage, offload: (
        2 * (job.parameters // (job.gpus if stage == 3 else 1))
        + 2 * (job.parameters // (job.gpus if stage >= 2 else 1))
        + (0 if offload else 12 * (job.parameters // job.gpus))
    )
)
units_at_every_stage = with_terms(units=lambda job, stage: 8 * job.parameters / job.layers)
one_unit = with_terms(units=lambda job, stage: 4 * job.parameters / job.layers if stage == 3 else 0)
no_units = with_terms(units=lambda job, stage: 0)
one_layer = with_terms(kept=lambda job, checkpointing, tokens: 34 * tokens * job.hidden)
one_sequence = with_terms(
    kept=lambda job, checkpointing, tokens: (2 if checkpointing else 34)
    * job.seq * job.hidden * job.layers
)  # fmt: skip
inputs_in_four_bytes = with_terms(
    kept=lambda job, checkpointing, tokens: (4 if checkpointing else 34)
    * tokens * job.hidden * job.layers
)  # fmt: skip
no_logits = with_terms(logits=lambda job, checkpointing, tokens: 0)
four_bytes_a_logit = with_terms(
    logits=lambda job, checkpointing, tokens: max(
        4 * tokens * job.vocab, 34 * tokens * job.hidden if checkpointing else 0
    )
)
layer_and_logits = with_terms(
    logits=lambda job, checkpointing, tokens: (
        6 * tokens * job.vocab + (34 * tokens * job.hidden if checkpointing else 0)
    )
)
up_to_stage_2 = with_terms(stages=(1, 2))
never_stage_1 = with_terms(stages=(2, 3))
for name, answer in list(globals().items()):
    if callable(answer) and getattr(answer, "__name__", "") == "answer":
        answer.__name__ = name
del name, answer


def not_written(job, usable=66e9):
    raise NotImplementedError


RIGHT = [first_that_fits, cheapest_of_all, as_an_answer(clinic.choose_remedy)]


def swaps_fields(job, usable=66e9):
    found = first_that_fits(job, usable)
    return found and found._replace(checkpointing=found.offload, offload=found.checkpointing)


def changes_the_job(job, usable=66e9):
    while job.micro_batch:
        for stage in (1, 2, 3):
            if peak(job, stage, False, False, job.micro_batch) <= usable:
                return Remedy(stage, False, False, job.micro_batch)
        job.micro_batch //= 2
    return None


def strictly_less(job, usable=66e9):
    return next((r for r in remedies(job) if peak(job, *r) < usable), None)


WRONG = {
    swaps_fields: "too dear",
    changes_the_job: "a Job is a named tuple",
    strictly_less: "exactly what is usable",
    a_dict: "not a Remedy",
    asks_libs: "called what it builds",
    never_none: "None too seldom",
    gives_up: "None too often",
    a_reserve: "too dear",
    eight_bytes: "it does not fit",
    rounds_up: "another micro-batch",
    not_written: "not written",
    fits_with_room: "too dear",
    ignores_usable: "usable is not looked at",
    in_gibibytes: "GiB for GB",
    stage_before_micro_batch: "stages before micro-batches",
    offload_before_checkpointing: "checkpointing after offload",
    smallest_micro_batch: "too dear",
    highest_stage: "only stage 3",
    micro_batch_before_checkpointing: "the micro-batch is left as it is",
    gradients_sharded_at_stage_1: "it does not fit",
    optimizer_replicated: "too dear",
    offload_moves_nothing: "offload does nothing",
    shards_rounded_down: "rounded down",
    units_at_every_stage: "units at every stage",
    one_unit: "no unsharded units",
    no_units: "no unsharded units",
    one_layer: "one layer's activations",
    one_sequence: "it does not fit",
    inputs_in_four_bytes: "a checkpoint in fp32",
    no_logits: "it does not fit",
    four_bytes_a_logit: "it does not fit",
    layer_and_logits: "logits and layer at the same time",
    up_to_stage_2: "no stage 3",
    never_stage_1: "too dear",
}
