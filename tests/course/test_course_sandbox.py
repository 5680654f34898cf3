"""What a notebook's code can reach while it is graded: tried from within, in each way that this
machine allows."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import own_processes
import psutil
import pytest
from class_tools import LIMITS

from lib.course import sandbox
from lib.course.notebook import ROOT, CourseError

ROOT_USER = os.geteuid() == 0
MODES = {
    "bubblewrap": sandbox.Held("bubblewrap", ROOT_USER, ""),
    "sealed": sandbox.Held("sealed", ROOT_USER, ""),
    "open": sandbox.Held("open", False, ""),
}

LOOK = """
import json, os, pathlib, socket, sys
def tried(f):
    try:
        return f() and "yes"
    except OSError as error:
        return type(error).__name__
server = socket.create_server(("127.0.0.1", 0))
told = {
    "environment": dict(os.environ), "cwd": os.getcwd(), \
"here": sorted(os.listdir(".")), "uid": os.getuid(),
    "loopback": tried(lambda: socket.create_connection(server.getsockname(), timeout=30)),
    "outside": tried(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "own file": tried(lambda: pathlib.Path("mine.txt").write_text("x")),
    "write to": [tried(lambda: pathlib.Path(path, "theirs.txt").write_text("x")) \
for path in sys.argv[2:4]],
    "hidden": [sorted(os.listdir(path)) if os.path.isdir(path) else [] \
for path in (sys.argv[2], sys.argv[4])],
    "read": [path for path in sys.argv[7:] if os.path.exists(path)],
    "out of process 1": tried(lambda: os.listdir("/proc/1/cwd") and os.listdir("/proc/1/fd")),
    "root": sorted(os.listdir("/")), "etc": sorted(os.listdir("/etc")),
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "kill": tried(lambda: os.kill(int(sys.argv[5]), 0) or True),
    "lib": os.access(sys.argv[6], os.R_OK),
}
pathlib.Path(os.environ["LAB_REPORT"]).write_text(json.dumps(told))
"""


def held_by(mode):
    try:
        sandbox.held(mode)
    except CourseError as error:
        pytest.skip(f"not run: {error}")
    return MODES[mode]


def shut_in(tmp_path, code, *arguments, held, hidden=(), limits=LIMITS, **options):
    """Run Python code shut in; returns (exit code, what it wrote to its report)."""
    with tempfile.TemporaryDirectory(prefix="lab-test-") as at:
        folder, book = Path(at), Path(at, "report.jsonl")
        notebook = tmp_path / "mine.ipynb"
        notebook.write_text("a notebook")
        command = [sys.executable, "-c", code, *map(str, arguments)]
        env = {"LAB_REPORT": str(book), "PYTHONPATH": str(ROOT)}
        start, task = sandbox.wrap(command, env, folder, notebook, limits, list(hidden), held)
        outer = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(start, input=task, env=outer, timeout=200, check=False, **options)
        return done.returncode, book.read_text()


@pytest.fixture
def open_folders():
    """Two folders that any user may write into, so that what keeps code out is not their mode."""
    with tempfile.TemporaryDirectory(prefix="lab-test-") as at:
        Path(at).chmod(0o755)
        folders = Path(at, "submissions"), Path(at, "elsewhere")
        for folder in folders:
            folder.mkdir()
            folder.chmod(0o777)
        yield folders


@pytest.mark.parametrize("mode", MODES)
def test_what_code_can_see_and_reach(tmp_path, open_folders, monkeypatch, mode):
    held = held_by(mode)
    monkeypatch.setenv("A_SECRET_TOKEN", "s3cr3t")
    others, elsewhere = open_folders
    (others / "alice.ipynb").write_text("hers")
    (elsewhere / "points.csv").write_text("of last year")
    beside = [
        elsewhere / "points.csv",
        *(ROOT / name for name in ("solutions", "tests", "labs", ".git", "README.md")),
    ]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        supervisor = ROOT / "lib" / "course" / "supervisor.py"
        arguments = [port, others, elsewhere, Path.home(), os.getpid(), supervisor, *beside]
        code, told = shut_in(tmp_path, LOOK, *arguments, held=held, hidden=[others])
    told = json.loads(told)
    assert code == 0 and told["lib"] and told["loopback"] == told["own file"] == "yes"
    assert "A_SECRET_TOKEN" not in told["environment"] and "s3cr3t" not in str(told)
    assert told["environment"]["HOME"] == told["cwd"] and told["here"] == ["mine.ipynb"]
    if mode != "open":
        assert told["outside"] == "ConnectionRefusedError" and told["interfaces"] == ["lo"]
        assert set(told["write to"]) <= {"OSError", "PermissionError", "FileNotFoundError"}
        assert told["hidden"][0] == [] and set(told["hidden"][1]) <= set(os.listdir(Path.home()))
        assert len(told["processes"]) == 2 and told["kill"] == "ProcessLookupError"
        assert ".ssh" not in told["hidden"][1] and told["uid"] > 0
        assert [path.name for path in others.iterdir()] == ["alice.ipynb"]
        assert [path.name for path in elsewhere.iterdir()] == ["points.csv"]
        assert told["read"] == [] and told["out of process 1"] == "PermissionError"
    if mode == "bubblewrap":
        assert set(told["etc"]) <= {path.rpartition("/")[2] for path in sandbox.SYSTEM}
        places = [
            *sandbox.LIBRARIES,
            *sandbox.SYSTEM,
            "/dev",
            "/proc",
            *sandbox._needed(),
            tempfile.gettempdir(),
        ]
        assert set(told["root"]) <= {path.split("/")[1] for path in places}


GREEDY = {
    "memory of one process": ("x = bytearray(600_000_000)", 1, "MemoryError"),
    "memory in all": (
        "import os, time\n"
        "for _ in range(5):\n    if os.fork() == 0:\n        x = b'x' * 300_000_000\n        "
        "time.sleep(30)\n"
        "killed = os.wait()[1]\nassert killed == 9, killed",
        0,
        "",
    ),
    "a large file": (
        "import errno\nfile = open('big', 'wb')\ntry:\n    [file.write(b'x' * 10**6) for _ in "
        "range(100)]\n"
        "except OSError as error:\n    raise SystemExit(3 if error.errno in (errno.EFBIG, "
        "errno.ENOSPC) else 4)",
        3,
        "",
    ),
    "processor time": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
        137,
        "",
    ),
    "raising a limit": (
        "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_DATA, (2**40, 2**40))\n"
        "except (ValueError, OSError):\n    raise SystemExit(5)",
        5,
        "",
    ),
    "processes": (
        "import os, time\ntry:\n    for _ in range(200):\n        if os.fork() == 0:\n            "
        "time.sleep(60)\n"
        "except BlockingIOError:\n    raise SystemExit(6)",
        6,
        "",
    ),
}


@pytest.mark.parametrize("what", GREEDY)
def test_limits_hold(tmp_path, what):
    held = sandbox.held()
    if ROOT_USER and not held.drop and what in ("processes", "raising a limit"):
        pytest.skip(f"root is not bound by this limit here: {held.says}")
    code, wanted, said = GREEDY[what]
    with open(tmp_path / "err", "w+") as err:
        assert shut_in(tmp_path, code, held=held, stderr=err)[0] == wanted
        err.seek(0)
        assert said in err.read()


GRADER = """
import subprocess, sys
from pathlib import Path
from lib.course import sandbox
at, code, how, drop = sys.argv[1:]
command = [sys.executable, "-c", code, "60"]
env = {"LAB_REPORT": f"{at}/report.jsonl"}
held = sandbox.Held(how, drop == "True", "")
start, task = sandbox.wrap(command, env, Path(at), Path(sandbox.__file__), \
sandbox.Limits(), [], held)
subprocess.run(start, input=task)
"""


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_running_whether_it_ends_is_told_to_stop_or_its_grader_is_killed(
    tmp_path, mode
):
    held = held_by(mode)
    mark = own_processes.long_sleep()
    daemons = (
        f"import os, subprocess, sys, time\nsubprocess.Popen(['sleep', '{mark}'], "
        f"start_new_session=True, env={{}})\n"
        f"if os.fork() == 0:\n    os.setsid()\n"
        f"    if os.fork() == 0:\n        os.execvpe('sleep', ['sleep', '{mark}'], {{}})\n"
        "    os._exit(0)\nopen(os.environ['LAB_REPORT'], "
        "'w').write('ready')\ntime.sleep(float(sys.argv[1]))"
    )
    assert shut_in(tmp_path, daemons, 0, held=held) == (0, "ready")
    assert own_processes.left(mark) == []
    for stop in (lambda grader: grader.children()[0].terminate(), lambda grader: grader.kill()):
        with tempfile.TemporaryDirectory(prefix="lab-test-") as at:
            command = [sys.executable, "-c", GRADER, at, daemons, held.how, str(held.drop)]
            grader = psutil.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
            while grader.poll() is None and not (
                Path(at, "report.jsonl").exists() and Path(at, "report.jsonl").read_text()
            ):
                time.sleep(0.05)
            assert grader.poll() is None and own_processes.running(mark)
            stop(grader)
            grader.wait(timeout=120)
            assert own_processes.left(mark) == [] == own_processes.left(at)


def test_an_environment_that_is_reached_by_a_link_is_shut_in_as_any_other():
    with tempfile.TemporaryDirectory(prefix="lab-test-") as folder:
        # a user of the notebook's own has to pass, where that is all that works
        os.chmod(folder, 0o755)
        link = Path(folder, "env")
        link.symlink_to(sys.prefix)
        command = [
            link / "bin" / "python",
            "-c",
            "from lib.course import sandbox; print(sandbox.held().how)",
        ]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
    assert done.stdout.strip() == sandbox.held().how, done.stderr


@pytest.mark.skipif(not ROOT_USER, reason="not run: only root's notebooks could end every process")
def test_a_notebook_runs_as_root_only_if_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(sandbox, "_works", lambda mode: False)
    sandbox.held.cache_clear()
    try:
        with pytest.raises(
            CourseError, match=r"would run as root here.*Install bubblewrap.*--sandbox open"
        ):
            sandbox.held()
        assert sandbox.held("open").says == "open, as root: limits; network and files not shut off"
    finally:
        sandbox.held.cache_clear()
