"""Finds out which GPUs of this machine work by letting each of them compute a small matmul.

    counted by the driver  tried here                             used
    0 1 2 3                0 ok, 1 ok, 2 "no kernel image", 3 ok  0 1, and why not the others

`torch.cuda.device_count()` only asks the driver's management library, so it also counts GPUs that
do not work, for example because the driver is too old for this torch, because this torch was not
built for the GPU, or because another program has reserved it. The trial runs in a separate process,
because it may crash, and because a notebook that has opened a GPU occupies hundreds of megabytes of
its memory. Rank r gets GPU r, so the count ends at the first GPU that does not work.
"""

import functools
import json
import signal
import subprocess
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

SECONDS = 120  # enough to import torch, and to open a context on each GPU
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
    """The GPUs that work. names: one for each, beginning with GPU 0. why: what is wrong with the
    next GPU, or with all of them; "" if nothing. bfloat16: whether each of them has bfloat16 units,
    as GPUs of compute capability 8.0 and above have (A100, but not T4 or V100).
    """

    names: tuple[str, ...] = ()
    why: str = ""
    bfloat16: bool = True

    def __str__(self):
        kinds = [f"{self.names.count(name)} x {name}" for name in dict.fromkeys(self.names)]
        return ", ".join(kinds) or "no GPU"


@functools.cache
def working() -> Gpus:
    """The GPUs that work. The first call tests them, which takes seconds if the machine has any;
    later calls return the same result."""
    counted = torch.cuda.device_count()
    if not counted:
        return Gpus()
    if not dist.is_nccl_available():
        return Gpus(why=f"this torch ({torch.__version__}) was built without NCCL")
    return tried([sys.executable, "-c", TRIAL], counted)


def tried(command: list[str], counted: int, seconds: float = SECONDS) -> Gpus:
    """Run the trial `command`, which prints a JSON line [name, what is wrong, whether it has
    bfloat16 units] for each of `counted` GPUs in order, and return its result. The trial is ended
    after `seconds`; a GPU without a line does not work."""
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
