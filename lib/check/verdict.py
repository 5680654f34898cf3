"""Shows a verdict to the student: as text or, if a person is in front of a notebook, as a card.
Also reports what a check was doing when it was stopped."""

import contextlib
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from lib import frontend
from lib.check import card, cells
from lib.check.card import Told
from lib.check.exercise import Bundle, Exercise, Outcome
from lib.check.failure import begun, in_its_case, of_exercise
from lib.launch import stopped
from lib.launch.errors import RankError, Stopped

BARE = re.compile(r"\bline (\d+) of (\w+)$")
NOT_JUDGED = "The check was stopped, so the points are what they were before."


def show(exercise: Exercise | Bundle, outcome: Outcome, fns: tuple[Callable, ...]) -> bool:
    """Print the verdict, or show it as a card. Returns True if it was a card."""
    if not frontend.attended():
        print("\n".join(outcome.lines))
        return False
    from lib.check.exercises import FUNCTIONS

    names = [part.name for part in exercise.parts]
    notes = cells.stale(names, fns, FUNCTIONS)
    text = [outcome.lines[0], *(f"  ({note})" for note in notes), *outcome.lines[1:]]
    state = "passed" if outcome.passed else "failed"
    if outcome.hint == "not written":
        state = "neutral"
    score, foot = outcome.lines[-1], _foot(exercise, outcome)
    if foot:
        text.append(foot)
    told = [*(Told("tip", note) for note in notes), *(_with_line(one, fns) for one in outcome.told)]
    frontend.show("\n".join(text), card.html(exercise.name, told, state, score, foot, names))
    return True


def _with_line(told, fns):
    """Add the text of a line of the answer where a rank could report only "line 3 of send_recv"."""
    found = BARE.search(told.text) if told.kind == "text" else None
    codes = [code for fn in fns if (code := getattr(fn, "__code__", None))]
    file = next((c.co_filename for c in codes if found and c.co_name == found[2]), None)
    line = linecache.getline(file, int(found[1])).strip() if file else ""
    return replace(told, text=f"{told.text}: {line}") if line else told


def _foot(exercise, outcome):
    """ "48 of 100; next: ring_all_gather" or, if the answer did not pass, "48 of 100 so far in this
    lab"; "" for an exercise that belongs to no lab."""
    from lib.check.so_far import lab_of, so_far

    if (lab := lab_of(exercise.name)) is None:
        return ""
    got, full, after = so_far(lab, exercise.name)
    if not outcome.passed:
        return f"{got} of {full} so far in this lab"
    return f"{got} of {full}; " + (f"next: {after}" if after else "the lab is done")


@contextlib.contextmanager
def shown_if_stopped(exercise: Exercise | Bundle) -> Iterator[None]:
    """If a check is stopped while it runs in this context, report at once what the answer was doing
    at that moment."""
    told = []

    def tell(error: RankError) -> None:
        told.append(error)
        _show_stopped(exercise, *_on_ranks(exercise, error))

    try:
        with stopped.told(tell):
            yield
    except KeyboardInterrupt as stop:
        if not told:
            at = getattr(stop, "at", "")
            text = f"it had not returned; it was in\n  {at}" if at else "before the answer ran"
            _show_stopped(exercise, exercise.parts[0].name, f"stopped: {text}")
        raise (stop if isinstance(stop, Stopped) else Stopped()) from None


def _on_ranks(exercise, error):
    """(the exercise that the ranks were running, what they were doing in it)"""
    name = (begun(error.ledger) or [exercise.parts[0].name])[-1]
    error.ledger = of_exercise(error.ledger, name)
    failed = in_its_case(error)
    part = next(part for part in exercise.parts if part.name == name)
    where = failed.where(part.worlds, error.ledger.world_size)
    # other ranks only wait for the next case, which has nothing to do with the answer
    error.waits = {rank: to for rank, to in error.waits.items() if rank in failed.waits_in}
    return name, f"{where}: {failed.text}"


def _show_stopped(exercise, name, text):
    first, *more = text.splitlines()
    lines = [exercise.name, f"  --  {name}", f"      {first}", *(f"      {line}" for line in more)]
    said = "\n".join([*lines, NOT_JUDGED])
    if not frontend.attended():
        print(said, flush=True)
        return
    told = [Told("stopped", first, name), *(Told("text", line) for line in more)]
    frontend.show(said, card.html(exercise.name, told, "neutral", "stopped", NOT_JUDGED))
