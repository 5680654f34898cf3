"""What a rank needs before it can do anything else: a backend, a device, and an error instead of a
hang where torch would wait forever.

choice.py          decides which backend and device a rank gets, and joins the process group
gpus.py            finds out which GPUs of this machine work
peers.py           raises at once if a rank communicates with a rank that does not exist, and counts
                   messages
keyboard.py        raises at once if breakpoint() is called where no person can type
torch_private.py   contains everything that lib uses of torch's private interface
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
