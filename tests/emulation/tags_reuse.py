"""Run after run on ranks with tagged GPUs: what one leaves there is put back, or its ranks are not
used again.

a run   what it leaves                the next run   is on the same processes, and must find nothing
        ... that cannot be put back                  is on others, and `warm.reasons` says why
"""

import os
import threading
import time

import torch
import torch.nn.functional as F

from lib import backend, launch
from lib.launch import warm
from tests.emulation.tags_modes import WORKSPACE, Dispatch

NOT_RESTED = "a rank that did not rest"


def a_product():
    F.linear(torch.ones(2, 2), torch.ones(2, 2)).sum().item()


def a_product_whose_workspace_stays():
    torch._C._cuda_clearCublasWorkspaces = lambda: None
    a_product()


def other_settings():
    torch.cuda.set_device(7)
    torch.cuda.set_stream(torch.cuda.Stream())
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)


def settings_are_its_own():
    assert (
        backend.device().index == int(os.environ["LOCAL_RANK"])
        and torch.ones(1).device == backend.device()
    )
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    assert (
        not torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.float16
    )


def work_that_does_not_end():
    Dispatch.idle.clear()


def a_thread_of_cpp_that_python_knows():
    """As autograd's, where a hook has asked which thread it is on."""
    import _thread

    asked, leave = threading.Event(), threading.Event()
    _thread.start_new_thread(lambda: (threading.current_thread(), asked.set(), leave.wait()), ())
    asked.wait()


def no_gpu():
    assert not torch.cuda.is_available() and backend.device().type == "cpu", (
        "a rank on gloo sees the GPUs"
    )


# name -> (backend, runs, one after the other, why the ranks are not used again; "" if they must be)
CASES = {
    "a product leaves its workspace": ("nccl", [a_product, a_product, a_product], ""),
    "a workspace that is not cleared": (
        "nccl",
        [a_product_whose_workspace_stays, a_product],
        f"{WORKSPACE} bytes on",
    ),
    "another device, stream and autocast": ("nccl", [other_settings, settings_are_its_own], ""),
    "a thread of C++ that Python knows": (
        "nccl",
        [a_thread_of_cpp_that_python_knows, a_product],
        "",
    ),
    "work that does not end": ("nccl", [work_that_does_not_end, a_product], NOT_RESTED),
    "ranks on gloo see no GPU": ("gloo", [no_gpu, no_gpu], ""),
}


def run(names):
    warm.SETTLE = 5.0
    for name in names or CASES:
        began = time.monotonic()
        yield name, _problem(*CASES[name]), time.monotonic() - began


def _problem(chosen, runs, why_not):
    """What is wrong; "" if nothing."""
    warm.end_all()
    warm.reasons.clear()
    try:
        pids = [launch.capture(_ran, each, nproc=2, backend=chosen, ledger=False) for each in runs]
    except launch.RankError as error:
        return str(error)
    used_again, said = all(list(each) == list(pids[0]) for each in pids), "; ".join(warm.reasons)
    if why_not:
        return (
            ""
            if not used_again and why_not in said
            else f"used again: {used_again}, because of {said!r}"
        )
    return "" if used_again and not said else f"other ranks, because of {said!r}"


def _ran(function):
    function()
    return os.getpid()
