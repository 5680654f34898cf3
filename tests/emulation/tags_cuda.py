"""What torch answers on a process that has tagged devices: torch.cuda as on a machine with 8 GPUs,
and c10d as on NCCL.

torch.cuda   devices, streams and events that have always finished, the state of the GPU's random
             numbers, memory of which nothing is counted but the workspace that cuBLAS keeps from
             the first product on
backward     hooks and custom backwards see the tags, and no default device: torch suspends it there
new threads  see the tags; their current GPU is 0 and they have no default device
torch.save   a tagged storage is saved as cuda:N, and loaded there unless map_location says
             otherwise
c10d         gloo carries the messages and says that it is nccl; tensors on the CPU are refused
"""

import contextlib
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.emulation import tags
from tests.emulation.tags import CPU, Generator, current, full, here
from tests.emulation.tags_modes import Dispatch, Placement

GPUS = 8
# the second: p2p itself, given as an answer
STAGES = os.path.join("lib", "collectives", "p2p.py"), "an_answer.py"
initialised = False


def install():
    """Give this process tagged devices. To be called before it joins its process group."""
    _answer_for_cuda()
    _answer_for_random_numbers()
    _see_backward_and_threads()
    torch.serialization.register_package(5, _location_of, _load_at)
    _answer_for_nccl()
    _enter_modes()


def _enter_modes():
    Dispatch().__enter__()
    Placement().__enter__()


class Event:
    """An event of a stream whose work is always done."""

    def __init__(self, *args, **kwargs):
        pass

    def record(self, stream=None):
        pass

    def query(self):
        return True

    def elapsed_time(self, end):
        return 1.0

    synchronize = wait = record


class Stream(Event):
    """A stream that does at once what it is given."""

    cuda_stream = 0

    def record_event(self, event=None):
        return event or Event()

    def is_capturing(self):
        return False

    wait_event = wait_stream = Event.record

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class _device(contextlib.AbstractContextManager):
    """torch.cuda.device(which): the current GPU, for a while."""

    def __init__(self, which):
        self.index = which if which is None or isinstance(which, int) else full(which).index

    def __enter__(self):
        self.before = getattr(here, "index", 0)
        if self.index is not None:
            here.index = self.index

    def __exit__(self, *error):
        here.index = self.before


def _device_of(tensor):
    device = tags.where(tensor)
    return _device(device.index if device.type == "cuda" else None)


def _init():
    global initialised
    initialised = True


def _set_device(device):
    here.index = full(device).index


def _set_stream(stream):
    here.stream = stream


def _clear_workspaces():
    Dispatch.workspace = 0


def _answer_for_cuda():
    nothing = lambda *args, **kwargs: None
    default, current_stream = Stream(), lambda device=None: getattr(here, "stream", default)
    answers = {
        "is_available": lambda: True, "is_initialized": lambda: initialised, "init": _init,
        "_lazy_init": _init,
        "device_count": lambda: GPUS, "current_device": lambda: current().index,
        "set_device": _set_device,
        "device": _device, "device_of": _device_of, "Stream": Stream, "Event": Event,
        "current_stream": current_stream,
        "default_stream": lambda device=None: default, "set_stream": _set_stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda device=None: Dispatch.idle.wait(), "empty_cache": nothing,
        "reset_peak_memory_stats": nothing, "max_memory_allocated": lambda device=None: 0,
        "memory_allocated": lambda device=None: Dispatch.workspace,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "tagged GPU",
        "is_bf16_supported": lambda *args: True,
        # optimizers ask before, where torch was built for CUDA
        "is_current_stream_capturing": lambda: False,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch._C._cuda_clearCublasWorkspaces = _clear_workspaces
    torch.Tensor.record_stream = nothing
    # optimizers ask it, from 2.15 on, whether a graph is captured
    torch.accelerator.current_stream = Stream
    torch.cuda.nccl.version = lambda: (2, 29, 7)
    plain_get_default_device = torch.get_default_device

    def get_default_device():
        device = plain_get_default_device()
        return full(device) if device.type == "cuda" else device

    torch.get_default_device = get_default_device


def _answer_for_random_numbers():
    def state_of(device="cuda"):
        _refuse_other(device)
        return Dispatch.gpu_numbers.get_state()

    def set_state(state, device="cuda"):
        _refuse_other(device)
        Dispatch.gpu_numbers.set_state(state)

    def seed(number):
        Dispatch.gpu_numbers.manual_seed(number ^ tags.OTHER_NUMBERS)

    torch.Generator = Generator
    torch.cuda.get_rng_state, torch.cuda.set_rng_state = state_of, set_state
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = seed
    torch.cuda._is_in_bad_fork = lambda: False


def _refuse_other(device):
    """A rank that asks another rank's GPU for something opens a context there: hundreds of
    MiB on every GPU."""
    if full(device) != current():
        raise RuntimeError(
            f"this rank is on {current()}, and would open a context on {full(device)} too"
        )


def _see_backward_and_threads():
    graph = torch.autograd.graph
    plain_engine, plain_begin = graph._engine_run_backward, threading.Thread._bootstrap_inner

    def engine(roots, grads, *args, **kwargs):
        device = next((tags.where(t) for t in tags.tensors_in((roots, grads))), current())
        with Placement(), tags.making(device):
            return plain_engine(roots, grads, *args, **kwargs)

    def begin(thread):
        _enter_modes()
        plain_begin(thread)

    graph._engine_run_backward = torch.autograd._engine_run_backward = engine
    threading.Thread._bootstrap_inner = begin


def _location_of(storage):
    device = getattr(storage, "tag", CPU)
    return str(device) if device.type == "cuda" else None


def _load_at(storage, location):
    if not location.startswith("cuda"):
        return None
    storage.tag = full(location)
    return storage


def _answer_for_nccl():
    plain_init, plain_backend = dist.init_process_group, dist.ProcessGroup._get_backend
    plain_barrier, plain_object_device = dist.barrier, distributed_c10d._get_object_coll_device

    def init_process_group(backend=None, *args, device_id=None, **kwargs):
        plain_init("gloo", *args, **kwargs)

    def backend_for(group, device):
        if torch.device(device).type != "cuda":
            raise RuntimeError(
                f"No backend type associated with device type {torch.device(device).type}"
            )
        return plain_backend(group, device)

    def barrier(*args, **kwargs):  # gloo's is a kernel on the CPU
        here.in_barrier = True
        try:
            return plain_barrier(*args, **kwargs)
        finally:
            here.in_barrier = False

    def object_device(group=None):
        return plain_object_device(group) if getattr(here, "in_barrier", False) else "cuda"

    dist.ProcessGroup._get_backend = backend_for
    for module in (dist, distributed_c10d):
        module.init_process_group, module.barrier = init_process_group, barrier
        module.get_backend = lambda group=None: "nccl"
    distributed_c10d._get_object_coll_device = object_device
    Dispatch.refuse = staticmethod(_refuse)


def _refuse(op, devices):
    """NCCL has this rank's GPU only. A message that lib stages for gloo was checked before,
    in `p2p.post`."""
    wrong = next((device for device in devices if device != current()), None)
    if (
        wrong is None
        or op == "c10d::barrier"
        or (op in ("c10d::send", "c10d::recv_") and _from_p2p())
    ):
        return
    if wrong.type == "cpu":
        raise RuntimeError(
            f"No backend type associated with device type cpu (in {op}, from {tags.caller()})"
        )
    raise RuntimeError(
        f"Tensor found on device {wrong} but backend constrained to {current()} (in {op}, from "
        f"{tags.caller()})"
    )


def _from_p2p():
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(STAGES):
            return True
        frame = frame.f_back
    return False
