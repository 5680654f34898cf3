"""Two nodes by network namespaces: ranks meet over the cable, and nothing is left behind,
however the run ends."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import own_processes
import pytest

from tests import two_nodes

ROOT = pathlib.Path(__file__).parent.parent

REASON = two_nodes.available()


def netns(test):
    """A test that needs the two nodes: elsewhere it reports itself as not run, and why."""
    return pytest.mark.netns(
        pytest.mark.skipif(REASON is not None, reason=f"not run: {REASON}")(test)
    )


SUM = """\
import torch, torch.distributed as dist
from lib import backend
from lib.collectives import all_reduce

backend.join()
base = 4 ** dist.get_rank() * torch.arange(1, 1 + 100_000)  # every rank's part shows in the sum
for op in (all_reduce, dist.all_reduce):
    x = base.clone()
    op(x)
    assert x.tolist() == [(4 ** dist.get_world_size() - 1) // 3 * i for i in range(1, 1 + 100_000)]
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: right")
dist.destroy_process_group()
"""
CRASH = """\
import os, time

print(f"node {os.environ['GROUP_RANK']} is here", flush=True)
if os.environ["GROUP_RANK"] == "1":
    raise ValueError("no such luck")
time.sleep(600)
"""
SLEEP = """\
import os, sys, time

open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").close()
time.sleep(600)
"""
INTERRUPTED = """\
import sys
from tests.two_nodes import two_nodes

with two_nodes() as nodes:
    nodes.run(*sys.argv[1:], nproc_per_node=2)
"""


def written(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def spaces(pid):
    """The network namespaces of process `pid`."""
    return [name for name in os.listdir("/run/netns") if name.startswith(f"two-nodes-{pid}-")]


def left_behind(script, pid):
    """Namespaces of process `pid`, and living processes, torchrun's and ranks',
    that run `script`."""
    return spaces(pid) + [
        process.pid for process in own_processes.running(str(script)) if process.pid != pid
    ]


@netns
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_all_reduce_over_the_cable_is_right(ranks, tmp_path):
    script = written(tmp_path, SUM)
    with two_nodes.two_nodes() as nodes:
        before = nodes.counters()
        ended = nodes.run(script, nproc_per_node=ranks)
        assert [code for code, _ in ended] == [0, 0], ended
        for node, (_, output) in enumerate(ended):
            for rank in range(ranks * node, ranks * (node + 1)):
                assert f"rank {rank} of {2 * ranks}: right" in output
        for sent in (
            after - earlier for after, earlier in zip(nodes.counters(), before, strict=True)
        ):
            assert sent > 800_000  # int64: no sum of 100,000 elements with less from each node
    assert left_behind(script, os.getpid()) == []


@pytest.mark.slow
@netns
def test_a_crash_on_one_node_gives_both_outputs_and_no_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(two_nodes, "GRACE", 2.0)
    script = written(tmp_path, CRASH)
    with two_nodes.two_nodes(rate=None) as nodes:
        waits, crashed = nodes.run(script, timeout=300)
        assert (waits.code, crashed.code) == (-signal.SIGKILL, 1)
        assert "node 0 is here" in waits.output and "ValueError" not in waits.output
        assert "node 1 is here" in crashed.output and "ValueError: no such luck" in crashed.output
        assert left_behind(script, 0) == []  # at once, not only when the block is left
    assert left_behind(script, os.getpid()) == []


@netns
def test_too_long_a_run_is_ended(tmp_path):
    script = written(tmp_path, SLEEP)
    with (
        two_nodes.two_nodes() as nodes,
        pytest.raises(TimeoutError, match=r"not ended after 1 s: torchrun .*script.py"),
    ):
        nodes.run(script, tmp_path, timeout=1)
    assert left_behind(script, os.getpid()) == []


@pytest.mark.slow
@netns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_or_sigterm_leaves_nothing_behind(number, tmp_path):
    script = written(tmp_path, SLEEP)
    command = [sys.executable, "-c", INTERRUPTED, str(script), str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for _ in range(600):
        if all((tmp_path / str(rank)).exists() for rank in range(4)) or process.poll() is not None:
            break
        time.sleep(0.1)
    assert len(left_behind(script, process.pid)) == 2 + 2 + 4  # namespaces, torchrun, ranks
    os.killpg(process.pid, number)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 128 + number or "KeyboardInterrupt" in said
    assert left_behind(script, process.pid) == []


@netns
def test_a_wrong_rate_says_what_tc_said_and_leaves_no_namespace():
    with (
        pytest.raises(RuntimeError, match=r"`tc .* rate 1gobit .*` failed: "),
        two_nodes.two_nodes(rate="1gobit"),
    ):
        pass
    assert spaces(os.getpid()) == []


@pytest.mark.parametrize(
    ("user", "tools", "says"), [(1000, {"ip", "tc"}, "need root"), (0, {"ip"}, "need tc, of")]
)
def test_where_it_cannot_be_it_says_why(user, tools, says, monkeypatch):
    monkeypatch.setattr(two_nodes.os, "geteuid", lambda: user)
    monkeypatch.setattr(two_nodes.shutil, "which", lambda tool: tool if tool in tools else None)
    assert says in two_nodes.available()
