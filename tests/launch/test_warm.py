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
from lib.launch import share, warm

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


@pytest.fixture(scope="module")
def as_on_fresh_ranks():
    """What each cell gives on new ranks."""
    known = {}

    def ask(cell):
        if cell not in known:
            known[cell] = outcome(cell, fresh=True)
        return known[cell]

    return ask


PAIRS = [(a, random.Random(a.__name__).choice(cells.CELLS)) for a in cells.CELLS]
ALL = [(a, b) for a in cells.CELLS for b in cells.CELLS]


def judge(first, then, as_on_fresh_ranks):
    expected = as_on_fresh_ranks(then)
    for cell in (first, then):
        seen = outcome(cell, fresh=False)
    assert seen == expected, f"{then.__name__} after {first.__name__}; ended sets: {list(warm.reasons)[-3:]}"


@pytest.mark.parametrize("first", cells.CELLS, ids=lambda cell: cell.__name__)
def test_a_cell_sees_nothing_of_the_one_before(first, as_on_fresh_ranks):
    """`nothing` looks at everything that cells can find; then a cell at random."""
    judge(first, cells.nothing, as_on_fresh_ranks)
    judge(first, random.Random(first.__name__).choice(cells.CELLS), as_on_fresh_ranks)
