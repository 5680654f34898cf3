"""The program of a rank. It joins the process group once. Then, in one run after another, it calls
the student's function and records in its log how the call ended.

Parent and rank communicate through files: the parent writes a word into the rank's pipe (`go`), and
the rank writes its state into the file `state`.

    the parent                                   a rank
                                                 joins the group, notes its settings, says RESTED
    writes run 0's payload, says "0"  -------->  writes its log of run 0: RUNNING ... RETURNED
    all have returned; says "rest"    -------->  undoes what the function changed, says RESTED
    all rest: stops them (SIGSTOP)               sleeps
    writes run 1's payload, says "1"  -------->  ...

The parent says "rest" only after all ranks have returned. Until then a rank must neither be stopped
nor restored, because others may still wait for a message that its threads send.

There are three exceptions. In a session (sessions.py) nothing is restored, so a rank says KEPT
after each run, even after a failed one, and waits for the next. If what the function changed cannot
be undone (leftovers.py), the rank says USED, and the parent ends it. A rank that failed outside of
a session waits up to 30 s for the parent to end it.
"""

import ctypes
import fcntl
import functools
import gc
import json
import os
import signal
import struct
import sys
import sysconfig
import time
import traceback

import cloudpickle
import torch
import torch.distributed as dist

from lib import backend, ledger, linux
from lib.backend import peers, torch_private
from lib.launch import cells, copies, debugger, generators, groups, packing, ways_out
from lib.launch.leftovers import Before, listen
from lib.launch.parameters import with_names
from lib.launch.stacks import BELOW, LIB
from lib.ledger.log import EXITED, RAISED, RETURNED, LogWriter

rank_of_this_process: int | None = None
folder_of_this_set: str | None = None  # the `folder` of `main`, for other files that ranks share
torch_private.name_the_functions_module()

STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
STARTING, RESTED, BUSY, USED, KEPT = b".r-xk"  # states of a rank, in the file `state`
# a rank's record there: its state, the collectives it has called in the group of all ranks, and the
# groups it has made
STATE = struct.Struct("<Bqq")
LONGEST = 2000  # characters of an exception's message that are reported
REST, JOIN = b"rest\n", b"join"
CUT = -1  # replaces the number of collectives once the rank's connections have been shut down


def main(folder: str, choice: backend.Choice, made: int) -> None:
    """The entry point that the agent calls on every rank.

    folder: the folder of this set of ranks, in which each run has its own. made: when the set was
        made, in nanoseconds since 1970.
    """
    global rank_of_this_process, folder_of_this_set
    # Otherwise Python's garbage collector would write into every object that the server has
    # imported, and thereby copy every page of memory that this process shares with the server.
    gc.freeze()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank_of_this_process, folder_of_this_set = rank, folder
    _die_with_the_parent()
    _keep_freed_memory()
    # Jupyter's stop button may reach all processes, but the parent decides when the ranks end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stack = open(f"{folder}/stack{rank}", "w")  # noqa: SIM115  open as long as the rank lives
    listen(stack)  # the traceback of a crash is written there too, instead of to stderr
    # append, so that the parent can empty the file between two runs
    for stream in (sys.stdout, sys.stderr):
        fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)
    sys.stdout.reconfigure(line_buffering=True)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", backend.loopback())
    # otherwise a stray `.cuda()` would open a context on a GPU, and `backend.device()` would return
    # GPU 0
    if not choice.ranks_per_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    debugger.install()
    trouble = before = None
    try:
        store = dist.FileStore(f"{folder}/store", world_size)
        backend.join(choice, store, cells.FOR_EVER)
        peers.count_messages()
        before = Before(stack, Imported(f"{folder}/imported{rank}", made))
    except BaseException as error:
        trouble = error  # the first run reports it
    state = os.open(f"{folder}/state", os.O_RDWR)
    parent = os.open(f"{folder}/go{rank}", os.O_RDONLY)
    _say(state, rank, RESTED)
    while word := os.read(parent, 20):
        if word.startswith(JOIN):
            cells.join_anew(choice, dist.PrefixStore(word.decode().strip(), store))
            _say(state, rank, KEPT)
            continue
        if word != REST:
            _say(state, rank, BUSY)
            if _run(folder, int(word), rank, world_size, trouble):
                _say(state, rank, KEPT)
            continue
        left = before.restore()
        if left:
            with open(f"{folder}/left{rank}", "w") as file:
                file.write(left)
        _say(state, rank, USED if left else RESTED)
    os._exit(0)  # the pipe has been closed, so the parent is gone


class Imported:
    """Records which files of lib this rank has imported, and when each was last changed, so that
    `Ranks.is_outdated` can tell whether one has been edited since. A file that has changed since
    the set was made gets the time 0, so that it counts as edited."""

    def __init__(self, path, made):
        self.file, self.made = open(path, "w", buffering=1), made  # noqa: SIM115  open as long as the rank lives

    def __call__(self, module):
        if getattr(module, "__file__", None):
            changed = os.stat(module.__file__).st_mtime_ns
            self.file.write(f"{changed if changed < self.made else 0} {module.__file__}\n")


def _say(state, rank, word):
    calls = CUT if cells.is_cut else peers.collectives_called()
    os.pwrite(state, STATE.pack(word, calls, groups.made()), rank * STATE.size)


def _run(folder, number, rank, world_size, trouble):
    """Call the function of a run, and write its result or its error into the folder of the run.

    Returns whether the rank belongs to a session, in which nothing has to be restored. If the
    function fails on a rank that does not belong to a session, this never returns.
    """
    stop, answers = f"{folder}/stop{rank}", f"{folder}/answers{rank}"
    folder = f"{folder}/run{number}"
    log, stays = LogWriter(folder, rank, world_size), os.path.exists(stop)
    try:
        if trouble is not None:
            raise trouble
        with open(f"{folder}/payload", "rb") as file:
            settings = json.loads(file.readline())
            if not stays:
                groups.begin(number, timed=not settings["ledger"])
            log.begin()
            fn, args = _load(settings, file, stays)
        debugger.listen(f"{folder}/asks", answers, rank, settings["asks"])
        if settings["seed"] is not None:
            generators.seed(settings["seed"], rank)
        if settings["ledger"]:
            ledger.install(log)
        own = copies.Copies(fn, args)
        call = functools.partial(debugger.call, fn, args)
        result = cells.interruptible(number, stop, call) if stays else call()
        ledger.finish()
        ledger.uninstall()
        _save(result, f"{folder}/result{rank}")
        own.report(result, f"{folder}/copies{rank}")
    except BaseException as error:
        _report(error, f"{folder}/error{rank}")
        sys.stdout.flush()
        sys.stderr.flush()
        log.close(EXITED if isinstance(error, SystemExit) else RAISED)
        if stays:
            ledger.uninstall()
            return True
        # If we exited now, our connections would close, and the peers that wait for us would fail,
        # too. We keep them open, so that only the true error is reported. The parent ends us all.
        time.sleep(30)
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    log.close(RETURNED)
    return stays


def _load(settings, file, stays):
    """The function of a run and its arguments. cloudpickle remembers the classes that it has made
    and would use them again, with whatever an earlier run changed in them, so we make it forget
    them."""
    os.chdir(settings["folder"])
    sys.path[:], sys.argv[:] = settings["path"], settings["argv"]
    if not stays:  # in a session, objects of the earlier classes are still there
        cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
        cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    return cloudpickle.load(file)


def _die_with_the_parent():
    """Make sure that this rank ends when the kernel that launched it ends, even if the kernel is
    killed."""
    from multiprocessing import forkserver

    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    # As long as a rank has this pipe open, the forkserver does not notice that the kernel is gone.
    if alive is not None:
        os.close(alive)
    linux.die_with_the_parent()  # our parent is the forkserver, which ends with the kernel


def _keep_freed_memory():
    """Let glibc keep freed memory for the next allocation. By default it returns large blocks to
    the system and requests them again, which causes thousands of page faults per training step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, bytes: larger blocks are still returned
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD, bytes


def _save(result, path):
    try:
        packed = packing.dumps(result, to_notebook=True)
    except packing.OnRanksAlone as error:
        inside = "" if ways_out.of_result(result) else f" a {type(result).__name__} with"
        way = (
            ways_out.of_model_around(error.what)
            if inside and isinstance(result, torch.nn.Module)
            else error.way
        )
        raise TypeError(
            f"the function returned{inside} {error.what}, which exists on ranks alone. {way}."
        ) from None
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(result).__name__}, which cannot be sent back to the "
            f"notebook ({type(error).__name__}: {error}). Return tensors, numbers, strings, lists "
            f"or dicts of them."
        ) from None
    with open(path, "wb") as file:
        file.write(packed)


def _report(error, path):
    """Write what was raised into a JSON file: its type and text, the frames, the user's line that
    led to it, and the values of the local variables that this line reads, with advice if we have
    any."""
    frames = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(BELOW) and "site-packages" not in file:
            frames.append((file, line, frame.f_code.co_name, frame))
    theirs = [f for f in frames if not f[0].startswith((LIB, STDLIB, "<frozen"))]
    user = [*frames[-1:], *theirs[-1:]][-1] if frames else None
    # Show only the dtype and shape of tensors, also inside other values. To read the elements of a
    # tensor on a GPU we would have to wait for an op that may hang, and they would take up too much
    # space.
    plain = torch.Tensor.__repr__, torch.nn.Parameter.__repr__
    torch.Tensor.__repr__ = torch.nn.Parameter.__repr__ = _form
    try:
        text = with_names(_text_of(error), error.__traceback__)
        values = _values(user[3], user[1]) if user else {}
    finally:
        torch.Tensor.__repr__, torch.nn.Parameter.__repr__ = plain
    if isinstance(error, SystemExit):
        text = f"sys.exit({error.code!r})"
    facts = {
        "type": type(error).__name__,
        "text": text,
        "frames": [f[:3] for f in frames],
        "site": user[:3] if user else None,
        "values": values,
        "way_out": ways_out.of_error(text) if theirs else "",
    }
    with open(path, "w") as file:
        json.dump(facts, file)


def _text_of(error):
    """The exception's message, shortened to LONGEST characters; its type's name if it is empty."""
    try:
        text = str(error) or type(error).__name__
    except Exception as second:
        return f"(its text cannot be had: __str__ raised {type(second).__name__})"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text):,} characters)"


def _values(frame, line):
    """{name: its value, as a short text} of the local variables that the failing line reads."""
    import dis

    names = [
        ins.argval for ins in dis.get_instructions(frame.f_code)
        if ins.positions and ins.positions.lineno == line and isinstance(ins.argval, str)
        and ins.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE"))
    ]  # fmt: skip
    return {
        name: _short(frame.f_locals[name])
        for name in dict.fromkeys(names)
        if name in frame.f_locals
    }


def _short(value):
    # dtype and shape only, because the elements may be whatever torch.empty found in memory
    if isinstance(value, torch.Tensor):
        return _form(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return (
            f"[{', '.join(_form(item) for item in value[:3])}{', ...' if len(value) > 3 else ''}]"
        )
    try:
        return " ".join(repr(value).split())[:80]
    except Exception as error:
        return f"<repr failed: {type(error).__name__}>"


def _form(value):
    return (
        f"{str(value.dtype)[6:]} {tuple(value.shape)}"
        if isinstance(value, torch.Tensor)
        else _short(value)
    )
