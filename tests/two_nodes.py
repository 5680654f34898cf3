"""Two nodes on one machine: two network namespaces of Linux, and a slow cable between them.

    namespace 0                                            namespace 1
    torchrun --node-rank 0                                 torchrun --node-rank 1
      ranks 0 to K-1, among them by loopback                 ranks K to 2K-1
      link0, 10.77.0.1  ======== rate, each way ========     link0, 10.77.0.2

    with two_nodes(rate="1gbit") as nodes:
        # torchrun in both, until both have ended
        first, second = nodes.run("train.py", nproc_per_node=2)

A namespace has network cards, addresses and ports of its own: the two meet as two machines would,
by TCP over that cable alone. `tc tbf`, a token bucket, lets bytes out of each end at the rate.
Unlike two machines they share cores, and the cable has no latency. Needs root, `ip` and `tc`;
`available` says what is missing. When the block is left, by an error, an interrupt or SIGTERM too,
what lives in the namespaces is ended, and they are deleted.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
INTERFACE = "link0"  # in both: each namespace has names of its own
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = "29500"  # nobody else is in the namespace who could have taken it
# bytes a packet, as usual in clusters; the shorter ones of 1500 cost the cores more than a real
# card would
MTU = "9000"
# else ranks warn that nobody knows addresses' names
QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
GRACE = 10.0  # seconds that a node has to end by itself once the other has failed

_pairs = itertools.count()


class Ended(NamedTuple):
    """How torchrun ended on one node."""

    code: int  # its exit code; -9 if it had to be ended
    output: str  # stdout and stderr of torchrun and of its ranks


def available() -> str | None:
    """Why this machine cannot make two nodes, or None if it can. Tries it, in some 0.1 s."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "two nodes need network namespaces, and these need root"
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"two nodes need {' and '.join(missing)}, of the package iproute2"
    try:
        with two_nodes():
            return None
    except RuntimeError as error:
        return str(error)


@contextlib.contextmanager
def two_nodes(rate: str | None = "1gbit"):
    """Make the two nodes, yield them as `Nodes`, and leave nothing behind. rate: as tc writes it;
    None: no limit.

    Raises RuntimeError, with what `ip` or `tc` said, where they cannot be made.
    """
    pair = next(_pairs)
    names = [f"two-nodes-{os.getpid()}-{pair}-{node}" for node in (0, 1)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_an_error())
        for name in names:
            call("ip", "netns", "add", name)
            stack.callback(call, "ip", "netns", "delete", name)
            stack.callback(end_all_in, name)  # before the line above
        ends = [["name", INTERFACE, "netns", name] for name in names]
        call("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            call("ip", "-n", name, "link", "set", "lo", "up")
            call("ip", "-n", name, "link", "set", INTERFACE, "mtu", MTU, "up")
            call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            if rate is not None:
                bucket = ["rate", rate, "burst", "256kb", "latency", "50ms"]
                call("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *bucket)
        yield Nodes(names)


@contextlib.contextmanager
def terminated_as_an_error():
    """SIGTERM, from `timeout` or `kill`, raises SystemExit in the block: what it has made is taken
    down on the way."""

    def leave(number, frame):
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def static(node):
    """torchrun's options for a meeting whose members are numbered beforehand, at node 0."""
    return [f"--node-rank={node}", f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}"]


def c10d(node):
    """For a meeting that numbers who comes, where a node that restarts its ranks makes the other do
    so too.

    The last two say what torchrun would find out by the nodes' names, and these two nodes have one
    name.
    """
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}", "--rdzv-id=job"]
    return [*where, f"--rdzv-conf=is_host={int(node == 0)}", f"--local-addr={ADDRESSES[node]}"]


class Nodes:
    """Two nodes that `two_nodes` made. Their namespaces are called `names`."""

    def __init__(self, names):
        self.names = names

    def run(
        self, *command, nproc_per_node=1, meeting=static, env=None, timeout=300.0
    ) -> list[Ended]:
        """torchrun `command` on both nodes, wait for both, and return how each ended: [node 0's,
        node 1's].

        command: what torchrun takes last: a script and its arguments, or "-m", a module and its
        arguments. It runs in the repository root. meeting: `static` or `c10d`, above. env: further
        variables for the ranks. After a failure on one node the other has GRACE seconds to end, and
        is then ended. Raises TimeoutError, with both outputs, after `timeout` seconds.
        """
        env = {**QUIET, **os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, **(env or {})}
        deadline, started = time.monotonic() + timeout, []
        with contextlib.ExitStack() as stack:
            logs = stack.enter_context(tempfile.TemporaryDirectory(prefix="two-nodes-"))
            outputs = [stack.enter_context(open(f"{logs}/{node}", "w")) for node in (0, 1)]
            stack.callback(self._end, started)
            for node, name in enumerate(self.names):
                torchrun = [
                    "ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run",
                    "--nnodes=2",
                    *meeting(node), f"--nproc-per-node={nproc_per_node}", f"--log-dir={logs}",
                    *map(str, command),
                ]  # fmt: skip
                # A session of its own: an interrupt from the keyboard is for this process, which
                # then ends them all.
                kwargs = {
                    "stdin": subprocess.DEVNULL,
                    "stderr": subprocess.STDOUT,
                    "start_new_session": True,
                }
                started.append(
                    subprocess.Popen(torchrun, cwd=ROOT, env=env, stdout=outputs[node], **kwargs)
                )
            while (
                None in (codes := [process.poll() for process in started])
                and time.monotonic() < deadline
            ):
                if any(codes):
                    deadline = min(deadline, time.monotonic() + GRACE)
                time.sleep(0.05)
            self._end(started)
            said = [pathlib.Path(file.name).read_text() for file in outputs]
        if None in codes and not any(codes):
            said = "\n".join(f"--- node {node}\n{output}" for node, output in enumerate(said))
            raise TimeoutError(
                f"not ended after {timeout:g} s: torchrun {' '.join(map(str, command))}\n{said}"
            )
        return [
            Ended(process.returncode, output) for process, output in zip(started, said, strict=True)
        ]

    def _end(self, started):
        """First torchrun, so that it starts nothing more, then its ranks, which are in
        sessions of their own."""
        for process in started:
            process.kill()
            process.wait()
        for name in self.names:
            end_all_in(name)

    def counters(self) -> list[int]:
        """Bytes that each node has sent over the cable so far, headers included:
        [node 0's, node 1's]."""
        said = [
            json.loads(call("ip", "-n", name, "-j", "-s", "link", "show", INTERFACE))
            for name in self.names
        ]
        return [cards[0]["stats64"]["tx"]["bytes"] for cards in said]


def end_all_in(name):
    """End whatever lives in this namespace, which is ours: nobody else has put a process there."""
    for _ in range(500):
        pids = call("ip", "netns", "pids", name).split()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)
    raise RuntimeError(
        f"processes {', '.join(pids)} in namespace {name} do not end: they are stuck in the kernel"
    )


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
