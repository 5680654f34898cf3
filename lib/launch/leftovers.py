"""Ensures that a run is not affected by the runs before it, although they used the same processes.
After each run a rank restores what it can. Other changes can only be detected. In that case this
rank and the others of its set are ended and not used again.

    restored             default dtype and device, grad mode, autocast, torch's threads and
                         precision, printing, environment, warnings, logging, garbage collection,
                         signal handlers, output streams; on a GPU the current device and stream,
                         and the peaks of its memory; groups that were made are destroyed
    seeded               random numbers, when the next run begins (generators.py)
    detected, and the    a name of torch, its classes, torch.distributed, builtins, some modules of
    ranks are ended      the standard library, or lib that now refers to another object; a dict,
                         list or set of lib with other entries;
                         threads, processes, hooks, modes, ops not waited for, modules of the user's
                         own, meshes (torch keeps caches for them), GPU memory that is still in use,
                         or work on a GPU that does not end

Not detected are changes inside any other object, such as an entry in one of torch's tables, and the
state of C++ code, such as whether torch has already given a warning that it gives once per process.
"""

import faulthandler
import gc
import importlib.machinery
import logging
import os
import signal
import sys
import sysconfig
import threading
import types
import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import device_mesh

from lib import backend, linux
from lib.backend import peers, torch_private
from lib.launch import groups
from lib.launch.server import LATER
from lib.launch.stacks import LIB

NOT_THE_USERS = (
    LIB,
    sysconfig.get_paths()["stdlib"],
    os.path.dirname(os.path.dirname(torch.__file__)),
)
MODULES = [
    "builtins", "os", "time", "random", "math", "threading", "copy", "functools", "warnings",
    "torch", "torch.nn",
    "torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.nn.modules.module",
    "torch.autograd",
    "torch.distributed", "torch.distributed.distributed_c10d",
]  # fmt: skip
CLASSES = [torch.Tensor, torch.nn.Parameter, torch.autograd.Function, dist.ProcessGroup, dist.Work]
HOOKS = [
    hooks
    for name, hooks in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and "hooks" in name
]
# the end of what `restore` says of a run that imported a module of LATER (see warm.py)
SLOW_IMPORT = "was imported, which takes seconds"
BOOK_KEEPING = ("lib.launch", "lib.backend.peers")  # whose variables are about the runs themselves
# names that may refer to another object after a run, because any run can use it, or it is restored
MAY_CHANGE = {
    ("torch.distributed.distributed_c10d", "_group_count"),
    ("lib.collectives.background", "_thread"),
    ("lib.ledger.caller", "_kinds"),
    ("lib.ledger.caller", "_between"),
    ("lib.collectives.uncompiled", "_later"),
}
SETTINGS = [  # (how it is read, how it is set)
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    *(
        (partial(torch.is_autocast_enabled, d), partial(torch.set_autocast_enabled, d))
        for d in ("cpu", "cuda")
    ),
    *(
        (partial(torch.get_autocast_dtype, d), partial(torch.set_autocast_dtype, d))
        for d in ("cpu", "cuda")
    ),
    (lambda: torch_private.print_options().copy(), torch_private.print_options().update),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    (
        lambda: (logging.root.level, list(logging.root.handlers)),
        lambda before: _restore_logging(*before),
    ),
    (lambda: list(warnings.filters), lambda filters: _restore_warnings(filters)),
]


class Before:
    """The state of this rank before its first run, to which `restore` returns it."""

    def __init__(self, stack, imported):
        """stack: the file that faulthandler writes to. imported: a function, called with each
        module of lib that is or will be imported."""
        self.stack = stack
        # module or class -> (itself, the objects of its names, copies of its tables if it is lib's)
        self.names: dict[str, tuple] = {}
        for name in MODULES:
            self._note(sys.modules[name])
        for kind in [*CLASSES, *_classes_of(torch.nn)]:
            self.names[_title(kind)] = (kind, dict(vars(kind)), {})
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] == "lib":
                imported(module)
                if not name.startswith(BOOK_KEEPING):
                    self._note(module)
        sys.meta_path.insert(0, _Noting(lambda module: (imported(module), self._note(module))))
        self.modules = set(sys.modules)
        self.threads = set(threading.enumerate())
        self.environment = dict(os.environ)
        self.handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.streams = (
            sys.stdin,
            sys.stdout,
            sys.stderr,
            sys.excepthook,
            sys.displayhook,
            threading.excepthook,
        )
        self.files = [os.fstat(number).st_ino for number in (1, 2)]
        self.group_count = torch_private.registry().group_count
        self.settings = [read() for read, _ in SETTINGS]
        self.device = backend.device()
        self.on_gpu = self.device.type == "cuda"
        self.gpu_bytes = self._allocated() if self.on_gpu else 0
        self.modes = torch_private.dispatch_modes()
        self.meshes = _count_meshes()
        gc.collect()
        gc.freeze()  # `restore` collects garbage, and need not look through what is here now

    def restore(self) -> str:
        """Restore the rank after a run. Returns "", or words for something that cannot be restored.
        In that case the rank must not be used again."""
        try:
            self._put_back()
            left = self._left()
            if not left:
                groups.destroy_others()
                if not groups.kept:
                    torch_private.registry().group_count = self.group_count
            return left
        except BaseException as error:
            return f"{type(error).__name__}: {error}"

    def _left(self):
        if slow := [name for name in LATER if name in sys.modules and name not in self.modules]:
            return f"{slow[0]} {SLOW_IMPORT}"
        gc.collect()
        if new := [
            t.name for t in threading.enumerate() if t not in self.threads and not _is_ours(t)
        ]:
            return f"the thread {new[0]}"
        if peers.messages_left():
            return "a message that the function did not wait for"
        if torch_private.unawaited_collectives():
            return "a collective that the function did not wait for"
        if not dist.is_initialized() or dist.group.WORLD is not groups.world:
            return "another default group"
        if len(self.meshes) > 0:
            return "a DeviceMesh"
        if any(HOOKS):
            return "a hook on all modules"
        if torch_private.dispatch_modes() > self.modes or torch_private.saved_tensors_hooks():
            return "a mode of torch"
        if linux.has_children():
            return "a process that it has started"
        if [os.fstat(number).st_ino for number in (1, 2)] != self.files:
            return "another file for what is printed"
        for name in sys.modules.keys() - self.modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and not file.startswith(NOT_THE_USERS) and "site-packages" not in file:
                return f"the module {name}"
        self.modules |= sys.modules.keys()
        return self._renamed() or self._gpu()

    def _put_back(self):
        if self.on_gpu:
            # if the GPU's work never ends, neither does this call, and the parent gives up the rank
            torch.cuda.synchronize(self.device)
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(torch.cuda.default_stream(self.device))
        sys.stdin, sys.stdout, sys.stderr, sys.excepthook, sys.displayhook, threading.excepthook = (
            self.streams
        )
        sys.settrace(None)
        sys.setprofile(None)
        for (_, put), before in zip(SETTINGS, self.settings, strict=True):
            put(before)
        torch.set_default_device(self.device if self.on_gpu else None)
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        listen(self.stack)
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def _gpu(self):
        more = self._allocated() - self.gpu_bytes if self.on_gpu else 0
        return f"{more} bytes on its GPU" if more > 0 else ""

    def _allocated(self):
        """Bytes of tensors on this rank's GPU, without the workspace that cuBLAS keeps after its
        first matmul."""
        torch.cuda.synchronize(self.device)
        torch_private.free_cublas_workspaces()
        return torch.cuda.memory_allocated(self.device)

    def _note(self, module):
        tables = {}
        if module.__name__.split(".")[0] == "lib":
            tables = {
                n: v.copy() for n, v in vars(module).items() if isinstance(v, (dict, list, set))
            }
            tables.pop("__builtins__", None)
            for kind in _classes_of(module):
                self.names[_title(kind)] = (kind, dict(vars(kind)), {})
        self.names[module.__name__] = (module, dict(vars(module)), tables)

    def _renamed(self):
        """Words for a name that refers to another object than before; "" if there is none."""
        for title, (owner, before, tables) in self.names.items():
            now = vars(owner)
            if now != before or any(now[name] != table for name, table in tables.items()):
                for name in now.keys() | before.keys():
                    if (title, name) in MAY_CHANGE or name in (
                        "__warningregistry__",
                        "__slotnames__",
                    ):
                        continue
                    new, old = now.get(name), before.get(name)
                    # a submodule has been imported
                    if name not in before and isinstance(new, types.ModuleType):
                        before[name] = new
                    elif new is not old or (name in tables and new != tables[name]):
                        return f"another {title}.{name}"
        return ""


class _Noting(importlib.machinery.PathFinder):
    """An import hook that records each module of lib that a run imports. It does so right after the
    import, when nothing can have changed the module yet."""

    def __init__(self, note):
        self.note = note

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("lib."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (plain(module), self.note(module))[0]
        return spec


def listen(stack) -> None:
    """Make SIGUSR1 and a crash write this process's stack into the file `stack`, even if a run has
    changed these settings."""
    faulthandler.unregister(signal.SIGUSR1)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    faulthandler.enable(stack)


def _title(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def _classes_of(module):
    return [
        k
        for k in vars(module).values()
        if isinstance(k, type) and k.__module__.startswith(module.__name__)
    ]


def _is_ours(thread):
    """Is this a thread of the launcher or the ledger, or a communication thread that waits for
    work? A communication thread whose work has failed does not count, because it accepts no more
    work, so the next run could not use it."""
    idle = getattr(thread, "is_idle", False) and thread.failed is None
    # autograd's C++ thread for a GPU, which Python knows if a hook has asked for its current thread
    of_cpp = isinstance(thread, threading._DummyThread)
    return idle or of_cpp or thread.name.startswith(("lib.launch.", "lib.ledger."))


def _count_meshes():
    """Returns a list that grows by an entry for every DeviceMesh made in this process from now
    on."""
    made, plain = [], device_mesh.DeviceMesh.__init__

    def init(mesh, *args, **kwargs):
        made.append(True)
        plain(mesh, *args, **kwargs)

    device_mesh.DeviceMesh.__init__ = init
    return made


def _restore_logging(level, handlers):
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers


def _restore_warnings(filters):
    """Restore the filters, and make Python forget which warnings it has already given."""
    warnings.resetwarnings()
    warnings.filters[:] = filters
