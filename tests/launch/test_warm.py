"""Ranks that stay: a run on them sees nothing of the one before, and none is left
when it must not be."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import cells
import own_processes
import psutil
import pytest
import torch
import torch.distributed as dist
from programs import eventually

from lib import backend, launch, linux
from lib.launch import groups, server, warm
from lib.pipeline.links import connect

pytestmark = pytest.mark.usefixtures("on_gloo")
BY_NAME = {cell.__name__: cell for cell in cells.CELLS}


def outcome(cell, fresh):
    """All that the notebook gets of a cell's run, in plain data: results, output, warnings, logs;
    or the verdict."""
    try:
        results = launch.capture(cell, nproc=3, timeout=20, fresh=fresh)
    except launch.RankError as error:
        return {"kind": error.kind, "verdict": str(error), "logs": logs(error.ledger)}
    return {
        "results": as_text(list(results)), "output": results.output, "warnings": results.warnings,
        "logs": logs(results.ledger),
    }  # fmt: skip


def as_text(value):
    torch.set_printoptions(profile="full")
    try:
        return repr(value)
    finally:
        torch.set_printoptions(profile="default")  # tests of other files follow in this process


def logs(ledger):
    """Everything but the times."""
    return [
        [(e.op, e.reduce_op, e.dtype, e.group, e.members, e.peer, e.tag, e.shape, e.nbytes, e.nth,
            e.file, e.line)
         for e in ledger.of(rank)]
        for rank in range(ledger.world_size)
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def all_is_imported():
    """Ranks from the first server are replaced once, whatever they did."""
    launch.capture(os.getpid, nproc=3)
    assert eventually(
        lambda: len(warm._servers) == 1 and warm._servers[0].modules != server.PRELOAD, 300
    )


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
        assert seen.get(what) == expected[what], (
            f"{then.__name__} after {first.__name__}: {list(warm.reasons)[-3:]}"
        )


@pytest.mark.parametrize("first", cells.CELLS, ids=lambda cell: cell.__name__)
def test_nothing_is_seen_of_the_cell_before(first, as_on_fresh_ranks):
    """`nothing` looks at everything that cells can find."""
    judge(first, cells.nothing, as_on_fresh_ranks)


@pytest.mark.parametrize(
    "first", random.Random("pairs").sample(cells.CELLS, 8), ids=lambda cell: cell.__name__
)
def test_a_cell_at_random_sees_nothing_of_the_one_before(first, as_on_fresh_ranks):
    """All pairs, in `make test-all`, are below."""
    judge(first, random.Random(first.__name__).choice(cells.CELLS), as_on_fresh_ranks)


@pytest.mark.slow
def test_any_cell_sees_nothing_of_any_before(as_on_fresh_ranks):
    for first in cells.CELLS:
        for then in cells.CELLS:
            judge(first, then, as_on_fresh_ranks)


HARMLESS = [
    "nothing", "random_numbers", "defaults", "environment", "told_once", "handlers", "streams",
    "groups", "uneven_groups", "a_message", "a_collective_nobody_waits_for", "in_the_background",
    "uses_a_linear", "a_class", "a_training_step",
]  # fmt: skip


def test_what_can_be_put_back_costs_no_new_ranks():
    """Else the tests above would show nothing but that new ranks are new."""
    for name in HARMLESS:
        launch.capture(getattr(cells, name), nproc=3)
        pids = launch.capture(os.getpid, nproc=3)
        launch.capture(getattr(cells, name), nproc=3)
        assert launch.capture(os.getpid, nproc=3) == pids, f"{name}: {list(warm.reasons)[-1:]}"


@pytest.mark.parametrize(
    "name", [cell.__name__ for cell in cells.CELLS if cell.__name__ not in HARMLESS]
)
def test_what_cannot_be_put_back_ends_the_ranks(name):
    pids = launch.capture(os.getpid, nproc=3)
    with contextlib.suppress(launch.RankError):
        launch.capture(getattr(cells, name), nproc=3, timeout=20)
    assert set(pids).isdisjoint(launch.capture(os.getpid, nproc=3))


def test_fresh_ranks_are_new_and_do_not_stay():
    pids = launch.capture(os.getpid, nproc=2)
    fresh = launch.capture(os.getpid, nproc=2, fresh=True)
    assert set(pids).isdisjoint(fresh) and not own_processes.known(fresh)
    assert launch.capture(os.getpid, nproc=2) == pids


def test_resting_ranks_take_no_processor_time():
    pids = launch.capture(os.getpid, nproc=8)
    with warm.one_at_a_time:  # not while another set is being made
        resting = next(ranks for ranks in warm._sets if ranks.agent.pids() == pids)
    assert eventually(lambda: resting.is_as_new(0))
    if linux.state(pids[0]):  # only Linux says what a process does
        assert eventually(lambda: [linux.state(pid) for pid in pids] == ["T"] * 8)
    spent = lambda: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
    before = spent()
    time.sleep(2)
    assert spent() - before <= 0.01 * 2


def test_a_rank_that_has_returned_still_sends_what_others_wait_for():
    """gloo's thread hands a message over when its receiver asks for it, here after the sender's
    function is over."""

    def late():
        group = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            late.sent = torch.full((1 << 20,), 3.0)
            late.work = group.send([late.sent], 1, 0)
            return 0.0
        time.sleep(0.5)
        came = torch.empty(1 << 20)
        group.recv([came], 0, 0).wait()
        return came.sum().item()

    assert launch.capture(late, nproc=2, backend="gloo", timeout=20) == [0.0, 3.0 * (1 << 20)]


def test_a_group_that_only_some_ranks_have_made_ends_the_ranks_and_the_next_run_makes_its_own():
    """torch lets it pass, and its ranks then name later groups differently: they would wait for
    each other for ever."""

    def connected(p):
        with groups.kept_for_checks():
            return dist.get_rank() < p and connect([range(p)]) is not None

    assert launch.capture(connected, 4, nproc=4) == [True] * 4
    assert launch.capture(connected, 3, nproc=4) == [True, True, True, False]
    warm.reasons.clear()
    assert launch.capture(connected, 4, nproc=4, timeout=20) == [True] * 4
    assert any("groups that not all ranks called" in reason for reason in list(warm.reasons))


def test_threads_take_turns():
    seen = {}
    at = lambda k: seen.update({k: launch.capture(lambda: (k, dist.get_rank()), nproc=2)})
    threads = [threading.Thread(target=at, args=[k]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {k: [(k, 0), (k, 1)] for k in range(4)}


EDITED = """
    import os, sys, time
    from pathlib import Path
    from lib import launch
    def words():
        from lib.training import clip
        return clip.__doc__
    file = Path("lib/training/clip.py")
    before, text = launch.capture(words, nproc=2), file.read_text()
    file.write_text("'edited'")
    assert launch.capture(words, nproc=2) == ["edited"] * 2 != before
    sys.path.insert(0, os.getcwd())
    for k in range(3):
        Path("of_the_user.py").write_text(f"value = {10**k}")
        def value():
            import of_the_user
            return of_the_user.value
        assert launch.capture(value, nproc=2) == [10**k] * 2
"""


@pytest.mark.slow
def test_an_edit_to_lib_or_to_a_module_of_ones_own_is_seen_by_the_next_run(tmp_path):
    shutil.copytree(
        Path(launch.__file__).parents[1], tmp_path / "lib", ignore=shutil.ignore_patterns("data")
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EDITED)], cwd=tmp_path, capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_after_a_failure_ranks_are_made_ready_while_nothing_runs():
    with pytest.raises(launch.RankError):
        launch.capture(cells.raises, nproc=2)

    def is_ready():
        with warm.one_at_a_time:  # not while it is being made
            return [(r.nproc, r.runs) for r in warm._sets][-1:] == [(2, 0)] and warm._sets[
                -1
            ].is_as_new(0)

    assert eventually(is_ready)
    pids = warm._sets[-1].agent.pids()
    assert launch.capture(os.getpid, nproc=2) == pids


def test_sets_end_when_they_have_rested_for_long(monkeypatch):
    ranks = own_processes.known(launch.capture(os.getpid, nproc=2))
    assert len(ranks) == 2
    monkeypatch.setattr(warm, "IDLE", 0.0)
    warm._keeper.wake()
    assert eventually(lambda: not own_processes.any_is_running(ranks))


@pytest.mark.usefixtures("keeper_waits")
def test_the_set_that_rested_longest_ends_when_memory_gets_short(monkeypatch):
    oldest, newer = (
        own_processes.known(launch.capture(os.getpid, nproc=nproc)) for nproc in (2, 3)
    )
    assert (len(oldest), len(newer)) == (2, 3)
    free = iter([0] + [1 << 50] * 100)
    monkeypatch.setattr(warm.linux, "free", lambda: next(free))
    launch.capture(os.getpid, nproc=5)
    # once their server has seen it
    assert eventually(lambda: not own_processes.any_is_running(oldest))
    assert len(newer) == sum(process.is_running() for process in newer)


@pytest.mark.usefixtures("keeper_waits")
def test_on_gpus_there_is_one_set_at_a_time(monkeypatch):
    """Of sets that are said to be on GPUs; no GPU is used."""
    ranks = own_processes.known(launch.capture(os.getpid, nproc=2))
    monkeypatch.setattr(warm._sets[-1], "choice", backend.Choice("nccl", 1, ""))
    warm._make_room(backend.Choice("nccl", 1, ""), 4)
    assert len(ranks) == 2 and eventually(lambda: not own_processes.any_is_running(ranks))
