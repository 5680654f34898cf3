"""The graded checks. In a notebook: `check.send_recv(send_recv)`; later cells run `use(send_recv)`.

A check has the name of its exercise, and each exercise has a file in the folder of its lab, lab0/
to lab6/. `check.points(0)` adds up Lab 0's points. `python -m lib.check` prints which exercise is
tested in which adversarial case.

exercise.py exercises.py             the classes Exercise, Claim, Hint, Problem and Bundle;
                                     the list of all exercises
framework.py so_far.py               runs an answer and judges each claim; the points so far
verdict.py card.py cells.py          shows a verdict; lays it out as a card in a notebook;
                                     warns if it is about other code than the student sees
side_by_side.py shown.py probes.py   runs one script with lib's own function and with the answer;
                                     compares what they show; what every exercise is probed for
numbers.py causes.py                 functions that return a number; the hints of an exercise
cases.py comm.py wire.py             groups, sizes and inputs; the collectives given to an answer;
                                     how the ranks of a check exchange a few bytes
overlap.py footprint.py products.py  what runs at the same time; what is allocated and kept;
                                     how many multiply-adds are done
tensors.py                           random tensors, and the comparison of two tensors
claims.py traffic.py                 claims that have several judges; judges of what was sent
explain.py whose.py symptoms.py      explains a wrong value; finds the rank whose part is missing;
                                     predicates on a Problem
own_cells.py                         warns of names from cells that are not graded
python_errors.py earlier.py          explains Python's own errors; keeps mistakes in earlier
                                     exercises from costing points in later ones
failure.py guard.py                  facts about an answer that raised, hung or exited,
                                     on ranks and in the kernel
rules.py                             prints an exercise's docstring next to its check's claims
left_out.py                          reasons why an adversarial case does not apply
fingerprints.py                      recognises known mistakes, which are part of the tests
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
    from lib.check.exercises import EXERCISES  # imported late, because ranks do not need it

    if name in EXERCISES:
        return partial(check, EXERCISES[name])
    raise AttributeError(f"there is no check {name!r}; the checks are {', '.join(EXERCISES)}")


def __dir__():
    from lib.check.exercises import EXERCISES

    return sorted([*__all__, *EXERCISES])


def points(lab: int) -> None:
    """Print the latest result of each check of Lab `lab` in this kernel, and the points so far."""
    from lib.check.so_far import points as print_points

    print_points(lab)


def use(fn):
    """Return the student's `fn` if it has passed its check in this kernel. Otherwise return lib's
    function, and print a line that says so. Raises KeyError if no exercise has such a function."""
    from lib.check.exercises import FUNCTIONS

    name = getattr(fn, "__name__", repr(fn))
    if name not in FUNCTIONS or FUNCTIONS[name].reference is None:
        known = [part.name for part in FUNCTIONS.values() if part.reference is not None]
        raise KeyError(
            f"use() takes the function of an exercise, not {name!r}; they are {', '.join(known)}"
        )
    return stand_in(FUNCTIONS[name], fn)
