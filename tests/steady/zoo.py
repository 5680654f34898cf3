"""A machine that is not ours alone: programs that a careless test would take for its own, and
little room.

    with zoo() as told:         told: what this machine allowed, a sentence each
        subprocess.run([*SMALL_SHM, *command])

Every animal reads its standard input, which this process holds open. So all of them end when the
block is left, and also when this process is killed.
"""

import contextlib
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

WAITS = "read line"  # of a shell: until its input ends
BUSY = "import select, sys\nwhile not select.select([sys.stdin], [], [], 0)[0]: sum(range(100_000))"
LOOPS = 2
# of a number such as graded notebooks get (lib/course/supervisor.py: FIRST_USER)
GRADED_USER = 1_000_000_001
ANIMALS = [  # argv, from its first word on: what ps shows
    ["", ""],
    ["python", "", "train.py", ""],
    ["torchrun", "--nnodes=2", "--nproc-per-node=2", "train.py"],
    ["python", "-m", "torch.distributed.run", "script.py"],
    ["python", "-m", "lib.launch"],
    ["python", "-m", "lib.ledger", "logs"],
    ["python", "-m", "lib.course.supervisor"],
    ["python", "-m", "lib.course", "grade", "--lab", "0"],
    ["python", "from multiprocessing.forkserver import main; main(0, 1, ['torch'])"],
    ["python", "from multiprocessing.resource_tracker import main; main(0)"],
    ["python", "-m", "ipykernel_launcher", "-f", "kernel.json"],
    ["python", "-m", "pytest", "tests"],
    ["python", "-c", "import time; time.sleep(100)"],
    ["sleep", "600.25"],
    ["sleep", "600.5"],
    ["chromium", "--headless"],
]
ENVIRONMENT = {
    "TESTS_GPU_STEP": "zoo",
    "LAB_RUN": "zoo",
    "LAB_CELLS": "/tmp/zoo",
    "RANK": "0",
    "WORLD_SIZE": "2",
}
# torchrun's own, the c10d rendezvous', and the first that a Slurm job would take
PORTS = 29500, 29400, 20000
FOLDERS = ("launch-", "two-nodes-", "lab-run-", "distributed-training-")
# A /dev/shm of the command's own, so that the machine's memory and other programs' /dev/shm stay as
# they are: of 64 MiB 48 are taken. It is gone when the command has ended.
SMALL_SHM = [
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    "mount -t tmpfs -o size=64m zoo /dev/shm && head -c 48M /dev/zero > /dev/shm/zoo && exec "
    "\"$@\"", "sh",
]  # fmt: skip


def root_may(*command: str) -> bool:
    """Whether this user and this machine allow such a command."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def small_shm() -> list[str]:
    """Words to put before a command that is to have a small, nearly full /dev/shm; none where that
    cannot be had."""
    return SMALL_SHM if root_may(*SMALL_SHM, "true") else []


@contextlib.contextmanager
def zoo(**environment: str) -> Iterator[list[str]]:
    """Inside, all of it lives, with these variables added to each process's environment.

    Yields what there is, and what this machine did not allow.
    """
    with contextlib.ExitStack() as stack:
        cage = Cage({**ENVIRONMENT, **environment})
        stack.callback(cage.open)
        for _ in range(LOOPS):
            cage.put([sys.executable, "-S", "-c", BUSY])
        for argv in ANIMALS:
            cage.put([argv[0], "-c", WAITS, *argv[1:]], executable="/bin/sh")
        told = [
            f"{LOOPS} busy loops",
            f"{len(ANIMALS)} processes with names like ours or empty arguments",
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            cage.put(["python", "-c", WAITS], executable="/bin/sh", user=GRADED_USER)
            told.append("one by a user such as graded notebooks have")
        if root_may("unshare", "--net", "true"):
            for _ in range(2):
                cage.put(["unshare", "--net", "sh", "-c", WAITS, ""])
            told.append("2 in network namespaces of their own")
        else:
            told.append("no network namespaces: they need root")
        name = f"two-nodes-{os.getpid()}-0-0"
        if root_may("ip", "netns", "add", name):
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=True)
            told.append("a network namespace with a name like ours")
        taken = []
        for port in PORTS:
            server = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # another program has it, which is as good
                server.bind(("127.0.0.1", port))
                server.listen()
            taken.append(str(port))
        told.append(f"ports {', '.join(taken)} taken")
        for prefix in FOLDERS:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
            pathlib.Path(folder, "state").touch()
        told.append(
            "/dev/shm nearly full" if small_shm() else "/dev/shm as it is: a small one needs root"
        )
        time.sleep(0.5)
        if dead := [
            shlex.join(process.args) for process in cage.processes if process.poll() is not None
        ]:
            raise RuntimeError(f"these have ended instead of waiting: {'; '.join(dead)}")
        yield told


class Cage:
    """The processes that `put` started; `open` ends them by their numbers, which nobody else can
    have meanwhile."""

    def __init__(self, environment: dict[str, str]):
        self.environment = environment
        self.processes: list[subprocess.Popen] = []

    def put(self, argv, **options):
        options |= {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        env = {**os.environ, **self.environment}
        self.processes.append(subprocess.Popen(argv, env=env, start_new_session=True, **options))

    def open(self):
        for process in self.processes:
            # subprocess sends nothing to a process that has ended and been waited for
            process.kill()
        for process in self.processes:
            process.communicate()
