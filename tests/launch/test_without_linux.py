"""Where there is no /proc, no prctl and no namespace, as on macOS, hidden here: slower to tell, and
nothing is lost."""

import ast
import os
import re
import subprocess
import sys
import time

import pytest

from lib import linux
from lib.course.notebook import ROOT

OF_LINUX = re.compile(  # calls that macOS has not, its Python neither; and paths
    r"prctl|unshare|setns|sched_[gs]etaffinity|waitid|pidfd_\w+|memfd_create|[gs]etres[ug]id|eventfd|epoll|prlimit|"
    r"O_(PATH|TMPFILE)|fdatasync|posix_f\w+|copy_file_range|splice|SIGRT\w+|sigtimedwait|AF_NETLINK|(/proc|/sys)(/.*)?"
)
SANDBOX = {"course/namespaces.py", "course/supervisor.py", "course/sandbox.py"}
# looks for an NVIDIA driver, before there is anything but the standard library
INSTALLS = {"course/install.py"}
BEHIND = {"linux.py", *SANDBOX, *INSTALLS}

HIDDEN = os.environ | {linux.WITHOUT: "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
BEGIN = """
import os, time, torch, torch.distributed as dist
from lib import here, launch, linux
from lib.course import sandbox
def total(rank=None):
    x = torch.ones(3)
    dist.all_reduce(x)
    return x.tolist(), os.getpid()
"""


def told(source, seconds=120):
    """What Python prints that runs this where Linux is hidden."""
    command = [sys.executable, "-c", BEGIN + source]
    ended = subprocess.run(command, env=HIDDEN, capture_output=True, text=True, timeout=seconds)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


ALL = """
print([linux.state(os.getpid()), linux.threads(os.getpid()), linux.held(1), \
linux.free(), linux.parents()])
here.ready()
print(sandbox.held("open"))
runs = [launch.run(total, nproc=2, backend='gloo') for _ in range(2)]
print(runs[0] == runs[1], runs[0][0][0])
def wait():
    dist.recv(torch.zeros(1), 1 - dist.get_rank())
def loop():
    while True: time.sleep(0.01)
for f in (wait, loop):
    try: launch.run(f, nproc=2, backend='gloo', timeout=3)
    except launch.RankError as error: print(error.kind)
print(launch.run(total, nproc=2, backend='gloo')[0][0])
"""


@pytest.fixture(scope="module")
def lines():
    """What one program says of all that the tests below ask, a line each; and which backend was
    chosen, and why."""
    return [line for line in told(ALL, seconds=300) if "gloo" not in line]


def names_of_linux(source):
    """What a program names that only Linux has: names, attributes, texts that are
    such a name or path."""
    for node in ast.walk(ast.parse(source)):
        named = (
            getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
        )
        if isinstance(named, str) and OF_LINUX.fullmatch(named):
            yield named


def test_what_only_linux_has_is_asked_in_one_module_and_in_the_sandbox():
    files = {
        path.relative_to(ROOT / "lib").as_posix(): path for path in (ROOT / "lib").rglob("*.py")
    }
    found = {
        name
        for name, path in files.items()
        if any(names_of_linux(path.read_text(encoding="utf-8")))
    }
    assert found == BEHIND
    told = [
        *names_of_linux(
            "import os\nf'/proc/{pid}/stat'\nos.pidfd_open(1)\ncall('prctl', 1)\n'a line of /proc'"
        )
    ]
    assert told == ["/proc/", "pidfd_open", "prctl"]


@pytest.mark.slow
def test_the_stand_in_hides_what_is_there(lines):
    assert lines[0] == "['', {}, 0, inf, {}]"
    if linux.IS_HERE:
        assert (
            linux.state(os.getpid()) == "R"
            and linux.held(os.getpid()) > 1e6
            and linux.free() < float("inf")
        )
        assert linux.parents()[os.getpid()] == os.getppid() and not linux.missing()


def test_the_first_cell_says_what_is_lost(lines):
    assert (
        "a hang inside C++ is found at the timeout" in lines[1]
        and "not shut off from files and network" in lines[1]
    )


def test_a_notebook_is_graded_without_a_sandbox_and_the_grade_says_so(lines):
    assert lines[2].count("network and files not shut off") == 1


def test_ranks_run_stay_and_are_used_again(lines):
    assert lines[3] == "True [2.0, 2.0, 2.0]"


def test_a_deadlock_has_its_verdict_and_a_loop_ends_at_the_timeout(lines):
    assert lines[4:] == ["deadlock", "timeout", "[2.0, 2.0, 2.0]"]


def test_ranks_end_soon_after_a_kernel_that_was_killed():
    source = (
        "print(*[pid for _, pid in launch.run(total, nproc=2, backend='gloo')], "
        "flush=True)\ntime.sleep(600)"
    )
    kernel = subprocess.Popen(
        [sys.executable, "-c", BEGIN + source], env=HIDDEN, stdout=subprocess.PIPE, text=True
    )
    try:
        line = kernel.stdout.readline()
        while "gloo" in line:  # which backend was chosen, and why
            line = kernel.stdout.readline()
        ranks = [int(pid) for pid in line.split()]
    finally:
        kernel.kill()
        kernel.wait()
    deadline = time.monotonic() + 30
    while any(map(alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(ranks) == 2 and not any(map(alive, ranks))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return linux.state(pid) not in ("Z", "X")
