"""The graded checks. In a notebook: `check.send_recv(send_recv)`; later cells run `use(send_recv)`.

A check has the name of its exercise; each exercise is one file in the folder of its lab, lab0/ to
lab6/. `python -m lib.check` prints which exercise meets which adversarial case. `check.points(0)`
adds up Lab 0's points.

exercise.py exercises.py             what an exercise, a claim and a hint are, as data;
                                     which exercises there are
framework.py so_far.py               runs an answer and judges it claim by claim; the points so far
verdict.py card.py cells.py          how a verdict is shown; what it looks like in a notebook;
                                     whether it is about the code that the student sees
side_by_side.py shown.py probes.py   an answer beside lib's own: a script, what it shows, and
numbers.py causes.py                 what is looked at in every exercise; functions of numbers;
                                     sentences by name
cases.py comm.py                     groups, sizes, numbers; the collectives that an answer is given
overlap.py footprint.py products.py  what runs at the same time; what is made and kept;
                                     matrix products, counted
pure.py tensors.py                   functions without ranks, of plain numbers;
                                     tensors, drawn and compared
claims.py traffic.py                 claims of several judges; judges of what was sent
explain.py whose.py symptoms.py      what a wrong number says, and whose part it is; hints that
                                     exercises share
own_cells.py                         names from cells that grading leaves out
python_errors.py earlier.py          what Python refuses, in words that lead on; an earlier function
                                     that has not passed does not cost a later one
failure.py guard.py                  the facts of an answer that raised, hung or exited,
                                     on ranks and in this process
rules.py                             an exercise's docstring beside the claims of its check
left_out.py                          why adversarial cases do not apply
fingerprints.py                      what known mistakes, which are tests, leave behind
"""

from functools import partial
from importlib.util import find_spec

from lib.check import cells
from lib.check.framework import CheckFailed, check, stand_in

cells.watch()

__all__ = ["CheckFailed", "points", "use"]


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


def points(lab: int) -> None:
    """Print what the checks of Lab `lab` have said in this kernel, and the points so far."""
    from lib.check.so_far import points as told

    told(lab)


def use(fn):
    """The student's `fn` once it has passed its check in this kernel; until then lib's, and
    a line that says so."""
    from lib.check.exercises import FUNCTIONS

    name = getattr(fn, "__name__", repr(fn))
    if name not in FUNCTIONS or FUNCTIONS[name].reference is None:
        known = [part.name for part in FUNCTIONS.values() if part.reference is not None]
        raise KeyError(
            f"use() takes the function of an exercise, not {name!r}; they are {', '.join(known)}"
        )
    return stand_in(FUNCTIONS[name], fn)
