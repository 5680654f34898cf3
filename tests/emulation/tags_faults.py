"""Mistakes with devices, each in a few lines, and beside it the same rightly written: the first
must be named.

They run on the ranks of one launch: what each function raises is kept, and looked at in the parent.
"""

import copy
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import launch

MIXED = "Expected all tensors to be on the same device"
FAULTS = {}  # name -> (words of the error, function)


def fault(words):
    """A decorator: the function takes True to make the mistake, and False
    to do the same rightly."""

    def noted(function):
        FAULTS[function.__name__.replace("_", " ")] = words, function
        return function

    return noted


@fault("No backend type associated with device type cpu")
def a_CPU_tensor_in_a_collective(wrong):
    flag = torch.tensor([1.0], device="cpu" if wrong else None)
    dist.all_reduce(flag)


@fault(MIXED)
def two_devices_in_arithmetic(wrong):
    mean = torch.from_numpy(np.zeros(3, dtype=np.float32))
    torch.ones(3) - (mean if wrong else mean.to("cuda"))


@fault(MIXED)
def two_devices_in_cat(wrong):
    torch.cat([torch.ones(2), torch.ones(2, device="cpu" if wrong else "cuda")])


@fault(MIXED)
def two_devices_in_where(wrong):
    torch.where(torch.ones(2, device="cpu" if wrong else "cuda") > 0, torch.ones(2), 0.0)


@fault("indices should be either on cpu or on the same device")
def a_CPU_tensor_indexed_from_the_GPU(wrong):
    table, rows = torch.zeros(4, device="cpu"), torch.tensor([1, 2])
    table[rows if wrong else rows.cpu()]


@fault(MIXED)
def tokens_left_on_the_CPU(wrong):
    tokens = torch.tensor([1, 2], device="cpu")
    F.embedding(tokens if wrong else tokens.cuda(), torch.zeros(4, 3))


@fault("Expected a 'cuda' device type for generator but found 'cpu'")
def a_CPU_generator_for_the_default_device(wrong):
    torch.randn(3, generator=torch.Generator("cpu" if wrong else "cuda").manual_seed(0))


@fault("can't convert cuda:")
def numpy_of_a_GPU_tensor(wrong):
    x = torch.ones(3)
    np.asarray(x if wrong else x.cpu())


@fault(MIXED)
def a_bare_factory_in_a_hook(wrong):
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda grad: grad + (torch.zeros(3) if wrong else torch.zeros_like(grad)))
    weight.sum().backward()


@fault(MIXED)
def a_bare_factory_in_backward(wrong):
    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy * torch.tensor([1.0, 0.0], device=None if wrong else dy.device)

    Masked.apply(torch.ones(2, requires_grad=True)).sum().backward()


@fault(MIXED)
def weights_kept_on_the_CPU(wrong):
    layer = nn.Linear(2, 2)
    before = {
        name: p.detach().clone() if not wrong else p.detach().cpu()
        for name, p in layer.named_parameters()
    }
    sum((p - before[name]).abs().sum() for name, p in layer.named_parameters())


@fault(MIXED)
def a_state_put_into_place_by_hand(wrong):
    layer = nn.Linear(2, 2)
    state = {name: t.cpu() for name, t in layer.state_dict().items()}  # as a checkpoint loads them
    for name, p in layer.named_parameters():
        if wrong:
            p.data = state[name]
        else:
            p.data.copy_(state[name])
    layer(torch.ones(2))


@fault(MIXED)
def moments_of_the_optimizer_left_on_the_CPU(wrong):
    layer = nn.Linear(2, 2)
    adam = torch.optim.AdamW(layer.parameters())
    for p in layer.parameters():
        zeros = torch.zeros_like(p, device="cpu" if wrong else p.device)
        adam.state[p] = {
            "step": torch.zeros((), device="cpu"),
            "exp_avg": zeros,
            "exp_avg_sq": copy.deepcopy(zeros),
        }
    layer(torch.ones(2)).sum().backward()
    adam.step()


@fault("dropout drew other numbers")
def the_random_state_of_the_CPU_alone(wrong):
    x, on_cpu, on_gpu = torch.ones(100), torch.get_rng_state(), torch.cuda.get_rng_state()
    first = F.dropout(x, 0.5)
    torch.set_rng_state(on_cpu)
    if not wrong:
        torch.cuda.set_rng_state(on_gpu)
    if not torch.equal(F.dropout(x, 0.5), first):
        raise RuntimeError("dropout drew other numbers")


@fault("would open a context on cuda:")
def fork_rng_of_every_GPU(wrong):
    with torch.random.fork_rng() if wrong else torch.random.fork_rng([torch.cuda.current_device()]):
        torch.manual_seed(0)


@fault(MIXED)
def the_first_GPU_on_every_rank(wrong):
    x = torch.ones(2, device="cuda:0" if wrong else "cuda")
    if dist.get_rank() == 1:
        x + torch.ones(2)
    elif wrong:
        raise RuntimeError(MIXED)  # right on rank 0, as so often


@fault("is on cpu")
def a_CPU_tensor_sent(wrong):
    from lib.collectives import p2p

    other = 1 - dist.get_rank()
    p2p.send_recv(torch.ones(2, device="cpu" if wrong else None), other, other)


def run(names):
    began = time.monotonic()
    faults = {name: FAULTS[name] for name in names or FAULTS}
    functions = {name: function for name, (_, function) in faults.items()}
    results = launch.capture(_raised_by, functions, nproc=2, backend="nccl", ledger=False)
    seconds = (time.monotonic() - began) / len(faults)
    for name, (words, _) in faults.items():
        problems = []
        for rank, (wrong, right) in enumerate(result[name] for result in results):
            if words not in wrong:
                problems.append(
                    f"rank {rank}: the mistake gave {wrong or 'no error'!r}, not {words!r}"
                )
            if right:
                problems.append(f"rank {rank}: rightly written, it gave {right!r}")
        yield name, "\n".join(problems), seconds


def _raised_by(functions):
    """On a rank: {name: (what the mistake raises, what the right way raises)}."""
    seen = {}
    for name, function in functions.items():
        seen[name] = tuple(_error(function, wrong) for wrong in (True, False))
    return seen


def _error(function, wrong):
    try:
        function(wrong)
    except Exception as error:
        return str(error)
    return ""
