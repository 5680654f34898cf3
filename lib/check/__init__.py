"""The graded checks. In a notebook: `check.send_recv(send_recv)`; later cells run `use(send_recv)`.

A check has the name of its exercise. `framework.py` says what an exercise, a claim and a hint are; `exercises.py` lists
them all; each is one file in the folder of its lab.
"""

from functools import partial
from importlib.util import find_spec

from lib.check.framework import CheckFailed, check, stand_in

__all__ = ["CheckFailed", "use"]


def __getattr__(name):
    if find_spec(f"{__name__}.{name}"):  # a file of this folder, not imported yet
        raise AttributeError(name)
    from lib.check.exercises import EXERCISES  # not before it is asked for: a rank does without

    if name in EXERCISES:
        return partial(check, EXERCISES[name])
    raise AttributeError(f"there is no check {name!r}; the checks are {', '.join(EXERCISES)}")


def __dir__():
    from lib.check.exercises import EXERCISES

    return sorted([*__all__, *EXERCISES])


def use(fn):
    """The student's `fn` once it has passed its check in this kernel; until then lib's, and a line that says so."""
    from lib.check.exercises import FUNCTIONS

    name = getattr(fn, "__name__", repr(fn))
    if name not in FUNCTIONS or FUNCTIONS[name].reference is None:
        known = [part.name for part in FUNCTIONS.values() if part.reference is not None]
        raise KeyError(f"use() takes the function of an exercise, not {name!r}; they are {', '.join(known)}")
    return stand_in(FUNCTIONS[name], fn)
