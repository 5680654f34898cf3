"""Ranks that stay: a run on them sees nothing of the one before, and none is left when it must not be."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import cells
import psutil
import pytest
import torch
import torch.distributed as dist

from lib import launch
from lib.launch import server, share, warm

pytestmark = pytest.mark.usefixtures("on_gloo")
BY_NAME = {cell.__name__: cell for cell in cells.CELLS}


def outcome(cell, fresh):
    """All that the notebook gets of a cell's run, in plain data: results, output, warnings, books; or the verdict."""
    try:
        results = launch.capture(cell, nproc=3, timeout=20, fresh=fresh)
    except launch.RankError as error:
        return {"kind": error.kind, "verdict": str(error), "books": books(error.ledger)}
    return {
        "results": as_text(list(results)), "output": results.output, "warnings": results.warnings,
        "books": books(results.ledger),
    }  # fmt: skip


def as_text(value):
    torch.set_printoptions(profile="full")
    return repr(value)


def books(ledger):
    """Everything but the times."""
    return [
        [(e.op, e.reduce_op, e.dtype, e.group, e.members, e.peer, e.tag, e.shape, e.nbytes, e.nth, e.file, e.line)
         for e in ledger.of(rank)]
        for rank in range(ledger.world_size)
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def all_is_imported():
    """Ranks from the first server are replaced once, whatever they did."""
    launch.capture(os.getpid, nproc=3)
    assert eventually(lambda: len(warm._servers) == 1 and warm._servers[0].modules != server.PRELOAD, 300)


def eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def as_on_fresh_ranks():
    """What each cell gives on new ranks."""
    known = {}

    def ask(cell):
        if cell not in known:
            known[cell] = outcome(cell, fresh=True)
        return known[cell]

    return ask


def judge(first, then, as_on_fresh_ranks):
    expected = as_on_fresh_ranks(then)
    for cell in (first, then):
        seen = outcome(cell, fresh=False)
    for what in expected:
        assert seen.get(what) == expected[what], f"{then.__name__} after {first.__name__}: {list(warm.reasons)[-3:]}"


@pytest.mark.parametrize("first", cells.CELLS, ids=lambda cell: cell.__name__)
def test_a_cell_sees_nothing_of_the_one_before(first, as_on_fresh_ranks):
    """`nothing` looks at everything that cells can find; then a cell at random."""
    judge(first, cells.nothing, as_on_fresh_ranks)
    judge(first, random.Random(first.__name__).choice(cells.CELLS), as_on_fresh_ranks)


@pytest.mark.slow
def test_any_cell_sees_nothing_of_any_before(as_on_fresh_ranks):
    for first in cells.CELLS:
        for then in cells.CELLS:
            judge(first, then, as_on_fresh_ranks)


HARMLESS = [
    "nothing", "random_numbers", "defaults", "environment", "told_once", "handlers", "streams", "groups", "uneven_groups",
    "a_message", "a_collective_nobody_waits_for", "in_the_background", "uses_a_linear", "a_class", "a_training_step",
]  # fmt: skip


def test_what_can_be_put_back_costs_no_new_ranks():
    """Else the tests above would show nothing but that new ranks are new."""
    for name in HARMLESS:
        launch.capture(getattr(cells, name), nproc=3)
        pids = launch.capture(os.getpid, nproc=3)
        launch.capture(getattr(cells, name), nproc=3)
        assert launch.capture(os.getpid, nproc=3) == pids, f"{name}: {list(warm.reasons)[-1:]}"


@pytest.mark.parametrize("name", [cell.__name__ for cell in cells.CELLS if cell.__name__ not in HARMLESS])
def test_what_cannot_be_put_back_ends_the_ranks(name):
    pids = launch.capture(os.getpid, nproc=3)
    with contextlib.suppress(launch.RankError):
        launch.capture(getattr(cells, name), nproc=3, timeout=20)
    assert set(pids).isdisjoint(launch.capture(os.getpid, nproc=3))


def test_fresh_ranks_are_new_and_do_not_stay():
    pids = launch.capture(os.getpid, nproc=2)
    fresh = launch.capture(os.getpid, nproc=2, fresh=True)
    assert set(pids).isdisjoint(fresh) and not any(map(psutil.pid_exists, fresh))
    assert launch.capture(os.getpid, nproc=2) == pids
