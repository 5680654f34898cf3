"""What a student reads of a hang is about the answer: not how the check's own collectives agree."""

import torch.distributed as dist

from lib.check.exercises import FUNCTIONS
from lib.check.framework import evaluate


def waits_for_the_others_first(parameters, group=None, all_reduce=None):
    if dist.get_rank(group) == 1:
        dist.barrier(group)
    for parameter in parameters:
        all_reduce(parameter.grad, group)


def test_a_deadlock_beside_a_given_collective_names_the_call_of_the_answer():
    outcome = evaluate(FUNCTIONS["average_gradients"], waits_for_the_others_first)
    told = " ".join(" ".join(outcome.lines).split())
    assert "rank 0 waits in a collective that it was given, " in told
    assert "all_reduce(parameter.grad, group)" in told and "rank 1 waits in barrier" in told
    assert not any(word in told for word in ("uint8", "gather #", "broadcast #", "means.given"))
