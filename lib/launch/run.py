"""launch.run sends a function of the notebook to N ranks, runs it there, and returns the results in
rank order.

The function and its arguments are packed as bytes (packing.py) and written into the folder of the
run. Ranks from an earlier run, or new ones (warm.py), read them and start, and the parent watches
their logs until all have returned (watch.py). Then it audits the logs and reads the results. If the
run fails, one error names rank, line and values (errors.py).
"""

import contextlib
import errno
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle

from lib import backend as backends
from lib import frontend
from lib.launch import alone, copies, packing, stopped, warm, ways_out, worker
from lib.launch.agent import signal_to
from lib.launch.debugger import Prompt
from lib.launch.errors import Stopped, from_failure, from_findings, short
from lib.launch.output import Output
from lib.launch.ranks import Ranks
from lib.launch.sign import Sign
from lib.launch.watch import watch
from lib.ledger.log import lay_out
from lib.ledger.match import audit
from lib.ledger.read import Ledger, Logs

# packed functions that contain one of these words probably import what `server.LATER` lists
SLOW = (b"optim", b"fsdp")
ROOM = 1 << 16  # bytes of free disk space below which a run cannot write its logs and results
_said: set[tuple] = set()  # the backends that `say_once` has already named in this kernel
_packing = threading.RLock()  # cloudpickle has one list of modules to send by value for all threads
ways_out.explain_outside()


class Results(list):
    """[result of rank 0, result of rank 1, ...], together with what else is known about the run.

    ledger: what was sent, received and waited for (None when the ledger was off)
    output: [(rank, line), ...] that the ranks printed to stdout
    warnings: sentences about likely mistakes, such as communication that the audit finds odd but
        cannot prove wrong, or a change that a rank made to its copy of a notebook's variable and
        that the notebook therefore does not see
    """

    ledger: Ledger | None
    output: list[tuple[int, str]]
    warnings: list[str]


def run(
    fn: Callable,
    *args: Any,
    nproc: int = 4,
    backend: str = "auto",
    timeout: float = 60,
    ledger: bool = True,
    fresh: bool = False,
    seed: int = 0,
    **unknown: Any,
) -> Results:
    """Run fn(*args) on `nproc` ranks, show what they print as `[rank 2] ...`, and return their
    results in rank order.

    fn and args are sent by value, so functions and lambdas typed into a notebook work. Each rank
    has its own copies, so what it changes in them is lost unless the function returns it. On a
    rank, torch.distributed is initialised, and torch uses one CPU thread.
    backend: "auto" is NCCL if there is a GPU for each rank, else gloo on the CPU. The others are
        "gloo", "nccl" and "nccl-shared" (lib/backend/choice.py).
    timeout: seconds, counted from when all ranks have begun, after which the run is stopped and
        explained. Up to 5 minutes in which other programs kept the ranks from running are not
        counted.
    ledger: log every op of the ranks. This costs up to 200 microseconds per op, and on GPUs the
        host waits in every synchronous collective, so that FSDP2's all-gathers overlap with
        nothing. Turn it off to measure time.
    fresh: run on processes that no other run has used or will use. Otherwise the processes of an
        earlier run may be used again, after its changes have been undone (lib/launch/warm.py).
    seed: the base seed of the random numbers of torch, numpy and Python. Each rank's seed is made
        from the base seed and the rank, so the numbers differ between ranks, but not between two
        runs with the same base seed.

    Raises RankError, naming rank, line and values, if a rank fails, if the ranks deadlock, if their
    calls do not match, or at the timeout. Raises ValueError, TypeError or RuntimeError if the call
    itself is wrong, TypeError if a result cannot be loaded here, and RuntimeError if the ranks
    cannot be started or the disk is full. After any of these, no process of the run is left. All
    ranks end when this process does.
    """
    return _launch(fn, args, nproc, backend, timeout, ledger, fresh, seed, [*unknown], show=True)


def capture(
    fn: Callable,
    *args: Any,
    nproc: int = 4,
    backend: str = "auto",
    timeout: float = 60,
    ledger: bool = True,
    fresh: bool = False,
    seed: int = 0,
    **unknown: Any,
) -> Results:
    """Like `run`, but prints nothing; what the ranks printed is in the result's `output`."""
    return _launch(fn, args, nproc, backend, timeout, ledger, fresh, seed, [*unknown], show=False)


def _launch(fn, args, nproc, backend, timeout, ledger, fresh, seed, unknown, show):
    try:
        check_call(fn, args, nproc, timeout, seed, unknown)
        choice = choose(backend, nproc)
        if show:
            say_once(choice)
        settings, packed = settings_line(ledger, seed), pack(fn, args)
        slow = any(word in packed for word in SLOW)
        with (
            alone.among_others(),
            room_explained(),
            warm.taken(choice, nproc, fresh, slow) as ranks,
        ):
            results = run_on(ranks, settings + packed, timeout, ledger, show)
        if odd := ways_out.given_as_rank(fn, args, nproc):
            results.warnings.insert(0, odd)
        if show:
            for text in results.warnings[:3]:
                print(f"warning: {text}")
        return results
    except KeyboardInterrupt as stop:
        warm.end_interrupted()
        if not isinstance(stop, Stopped):
            stop = Stopped()
        elif stop.error is not None:
            stopped.figure(stop.error)
        raise stop from None


def settings_line(ledger: bool, seed: int | None) -> bytes:
    """The first line of a payload, as JSON. It contains the settings of this process that the ranks
    adopt before they load the function (working directory, sys.path, sys.argv), whether they keep a
    ledger, whether a person can answer a debugger, and the base seed of their random numbers. With
    None, these continue where the last run left them."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise short(RuntimeError(
            "the working directory no longer exists, and ranks begin in it: change to one that "
            "does, as in os.chdir(os.path.expanduser('~'))"
        )) from None  # fmt: skip
    settings = {
        "folder": folder,
        "path": sys.path,
        "argv": sys.argv,
        "ledger": ledger,
        "seed": seed,
        "asks": frontend.can_ask(),
    }
    return json.dumps(settings).encode() + b"\n"


@contextlib.contextmanager
def room_explained():
    """Inside the block, the OSError of a full disk becomes a RuntimeError that says where to free
    space."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise short(RuntimeError(
            f"no space is left in {tempfile.gettempdir()}, where a run keeps what is sent, the "
            f"logs and the results: make room there, or start Python with TMPDIR set to another "
            "folder"
        )) from None  # fmt: skip


def run_on(ranks: Ranks, payload: bytes, timeout: float, ledger: bool, show: bool) -> Results:
    """Execute `payload`, which consists of the settings and the packed function, as one run on
    these ranks. Raises RankError if the run fails, and Stopped if a person stops it. In both cases
    the ranks are ended, except those of a session. These stay alive, unless one of them has died,
    and may still be inside the run."""
    folder, nproc, agent = ranks.begin(), ranks.nproc, ranks.agent
    with open(f"{folder}/payload", "wb") as file:
        file.write(payload)
    for rank in range(nproc):
        lay_out(folder, rank, nproc)
    logs, output = Logs(folder, nproc), Output(ranks.folder, nproc, show, earlier=ranks.runs > 0)
    prompt = None
    if frontend.can_ask():
        ranks.can_answer()
        prompt = Prompt(ranks, folder, logs, output)
    ranks.go()
    with Sign(agent.folder, logs, ledger) as sign:
        failure = watch(agent, logs, output, timeout, ledger, sign, prompt, ranks.stays)
    if failure is not None and failure.kind == "stopped":
        raise _stopped(failure, ranks, folder, output, show, prompt is not None and prompt.left)
    if failure is not None and (failure.gone or not ranks.stays):
        agent.kill()
    output.pump(final=True)
    # if the disk is full, that is the cause of whatever error the ranks report
    if failure is not None and shutil.disk_usage(folder).free < ROOM:
        raise OSError(errno.ENOSPC, "the folder of the run is full")
    if failure is None and not all(
        os.path.exists(f"{folder}/result{rank}") for rank in range(nproc)
    ):
        raise short(RuntimeError(f"the ranks could not be started: {agent.error!r}"))
    if failure is not None:
        failure.exit_codes = {rank: agent.exit_code(rank) for rank in failure.gone}
        failure.gone = _guilty(failure)
        error = from_failure(failure, folder)
        error.output = output.lines
        raise error from None
    return _collect(folder, nproc, logs, output, ledger)


def _stopped(failure, ranks, folder, output, show, left):
    """Report what the ranks were doing when a person stopped the run, and end them unless they
    belong to a session. We send the signal first but wait only after the report, because on a busy
    machine the ranks can take seconds to end."""
    if not ranks.stays:
        signal_to(ranks.agent.pids(), signal.SIGKILL)
    stop = Stopped()
    stop.error = from_failure(failure, folder)
    output.pump(final=True)
    stop.error.output = output.lines
    if left:
        stop.what, stop.error = "you quit the debugger with q", None
    else:
        stopped.say(stop.error, show)
    if not ranks.stays:
        ranks.agent.kill()
    return stop


def _guilty(failure):
    """The ranks that ended by themselves. As soon as one has, torch's elastic agent ends the others
    with SIGTERM, often before we look. Those others must not be blamed."""
    by_themselves = [rank for rank in failure.gone if failure.exit_codes[rank] != -signal.SIGTERM]
    return by_themselves or failure.gone[:1]


def _collect(folder, nproc, logs, output, ledger):
    results = Results()
    results.ledger, results.output, results.warnings = None, output.lines, []
    if ledger:
        results.ledger = logs.read()
        findings = audit(results.ledger)
        if any(f.certain for f in findings):
            raise from_findings([f for f in findings if f.certain], results.ledger)
        results.warnings = [f.text for f in findings]
    for rank in range(nproc):
        with open(f"{folder}/result{rank}", "rb") as file:
            results.append(_loaded(file, rank))
    if lost := copies.warning(folder, nproc, {rank for rank, _ in output.lines}):
        results.warnings.append(lost)
    return results


def _loaded(file, rank):
    try:
        return cloudpickle.load(file)
    except Exception as error:
        raise short(TypeError(
            f"what rank {rank} returned cannot be made again in the notebook "
            f"({type(error).__name__}: {error}). Return tensors, numbers, strings, lists or dicts "
            "of them."
        )) from error  # fmt: skip


def choose(backend: str, nproc: int) -> backends.Choice:
    """The backend and the device for the ranks. Raises ValueError for an unknown backend and
    RuntimeError for one that cannot run so many ranks. A notebook shows the message of either
    without a traceback."""
    try:
        return backends.choose(backend, nproc)
    except (ValueError, RuntimeError) as error:
        raised_by = error.__traceback__.tb_next
        # if `backends.choose` itself raised the error, it did so on purpose
        if raised_by.tb_frame.f_code is backends.choose.__code__ and raised_by.tb_next is None:
            short(error)
        raise


def check_call(
    fn: Callable, args: tuple, nproc: int, timeout: float, seed: int, unknown: list[str]
) -> None:
    """Raise RuntimeError, TypeError or ValueError if a run with these arguments cannot work. The
    callers do this before they send anything to a rank."""
    if wrong := _wrong_call(fn, args, nproc, timeout, seed, unknown):
        raise short(wrong)


def _wrong_call(fn, args, nproc, timeout, seed, unknown):
    if worker.rank_of_this_process is not None:
        return RuntimeError(
            f"launch.run was called inside rank {worker.rank_of_this_process}: ranks do not launch "
            f"ranks. Call it from the notebook, and use dist.new_group for a smaller group."
        )
    if not callable(fn):
        return TypeError(ways_out.no_function(fn))
    if unknown:
        return TypeError(ways_out.unknown_names(unknown))
    if isinstance(nproc, bool) or not isinstance(nproc, int):
        return TypeError(
            f"nproc={nproc!r} is a {type(nproc).__name__}; how "
            f"many ranks? Use a whole number such as nproc=4"
        )
    if nproc < 1:
        return ValueError(f"nproc={nproc}: a run needs at least one rank")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        return ValueError(f"timeout={timeout!r}: give a number of seconds above 0")
    if isinstance(seed, bool) or not isinstance(seed, int):
        return TypeError(
            f"seed={seed!r} is a {type(seed).__name__}; the "
            f"base seed is a whole number such as seed=1"
        )
    wrong = ways_out.of_call(fn, args)
    return TypeError(wrong) if wrong else None


def say_once(choice: backends.Choice) -> None:
    """Print which backend and device the ranks use, unless this kernel has printed it before."""
    kind = (choice.name, choice.ranks_per_gpu)
    if kind not in _said:
        print(choice.why)
        if _said:
            print(
                "(Other cells ran elsewhere: do not compare their times, nor random numbers "
                "without a seed.)"
            )
        _said.add(kind)


def pack(fn: Callable, args: tuple) -> bytes:
    """fn and args as bytes. Functions and classes from the user's own modules are sent by value,
    too, because a rank that imported the module could get a different version from the one that is
    loaded here. Raises a TypeError that names what cannot be sent."""
    modules = {
        sys.modules.get(getattr(thing, "__module__", None) or "")
        for thing in (fn, *args)
        if callable(thing)
    }
    by_value = [module for module in modules if module is not None and _is_users(module)]
    with _packing:
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            return packing.dumps((fn, args))
        except Exception:
            _name_what_cannot_be_packed(fn, args)
            raise
        finally:
            for module in by_value:
                cloudpickle.unregister_pickle_by_value(module)


def _name_what_cannot_be_packed(fn, args):
    if line := ways_out.shell_line((fn, *args)):
        raise short(TypeError(
            f"{line}\n  Lines with ! or % belong to the notebook, and a rank is a plain Python "
            f"process. Put this one into a cell of its own before launch.run, or use "
            "subprocess.run([...]) on the rank."
        )) from None  # fmt: skip
    outside = (
        "something that cannot be copied to another process "
        "(an open file, a lock, a generator, a figure)"
    )
    things = [
        (
            fn,
            getattr(fn, "__name__", repr(fn)),
            f"It uses {outside}; make that inside the function.",
        )
    ]
    for position, arg in enumerate(args):
        advice = (
            "Send tensors, numbers, strings, functions, lists "
            "or dicts, and make the rest inside the function."
        )
        things.append((arg, f"argument {position} ({type(arg).__name__})", advice))
    for thing, name, advice in things:
        try:
            packing.dumps(thing)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            raise short(TypeError(f"{name} cannot be sent to the ranks: {why}. {advice}")) from None


def _is_users(module):
    name, file = module.__name__, getattr(module, "__file__", None)
    return (
        name != "__main__" and name.split(".")[0] != "lib"
        and file is not None and "site-packages" not in file
        and not file.startswith(os.path.dirname(multiprocessing.__path__[0]))
    )  # fmt: skip
