"""A Slurm of our own leaves nothing behind, however it ends. The jobs that run on it are in
test_many_nodes.py."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import slurm, two_nodes

ROOT = pathlib.Path(__file__).parent.parent

USED = """\
import sys, time
from tests import slurm

with slurm.two_nodes(sys.argv[1]) as cluster:
    cluster.submit("--nodes=2", "--wrap", f"touch {sys.argv[1]}/runs; srun sleep 600", \
f"--output={sys.argv[1]}/said")
    time.sleep(600)
"""


def named(processes):
    """Their names. One that ends meanwhile has none."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield process.name()


def untouched():
    """What would change if somebody wrote to the machine's own names or munge."""
    return [
        (path, os.path.exists(path) and os.stat(path).st_mtime_ns)
        for path in ("/etc/hosts", "/run/munge")
    ]


def namespaces(pid):
    return [name for name in os.listdir("/run/netns") if name.startswith(f"two-nodes-{pid}-")]


@slurm.needed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_while_a_job_runs_leaves_nothing_behind(number, tmp_path):
    before = untouched()
    command = [sys.executable, "-c", USED, str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        for _ in range(3000):
            ours = psutil.Process(process.pid).children(recursive=True)
            if list(named(ours)).count("sleep") == 2 or process.poll() is not None:
                break
            time.sleep(0.1)
        assert {"munged", "slurmctld", "slurmd", "srun", "sleep"} <= set(named(ours)), (
            process.poll()
        )
        os.killpg(process.pid, number)
        said = process.communicate(timeout=300)[1]
        assert process.returncode in (-number, 128 + number) or "KeyboardInterrupt" in said
        assert psutil.wait_procs(ours, timeout=60)[1] == []
        if number != signal.SIGKILL:  # nobody is left then who could remove these
            assert namespaces(process.pid) == []
            assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "said"]
        assert untouched() == before
    finally:
        process.kill()
        process.wait()
        for name in namespaces(process.pid):
            two_nodes.end_all_in(name)
            two_nodes.call("ip", "netns", "delete", name)


@slurm.needed
def test_a_daemon_that_does_not_start_is_quoted_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "CONF", slurm.CONF.replace("select/cons_tres", "select/no_such"))
    with (
        pytest.raises(RuntimeError, match=r"(?s)Slurm did not start:\n.*select/no_such"),
        slurm.two_nodes(tmp_path),
    ):
        pass
    assert namespaces(os.getpid()) == [] and list(tmp_path.iterdir()) == []
    assert set(slurm.TOOLS).isdisjoint(named(psutil.Process().children(recursive=True)))


@pytest.mark.parametrize(
    ("user", "has", "says"),
    [
        (0, "munged", r"needs slurmctld, .*\(Debian: apt-get install slurm-wlm munge\)"),
        (1000, "", "need root"),
    ],
)
def test_where_it_cannot_be_it_says_why(user, has, says, monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda tool: tool if has in tool else None)
    monkeypatch.setattr(two_nodes.os, "geteuid", lambda: user)
    assert re.search(says, slurm.available.__wrapped__())
