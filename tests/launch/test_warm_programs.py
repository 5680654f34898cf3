"""Ranks that stay, in programs of their own: what ends, is killed, forks or is graded
leaves none behind."""

import os
import signal

import own_processes
import psutil
import pytest
from programs import eventually, finish

pytestmark = pytest.mark.usefixtures("on_gloo")


def ranks_of(process):
    """The processes below a program: its servers and its ranks."""
    family = psutil.Process(process.pid).children(recursive=True)
    return [p for p in family if not any("resource_tracker" in word for word in p.cmdline())]


RESTING = """
    import os, sys, time
    from lib import launch
    for nproc in (2, 3):
        launch.capture(os.getpid, nproc=nproc, backend="gloo")
    print("ready", flush=True)
"""
SOCKETS = """
    from multiprocessing import util
    print(util.get_temp_dir(), flush=True)
    sys.stdin.read()
"""


def test_a_program_that_ends_leaves_no_process_and_no_folder(program, tmp_path):
    """Below a path, too, that is too long for the sockets from which ranks are started."""
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    process = program(RESTING + SOCKETS, TMPDIR=str(folder))
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    sockets = process.stdout.readline().strip()
    assert os.path.isdir(sockets) and not sockets.startswith(str(folder))
    family = ranks_of(process)
    assert len(family) > 5
    process.stdin.close()
    assert process.wait(60) == 0, process.stderr.read()
    assert eventually(lambda: not own_processes.any_is_running(family)), family
    assert list(folder.glob("launch-*")) == [] and not os.path.exists(sockets)


KILLS = [
    [signal.SIGKILL],
    pytest.param([signal.SIGTERM], marks=pytest.mark.slow),
    pytest.param([signal.SIGSTOP, signal.SIGKILL], marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize("signals", KILLS)
def test_a_program_that_is_killed_leaves_no_rank(program, signals):
    process = program(RESTING + "    time.sleep(600)\n")
    assert process.stdout.readline() == "ready\n"
    family = ranks_of(process)
    for number in signals:
        process.send_signal(number)
    process.wait()
    assert eventually(lambda: not own_processes.any_is_running(family)), family


WHILE_THE_SECOND_SERVER_IS_STOPPED = """
    import os, sys, time
    from lib import launch
    from lib.launch import warm
    warm.QUIET = 0
    launch.capture(os.getpid, nproc=2, backend="gloo")
    while len(warm.server_pids()) < 2:
        time.sleep(0.01)
    print("begins", warm.server_pids()[1], flush=True)
    launch.run(lambda: time.sleep(600), nproc=2, backend="gloo", timeout=700)
"""


def test_a_program_that_is_killed_leaves_no_server_that_was_stopped(program):
    """A stopped process does not notice by itself that the program has ended."""
    process = program(WHILE_THE_SECOND_SERVER_IS_STOPPED)
    server = psutil.Process(int(process.stdout.readline().split()[1]))
    assert eventually(lambda: server.status() == psutil.STATUS_STOPPED)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert eventually(lambda: not own_processes.any_is_running(family)), family


@pytest.mark.slow
def test_ranks_whose_server_is_killed_end_and_the_next_run_works(program):
    process = program(
        RESTING + "    sys.stdin.readline()\n    print(launch.capture(os.getpid, nproc=2))\n"
    )
    assert process.stdout.readline() == "ready\n"
    ranks = [p for p in ranks_of(process) if len(p.parents()) > 2 and p.ppid() != process.pid]
    for server_of_theirs in {p.parent() for p in ranks}:
        server_of_theirs.kill()
    assert eventually(lambda: not any(p.is_running() and p.status() != "zombie" for p in ranks)), (
        ranks
    )
    out, err = process.communicate("go\n", timeout=300)
    assert process.returncode == 0 and out.count(",") == 1, err


@pytest.mark.slow
def test_a_forked_process_neither_keeps_the_ranks_nor_loses_its_own(program):
    """It launches with ranks of its own, and goes on when the kernel has been killed; the
    kernel's ranks do not."""
    process = program(
        RESTING
        + """
    if os.fork() == 0:
        print("child", launch.capture(os.getppid, nproc=2, backend="gloo") is not None, flush=True)
        time.sleep(600)
    print("parent", len(launch.capture(os.getpid, nproc=3, backend="gloo")), flush=True)
    time.sleep(600)
    """
    )
    said = {process.stdout.readline() for _ in range(3)}
    assert said == {"ready\n", "child True\n", "parent 3\n"}
    child = next(p for p in psutil.Process(process.pid).children() if "-u" in p.cmdline())
    family = [
        p for p in ranks_of(process) if p != child and p not in child.children(recursive=True)
    ]
    try:
        process.kill()
        process.wait()
        assert eventually(lambda: not own_processes.any_is_running(family)), family
        assert child.is_running()
    finally:
        its_ranks = child.children(recursive=True)
        child.kill()
    assert eventually(lambda: not own_processes.any_is_running(its_ranks)), its_ranks


@pytest.mark.parametrize(
    "ours", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a student's", "ours"]
)
def test_while_graded_each_exercise_has_ranks_of_its_own_but_for_ours(program, ours):
    process = program(
        f"""
        import os
        from lib import launch
        from lib.check import framework
        pids = []
        def measure(fn):
            return fn()
        claims = (framework.Claim("has pids", 1, "", lambda runs: pids.append(runs[0].results)),)
        for name in ("one", "two"):
            framework.evaluate(framework.Exercise(name, measure, (2,), claims, ()), \
lambda: os.getpid())
        assert set(pids[0]).isdisjoint(pids[1]) != {ours}, pids
    """,
        LAB_REPORT=os.devnull,
        **({"LAB_OURS": "1"} if ours else {}),
    )
    code, _, err = finish(process)
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize(
    "step, at_first",
    [
        ("torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1).step()", True),
        pytest.param("__import__('torch._dynamo')", False, marks=pytest.mark.slow),
    ],
    ids=["named", "found out"],
)
def test_what_takes_seconds_to_import_is_imported_once_not_by_each_runs_ranks(
    program, step, at_first
):
    """An optimizer imports torch._dynamo: ranks did so again in every run, if no two
    seconds passed between two."""
    process = program(
        f"""
        import os, sys, torch
        from lib import launch
        def step():
            had = "torch._dynamo" in sys.modules
            {step}
            return had, os.getpid()
        had, pids = zip(*(launch.capture(step, nproc=1)[0] for _ in range(3)))
        assert had == ({at_first}, True, True), had
        assert pids[1] == pids[2] and (pids[0] == pids[1]) == {at_first}, pids
    """,
    )
    code, _, err = finish(process)
    assert code == 0, err
