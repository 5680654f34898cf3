"""The three steps of OverlappedDataParallel, each tried alone on two ranks before the graded check.

Each trial runs the student's class as it is, using the names that the exercise gives (`buckets`,
`gradient_is_ready`). It prints what happened, or fails and says what is right. If the step has not
been written yet, it says so.
"""

import time

import torch
import torch.distributed as dist
from torch import nn

from lib import collectives, launch


def tried(step, Wrapper):
    """Run step(Wrapper) on two ranks, and print what it returns on rank 0, or that it has not been
    written yet."""
    try:
        print(launch.run(step, Wrapper, nproc=2, ledger=False)[0])
    except launch.RankError as error:
        if "NotImplementedError" not in str(error):
            raise
        print("not written yet: write this step above, run its cell, and then this one again")


def hooks(Wrapper, make_model, loss_of):
    """Step 1: backward calls the hook once for each parameter."""
    calls, model = [], make_model()

    class Counting(Wrapper):
        def gradient_is_ready(self, parameter):
            calls.append(id(parameter))

    loss_of(Counting(model)).backward()
    trained = [id(p) for p in model.parameters()]
    assert sorted(calls) == sorted(trained), (
        f"{len(calls)} calls for {len(trained)} parameters: one each is right"
    )
    return (
        f"step 1: {len(calls)} calls for {len(trained)} parameters; the first for parameter "
        f"{trained.index(calls[0])} of 0 to {len(trained) - 1}"
    )


def in_turn(Wrapper):
    """Step 2: buckets start in order. There are three, of 16, 9 and 4 elements, and the second is
    ready first."""
    sent, counts = [], []
    layers = nn.ModuleList(nn.Linear(k, k, bias=False) for k in (2, 3, 4))  # ready in reverse
    model = Wrapper(layers, all_reduce=lambda flat, group: sent.append(len(flat)), capacity=1)
    bucket = [parameters[0] for parameters in model.buckets]
    for i in (1, 0, 2):
        bucket[i].grad = torch.ones_like(bucket[i])
        model.gradient_is_ready(bucket[i])
        collectives.start(lambda: None).wait()  # runs after everything that was started before
        counts.append(len(sent))
    assert counts == [0, 2, 3], f"started after each call: {counts}; right is [0, 2, 3]"
    assert sent == [16, 9, 4], f"elements, in the order of starting: {sent}; right is [16, 9, 4]"
    return (
        f"step 2: buckets 1, 0, 2 became ready; started after each: {counts}; elements in "
        f"each: {sent}"
    )


def waits(Wrapper):
    """Step 3: average_gradients waits. The all-reduce takes more than 20 ms, rank 1 does not use
    the second layer, and there are two training steps."""

    def slow(flat, group):
        time.sleep(0.02)
        collectives.ring_all_reduce(flat, group)

    rank, x = dist.get_rank(), torch.ones(1, 3)
    model = Wrapper(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), all_reduce=slow, capacity=1)
    for step in range(2):
        model.zero_grad()
        used = model.module[: 2 - rank]  # rank 1 uses only the first layer
        ((rank + 1) * sum(layer(x).sum() for layer in used)).backward()
        model.average_gradients()
        means = [p.grad.unique().tolist() for p in model.parameters()]
        assert means == [[1.5], [1.5], [0.5], [0.5]], (
            f"step {step}: {means}; right is (1 + 2) / 2 and (1 + 0) / 2"
        )
    return "step 3: the means are there when average_gradients returns, the unused layer's too"
