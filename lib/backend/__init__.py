"""What a rank needs before anything else: a backend, a device, and partners that exist.

choice.py          which backend and device a rank gets, and how it joins the process group
gpus.py            which GPUs of this machine work
peers.py           a partner that does not exist is an error at once
keyboard.py        where no one can type, breakpoint() is an error at once
torch_private.py   everything that lib uses of torch's private interface
"""

from lib.backend.choice import (
    NAMES,
    ON_A_GPU,
    OVER_PCIE,
    WITHOUT_NVLINK,
    Choice,
    Collective,
    Group,
    Op,
    choose,
    device,
    join,
    loopback,
    meet,
    stream_ordered,
    synchronize,
    synchronize_stream,
    unless_set,
)

__all__ = [
    "NAMES",
    "ON_A_GPU",
    "OVER_PCIE",
    "WITHOUT_NVLINK",
    "Choice",
    "Collective",
    "Group",
    "Op",
    "choose",
    "device",
    "join",
    "loopback",
    "meet",
    "stream_ordered",
    "synchronize",
    "synchronize_stream",
    "unless_set",
]
