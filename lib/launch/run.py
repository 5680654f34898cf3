"""launch.run sends a function of the notebook to N ranks, and returns its results."""

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

# where a function names one of these, torch imports for seconds when it runs
SLOW = (b"optim", b"fsdp")
ROOM = 1 << 16  # bytes that a run needs free: with less, its logs and results cannot be written
_said: set[tuple] = set()  # what this kernel's ranks have run on
_packing = threading.RLock()  # what is sent by value is a list that all threads share
ways_out.explain_outside()


class Results(list):
    """[result of rank 0, result of rank 1, ...], with what the ranks' logs say.

    ledger: what was sent, received and waited for (None when the ledger was off)
    output: [(rank, line), ...] that the ranks printed
    warnings: what the audit found odd but cannot prove wrong; what a rank changed in its copy of
        the notebook's variables, which stays on the rank
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
    """Run fn(*args) on `nproc` ranks, printing what they print as `[rank 2] ...`; return their
    results in rank order.

    fn and args are sent by value, so a function typed into a notebook works, lambdas and all; what
    a rank changes in its copies does not come back. On a rank, torch.distributed is initialised,
    and torch runs on one thread.
    backend: "auto" is NCCL where there is one GPU per rank, else gloo on the CPU; "gloo", "nccl",
        "nccl-shared".
    timeout: seconds from when all ranks have begun until a run that does not end is stopped and
        explained; the time that other programs on a busy machine keep from the ranks is not
        counted.
    ledger: keep the ranks' logs (up to 200 microseconds per op; turn it off to measure time). On
        GPUs the host then waits in every synchronous collective, so that FSDP2's gathers overlap
        with nothing.
    fresh: on new processes. Else on those of an earlier run, which are as they were before it
        (lib/launch/warm.py).
    seed: the base seed of the generators of torch, numpy and Python. Each rank's are seeded from it
        and the rank, so they differ between the ranks and are the same in every run; another seed
        gives other numbers.

    Raises RankError, naming rank, line and values, if a rank fails, if they deadlock, if their
    calls do not match, or at the timeout; ValueError, TypeError or RuntimeError for what is wrong
    with the call. After any of these no process of the run is left; all end with this one.
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
    """A line for the ranks: where they work and what they import is as it is here now. seed None:
    their random numbers go on."""
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
    """Inside, a full disk is told in words."""
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
    """One run on these ranks. Raises RankError or Stopped; the ranks are then ended, but those of a
    session may be in the run still."""
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
    # whatever the ranks say, this is why
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
    """The ranks have been told to end, but those of a session, and it is said what they did; a busy
    machine may take seconds to end them."""
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
    """The ranks that ended by themselves. When one has, torch ends the others with SIGTERM, sooner
    than we may look."""
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
    """What the ranks run on. Raises ValueError or RuntimeError, shown as its message alone."""
    try:
        return backends.choose(backend, nproc)
    except (ValueError, RuntimeError) as error:
        raised_by = error.__traceback__.tb_next
        # on purpose
        if raised_by.tb_frame.f_code is backends.choose.__code__ and raised_by.tb_next is None:
            short(error)
        raise


def check_call(
    fn: Callable, args: tuple, nproc: int, timeout: float, seed: int, unknown: list[str]
) -> None:
    """Raises what is wrong with the call itself."""
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
    """The first launch, and the first with another choice, says in a line what the ranks run on."""
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
    """fn and args as bytes; what the user's own modules define by value too, so that the
    ranks see what we see."""
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
