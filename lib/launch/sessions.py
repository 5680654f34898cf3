"""Sessions: ranks that keep their variables from one notebook cell to the next, so that you can
build up state on them step by step, as you do in the notebook itself.

    ranks = launch.session(4)     %%ranks                          ranks["x"]   [x of rank 0, ...]
                                  x = torch.ones(3) * rank         ranks.run(f, 2)
                                  dist.all_reduce(x)               ranks.end()
                                  x

If something goes wrong, launch.run ends its ranks. In a session that would lose the variables, so a
session tries to continue:

    a cell ends             and then
    ----------------------  ------------------------------------------------------------------------
    without an error        the variables are kept
    with an error, or       the other ranks finish, or are interrupted where they wait for a rank
    with the stop button    that has left. The variables are kept. If the ranks' calls no longer
                            match, all ranks join a new group
    because a rank died or  the session ends, and the message names the variables that are lost
    cannot be interrupted

Each cell is a run like those of launch.run, with a ledger, a verdict if it fails, and the line that
says what the ranks are doing. If ranks wait inside NCCL on a GPU, they cannot be interrupted, and
then an interrupt ends the session.
"""

import ast
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from lib.backend import Choice
from lib.launch import alone, cells, stopped, warm
from lib.launch.errors import RankError, Stopped, short
from lib.launch.run import (
    Results,
    check_call,
    choose,
    pack,
    room_explained,
    run_on,
    say_once,
    settings_line,
)
from lib.ledger.match import audit
from lib.ledger.read import Ledger
from lib.ledger.words import ranks_text

LEAVE = 5.0  # seconds within which ranks have to leave a cell that was interrupted
JOIN = 20.0  # seconds within which ranks have to join a new group
ANEW = (
    "The ranks have formed a new process group, because some of their calls were never matched. "
    "Groups, device meshes and DDP or FSDP models from earlier cells can no longer be used: create "
    "them again. A tensor in a collective that was interrupted may be half overwritten."
)
_sessions: list["Session"] = []  # the sessions that have not ended, the most recently used last
_numbers = itertools.count(1)  # numbers the cells of all sessions


class Session:
    """Ranks that keep their variables until `end()`. `launch.session` creates one.

    ledger: what the last cell, or the last call of `run`, communicated; None if it kept no ledger.
    names: the variables that exist on at least one rank.
    """

    def __init__(self, choice: Choice, nproc: int, timeout: float, seed: int):
        self.nproc, self.timeout, self.names = nproc, timeout, []
        self.ledger: Ledger | None = None
        self._choice, self._seed, self._why = choice, seed, ""  # only the first run uses this seed
        self._ranks = warm.keep(choice, nproc)
        _sessions.append(self)

    def __repr__(self):
        if self._ended():
            return f"a session on {self.nproc} ranks that has ended"
        has = f"variables {', '.join(self.names)}" if self.names else "no variables yet"
        return f"a session on {self.nproc} ranks ({self._choice.name}): {has}"

    def run(
        self,
        fn: Callable,
        *args: Any,
        timeout: float = 60,
        ledger: bool = True,
        seed: int | None = None,
        **unknown: Any,
    ) -> Results:
        """Do what `launch.run(fn, *args)` does, on these ranks. Returns the results in rank order.

        seed: the base seed of the ranks' random numbers; with None they continue where the last
            cell left them.

        Raises what `launch.run` raises, and RuntimeError if the session has ended.
        """
        check_call(fn, args, self.nproc, timeout, 0 if seed is None else seed, [*unknown])
        return self._run(fn, args, timeout, ledger, seed, show=True)

    def cell(self, source: str, ranks: list[int] | None = None) -> None:
        """Run the source of a cell on all ranks, or only on `ranks`, and show what each prints and
        the value of its last expression. `%%ranks` calls this.

        The cell can use torch, dist, rank and world_size without importing them. Raises ValueError,
        before any rank has run a line, if the source is not valid Python or uses a check, or if the
        session does not have all of `ranks`. It also raises what `run` raises.
        """
        chosen = tuple(range(self.nproc)) if ranks is None else tuple(ranks)
        if strangers := [rank for rank in chosen if not 0 <= rank < self.nproc]:
            raise short(ValueError(
                f"this session has no {ranks_text(strangers)}, only "
                f"{ranks_text(range(self.nproc))}. Try: `%%ranks {self.nproc - 1}`, or start a "
                "session with more ranks"
            ))  # fmt: skip
        number = next(_numbers)
        _compile(number, source)
        try:
            done = self._run(cells.run, (number, source, chosen), self.timeout, True, None, True)
        except RankError as error:
            if error.waits_in and len(chosen) < self.nproc:
                error.args = (f"{error}\n(Only {ranks_text(chosen)} ran this cell.)",)
            raise
        self.names = sorted(set().union(*done))

    def __getitem__(self, name: str) -> list:
        """[the variable on rank 0, on rank 1, ...]. Raises KeyError if a rank has no variable of
        that name."""
        found = self._run(cells.fetch, (name,), self.timeout, True, None, False)
        lack = [rank for rank, (there, _) in enumerate(found) if not there]
        if not lack:
            return [value for _, value in found]
        near = next((like[0] for rank in lack if (like := found[rank][1])), "")
        text = f"{ranks_text(lack)} {'has' if len(lack) == 1 else 'have'} no variable {name!r}"
        if there := [rank for rank in range(self.nproc) if rank not in lack]:
            text += f"; only {ranks_text(there)} {'has' if len(there) == 1 else 'have'} one"
        elif near:
            text += f". Did you mean {near!r}?"
        raise short(KeyError(text))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the variable of this name to a copy of `value` on all ranks."""
        done = self._run(cells.put, ({name: value},), self.timeout, True, None, False)
        self.names = sorted(set().union(*done))

    def end(self) -> None:
        """End the ranks, which loses their variables."""
        if not self._ended():
            self._end("you called its end()")

    def _ended(self):
        return self._ranks.ended

    def _end(self, why):
        """End the ranks. why: the words that follow "The session has ended because"."""
        self._why = why
        self._ranks.end()
        if self in _sessions:
            _sessions.remove(self)

    def _run(self, fn, args, timeout, ledger, seed, show):
        self._check()
        if self in _sessions:
            _sessions.remove(self)
            _sessions.append(self)
        seed, self._seed = (self._seed if seed is None else seed), None
        payload = settings_line(ledger, seed) + pack(fn, args)
        with alone.among_others(), room_explained(), warm.cell_on(self._ranks), self._recovering():
            results = run_on(self._ranks, payload, timeout, ledger, show)
        if show:
            self.ledger = results.ledger
            for text in results.warnings[:3]:
                print(f"warning: {text}")
        return results

    def _check(self):
        """Raise RuntimeError if this session cannot run anything now, with the reason."""
        if stopped.in_a_check():
            raise short(RuntimeError(
                "a graded function cannot use a session: the check runs the function on separate "
                "ranks, which have none of the session's variables"
            ))  # fmt: skip
        if not self._ended() and not self._ranks.is_alive():
            self._end("one of its ranks died between two cells")
        if self._ended():
            raise short(RuntimeError(self._lost()))

    @contextlib.contextmanager
    def _recovering(self):
        """If a run inside the block fails or is stopped, make the ranks ready for the next cell,
        and add to the error whether the session continues."""
        try:
            yield
        except RankError as error:
            self.ledger = error.ledger
            text = str(error).replace("launch.run a larger", "launch.session a larger")
            told = [text, *_waited(error), self._recover(error.ledger)]
            error.args = ("\n".join(told),)
            raise
        except KeyboardInterrupt as stop:
            stop = stop if isinstance(stop, Stopped) else Stopped()
            stop.then = self._recover(stop.error and stop.error.ledger)
            if stop.error is not None:
                stopped.figure(stop.error)
            raise stop from None
        except Exception:  # for example when the disk is full
            self._recover(None)
            raise

    def _recover(self, ledger):
        """Make the ranks ready for the next cell, or end the session if that is not possible.
        Returns a text that says which of the two happened. ledger: the cell's; may be None."""
        try:
            return self._made_ready(ledger)
        except KeyboardInterrupt:
            self._end("you pressed stop again before all ranks had left the cell")
            return self._lost()

    def _made_ready(self, ledger):
        ranks = self._ranks
        if not ranks.is_alive():
            self._end("one of its ranks died")
            return self._lost()
        ranks.interrupt(inside := ranks.in_a_cell())
        if not ranks.have_left(LEAVE):
            self._end(f"{ranks_text(inside)} did not respond to the interrupt")
            return self._lost()
        even = ranks.are_even() and not (ledger and any(f.certain for f in audit(ledger)))
        if not even and self._choice.name != "gloo":
            self._end("calls of its ranks on their GPUs were never matched")
            return self._lost()
        if not even and not ranks.join_anew(JOIN):
            self._end("its ranks could not form a new process group")
            return self._lost()
        self.names = self._names()
        return "The session continues, and its variables are kept." + ("" if even else f" {ANEW}")

    def _names(self):
        run = settings_line(False, None) + pack(cells.variables, ())
        with contextlib.suppress(RankError):
            return sorted(set().union(*run_on(self._ranks, run, LEAVE, False, False)))
        return self.names

    def _lost(self):
        if self._ranks.ended and not self._why:
            self._end(f"no cell ran on it for {warm.idle(self._ranks) / 60:.0f} minutes")
        return (
            f"The session on {self.nproc} ranks has ended because {self._why}.{self._variables()} "
            f"Start a new one with `ranks = launch.session({self.nproc})`, and rerun the cells "
            "that define what you need."
        )

    def _variables(self):
        """A sentence that names the variables which are lost; "" if there are none."""
        if not self.names:
            return ""
        s, are = ("s", "are") if len(self.names) > 1 else ("", "is")
        return f" Its variable{s} {_listed(self.names)} {are} lost."


def _waited(error):
    """If some ranks raised an error, lines that say what the others were waiting for; [] for any
    other failure."""
    if error.kind != "raised" or not error.waits_in:
        return []
    alike: dict[str, list[int]] = {}
    for rank, op in error.waits_in.items():
        awaited = f" for {ranks_text(error.waits[rank])}" if error.waits[rank] else ""
        alike.setdefault(f"waiting{awaited} in {op}", []).append(rank)
    return [
        f"  meanwhile {ranks_text(ranks)} {'was' if len(ranks) == 1 else 'were'} {waiting}"
        for waiting, ranks in alike.items()
    ]


def _listed(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def session(nproc: int = 4, backend: str = "auto", timeout: float = 600, seed: int = 0) -> Session:
    """Start `nproc` ranks that keep their variables. Cells that begin with `%%ranks` run on them.

    backend, seed: as for `launch.run`. The seed is used once, before the first cell. In later cells
        the random numbers continue.
    timeout: the seconds that a cell may take; `Session.run` has a timeout of its own.

    An earlier session on the same number of ranks is ended. Sessions on other numbers of ranks
    continue, and `%%ranks NAME` chooses one of them by the name of its variable. Raises MemoryError
    if there is not enough memory for the ranks, and what `launch.run` raises for its arguments.
    """
    check_call(_nothing, (), nproc, timeout, seed, [])
    choice = choose(backend, nproc)
    say_once(choice)
    for earlier in [s for s in _sessions if s.nproc == nproc]:
        earlier._end(f"you started another session on {nproc} ranks")
        print(f"This ends the earlier session on {nproc} ranks.{earlier._variables()}")
    with room_explained():
        return Session(choice, nproc, timeout, seed)


def _nothing():
    pass


def latest() -> Session | None:
    """The session that was created or used last among those that have not ended; None if all
    have."""
    return next((s for s in reversed(_sessions) if not s._ended()), None)


def _compile(number, source):
    """Raise ValueError if the cell is not valid Python, or if it uses a check."""
    file = cells.remember(number, source)
    try:
        tree = ast.parse(source, file)
        compile(tree, file, "exec")
    except SyntaxError as error:
        line, text = error.lineno or 0, (error.text or "").rstrip()
        told = f"line {line} of this cell is not valid Python: {error.msg}\n    {text.strip()}"
        if text.lstrip().startswith(("!", "%")):
            told += (
                "\nLines that start with ! or % are commands of the notebook, and do not run on "
                "ranks: put them into a cell of their own"
            )
        # a ValueError, because IPython would show a SyntaxError together with frames of lib
        raise short(ValueError(told)) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "check":
            raise short(ValueError(
                f"check.{node.attr} grades a function that is defined in the notebook, and runs it "
                f"on separate ranks. Define the function and call check.{node.attr} in ordinary "
                "cells, without %%ranks"
            ))  # fmt: skip
