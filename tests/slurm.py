"""A Slurm of our own on the two nodes of `two_nodes`: Debian's daemons, with nothing of this
machine's Slurm or munge.

    node n0, 10.77.0.1 = wire0                             node n1, 10.77.0.2 = wire1
    munged, slurmctld, slurmd                              slurmd
      the job's script, srun, torchrun, ranks 0 to K-1       torchrun, ranks K to 2K-1

    with slurm.two_nodes(folder) as cluster:
        job = cluster.submit("train.sbatch")
        cluster.wait(job)                                  # "COMPLETED"

Each daemon has namespaces of its own: the node's network, so that its ports are nobody else's; a
host name; processes, which all end with the daemon; and mounts, in which a new folder is /run and a
file in it /etc/hosts. Therefore the configuration can have fixed ports and paths, the real /run and
/etc/hosts are never touched, and several such Slurms run side by side. No resolver knows n0 and n1:
it knows wire0 and wire1, which Slurm has as the nodes' NodeAddr.

When the block is left, by an error, an interrupt or SIGTERM too, all of its processes are ended and
the folder is removed. Its processes also end when this one is ended by SIGKILL.
"""

import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

from tests import two_nodes as network

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "sinfo")
LINUX_TOOLS = ("setpriv", "nsenter", "unshare")
CONF = """\
ClusterName=two-nodes
SlurmctldHost=n0({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=/run/munge,cred_expire=5
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/%n.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName=n0 NodeAddr=wire0 CPUs=2
NodeName=n1 NodeAddr=wire1 CPUs=2
PartitionName=all Nodes=ALL Default=YES
"""
# The parameters: the node's number, the folder, the command. `sh` stays: it waits for what a daemon
# leaves behind.
ON_A_NODE = """\
set -e; node=$1 folder=$2; shift 2
hostname "n$node"
mount --bind "$folder" /run
mount --bind "/run/hosts$node" /etc/hosts
"$@"
"""


@functools.cache
def available() -> str | None:
    """Why this machine cannot run a Slurm of two nodes, or None if it can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return (
            f"a Slurm of our own needs {', '.join(missing)} (Debian: apt-get install slurm-wlm "
            f"munge)"
        )
    if missing := [tool for tool in LINUX_TOOLS if shutil.which(tool) is None]:
        return f"a Slurm of our own needs {', '.join(missing)}, of the package util-linux"
    return network.available()


def needed(test):
    """Mark a test that needs Slurm: elsewhere it reports itself as not run, and why."""
    reason = available()
    here = pytest.mark.skipif(reason is not None, reason=f"not run: {reason}")
    return pytest.mark.slow(pytest.mark.netns(here(test)))


@contextlib.contextmanager
def two_nodes(folder: str | os.PathLike):
    """Start Slurm in a new folder in `folder`, yield it as a `Cluster` once both nodes are idle,
    and end it.

    Raises RuntimeError, with the daemons' last words, if the nodes are not idle within a minute.
    """
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir=folder) as own,
        network.two_nodes(rate=None) as nodes,
    ):
        cluster = Cluster(pathlib.Path(own), nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()


class Cluster:
    """A running Slurm. `folder`: what its processes see as /run; `hosts`: [n0's, n1's] file of
    names, to be written."""

    def __init__(self, folder, nodes):
        self.folder, self.nodes, self.daemons = folder, nodes, []
        self.hosts = [folder / "hosts0", folder / "hosts1"]
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # torchrun's
        self.env = {**network.QUIET, **os.environ, "PATH": path, "SLURM_CONF": "/run/slurm.conf"}
        self.env |= {"GLOO_SOCKET_IFNAME": network.INTERFACE}

    def start(self):
        names = [f"{address} wire{node}\n" for node, address in enumerate(network.ADDRESSES)]
        for hosts in self.hosts:
            hosts.write_text("127.0.0.1 localhost\n" + "".join(names))
        (self.folder / "slurm.conf").write_text(CONF.format(addresses=network.ADDRESSES))
        # of which nothing above makes use
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "key").touch(0o600)
        (self.folder / "key").write_bytes(os.urandom(128))
        files = [f"--{what}-file=/run/munged.{what}" for what in ("pid", "seed", "log")]
        self._daemon(
            0,
            "munged",
            "--foreground",
            "--force",
            "--key-file=/run/key",
            "--socket=/run/munge",
            *files,
        )
        self._until("munged", (self.folder / "munge").exists)
        self._daemon(0, "slurmctld", "-D", "-c")
        for node in (0, 1):
            self._daemon(node, "slurmd", "-D")
        self._until(
            "Slurm",
            lambda: "2 idle" in self.call("sinfo", "--noheader", "--format=%D %T", check=False),
        )

    def end(self):
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        for name in self.nodes.names:
            network.end_all_in(name)

    def call(self, *command, node=0, check=True) -> str:
        """What a command says on a node. Raises RuntimeError with it if the command fails, unless
        check is False."""
        command = list(map(str, command))
        done = subprocess.run(
            self._on(node, *command), env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"`{' '.join(command)}` on n{node} failed: {done.stdout.strip()}")
        return done.stdout

    def submit(self, *options) -> str:
        """sbatch with these options, the last of them a file; the number of the job."""
        return self.call("sbatch", "--parsable", *options).strip()

    def facts(self, job) -> dict[str, str]:
        """What `scontrol show job` says of it: {"JobState": "RUNNING", "Restarts": "0", ...}."""
        said = self.call("scontrol", "--oneliner", "show", "job", job)
        return dict(fact.split("=", 1) for fact in said.split() if "=" in fact)

    def wait(self, job, timeout=600.0) -> str:
        """How the job ended: "COMPLETED", "FAILED", ... Raises TimeoutError after
        so many seconds."""
        until = time.monotonic() + timeout
        while (state := self.facts(job)["JobState"]) in (
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "COMPLETING",
            "REQUEUED",
        ):
            if time.monotonic() > until:
                raise TimeoutError(
                    f"job {job} is {state} after {timeout:g} s\n{self._last_words()}"
                )
            time.sleep(0.2)
        return state

    def _on(self, node, *command):
        where = ["nsenter", f"--net=/run/netns/{self.nodes.names[node]}"]
        apart = ["unshare", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        return ["setpriv", "--pdeathsig", "KILL", *where, *apart, "sh", "-c", ON_A_NODE, "sh",
                str(node), self.folder,
                *command]  # fmt: skip

    def _daemon(self, node, *command):
        with open(self.folder / f"{command[0]}-n{node}.out", "w") as said:
            kwargs = {
                "stdin": subprocess.DEVNULL,
                "stdout": said,
                "stderr": said,
                "start_new_session": True,
            }
            self.daemons.append(subprocess.Popen(self._on(node, *command), env=self.env, **kwargs))

    def _until(self, what, condition):
        until = time.monotonic() + 60
        while not condition():
            if time.monotonic() > until or any(
                daemon.poll() is not None for daemon in self.daemons
            ):
                raise RuntimeError(f"{what} did not start:\n{self._last_words()}")
            time.sleep(0.1)

    def _last_words(self):
        said = {
            path.name: path.read_text().splitlines()[-10:]
            for path in sorted(self.folder.glob("*.out"))
        }
        return "\n".join(line for name, lines in said.items() for line in [f"--- {name}", *lines])
