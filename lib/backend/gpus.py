"""Which GPUs of this machine work: each computes a small matmul, once, in a process of its own.

    counted by the driver  tried here                             used
    0 1 2 3                0 ok, 1 ok, 2 "no kernel image", 3 ok  0 1, and why not the others

`torch.cuda.device_count()` asks the driver's management library, and proves nothing: a driver too
old for this torch, a GPU that this torch was not built for and one that another program has taken
for itself are all counted. The trial runs in a process of its own, because a notebook that has
opened a GPU keeps hundreds of megabytes of it, and because the trial may crash. Rank r gets GPU r,
so the first GPU that does not work ends the count.
"""

import functools
import json
import signal
import subprocess
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

SECONDS = 120  # for torch to be imported, and a context to be opened on each GPU
TRIAL = """
import json, torch
for index in range(torch.cuda.device_count()):
    name, wrong, bfloat16 = f"GPU {index}", "", True
    try:
        name = torch.cuda.get_device_name(index)
        bfloat16 = torch.cuda.get_device_capability(index) >= (8, 0)
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        total = (ones @ ones).sum().item()
        if total != 64.0**3:
            wrong = f"a product came out as {total}"
    except Exception as error:
        wrong = (str(error).splitlines() or [type(error).__name__])[0]
    print(json.dumps([name, wrong, bfloat16]), flush=True)
"""


@dataclass(frozen=True)
class Gpus:
    """names: of the GPUs that work, from GPU 0 on. why: what is wrong with the next one, or with
    all; "" if nothing.

    bfloat16: each of them has units for it (compute capability 8.0 and above: A100, and not T4 or
    V100).
    """

    names: tuple[str, ...] = ()
    why: str = ""
    bfloat16: bool = True

    def __str__(self):
        kinds = [f"{self.names.count(name)} x {name}" for name in dict.fromkeys(self.names)]
        return ", ".join(kinds) or "no GPU"


@functools.cache
def working() -> Gpus:
    """The GPUs that work, tried at the first call: seconds where there are any, nothing
    where there are none."""
    counted = torch.cuda.device_count()
    if not counted:
        return Gpus()
    if not dist.is_nccl_available():
        return Gpus(why=f"this torch ({torch.__version__}) was built without NCCL")
    return tried([sys.executable, "-c", TRIAL], counted)


def tried(command: list[str], counted: int, seconds: float = SECONDS) -> Gpus:
    """What `command` says of `counted` GPUs: a line [name, what is wrong, has it bfloat16] for
    each, in order."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        printed, end = done.stdout, _end(done.returncode)
    except subprocess.TimeoutExpired as late:
        printed, end = (late.stdout or b"").decode(), f"did not answer within {seconds:g} s"
    names, bfloat16 = [], True
    for line in printed.splitlines():
        name, wrong, has_it = json.loads(line)
        if wrong:
            hide = "" if counted == 1 else ". CUDA_VISIBLE_DEVICES chooses others"
            return Gpus(
                tuple(names), f"GPU {len(names)} ({name}) does not work: {wrong}{hide}", bfloat16
            )
        names.append(name)
        bfloat16 = bfloat16 and has_it
    if len(names) < counted:
        return Gpus(
            tuple(names), f"GPU {len(names)} does not work: a trial process {end}", bfloat16
        )
    return Gpus(tuple(names), bfloat16=bfloat16)


def _end(code):
    return (
        f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
    )
