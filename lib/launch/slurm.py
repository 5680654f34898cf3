"""Writes a Slurm job for a script of `as_script`. The job starts torchrun once on each node, and
these processes find each other at the first node.

    launch.as_script(train, "train.py")
    launch.as_slurm("train.py", "train.sbatch", nodes=2, nproc_per_node=8)  # -> sbatch train.sbatch

    sbatch -> node 0: train.sbatch -> srun -+-> node 0: torchrun -> ranks 0 to 7 (meeting place)
                                            +-> node 1: torchrun -> ranks 8 to 15

On a cluster, ranks and nodes can fail. The script then runs again, and its training continues from
the last complete checkpoint:

    what dies   how the script starts again
    a rank      torchrun restarts all ranks on all nodes, up to --max-restarts times
    a node      Slurm puts the job back into its queue (--requeue)

You do not have to number the nodes, because all of them run the same command, and torchrun's "c10d"
rendezvous numbers those that join. With its "static" rendezvous (--node-rank), a node would notice
a failure on another node only when its own ranks fail because of it.

Before torchrun starts, the job checks that every node can reach every other one at its NodeAddr,
which is the address that Slurm itself uses. Without this check, the only sign of a wrong address
would be that torchrun silently looks for a name that no node has, and gives up after a minute.

Tests run these jobs under Slurm 22.05.8 of Debian 12, with two nodes on one machine
(tests/slurm.py). Each node has two ranks, which use gloo. One test kills a rank, and another sets a
node to DOWN. The jobs have not run on several machines, on GPUs, or with Slurm's control groups
(proctrack/cgroup, task/cgroup).
"""

import os
import shlex

TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={nproc_per_node}
{gpus}#SBATCH --time={time}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.out

# {name} on {nodes} nodes, {nproc_per_node} ranks on each. Submit it where `torchrun` is on your \
PATH:
#     sbatch {file}
# What you add on the command line counts more than the lines above:
#     sbatch --nodes=4 --partition=... {file}
# A node has one task, torchrun, which starts the ranks. --requeue: after a node has failed, the job
# waits for its turn again, goes on from its last checkpoint, and appends to the same output.

set -eu

export SCRIPT={script}
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
{ledger}
# The nodes, one a line: a name, and the address by which Slurm reaches it.
NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | while read -r NAME; do
    ADDRESS=$(scontrol show node "$NAME" | grep -o "NodeAddr=[^ ]*") || ADDRESS=$NAME
    echo "$NAME ${{ADDRESS#NodeAddr=}}"
done)
read -r _ FIRST <<< "$NODES"  # where they meet, on a port that differs between jobs
export NODES FIRST PORT=$((20000 + SLURM_JOB_ID % 10000))

reach() {{  # Any node may have to reach any other. A refusal will do: torchrun does not listen yet.
    while read -r NAME ADDRESS; do
        SAID=$(LC_ALL=C timeout 10 bash -c ": < /dev/tcp/$ADDRESS/$PORT" 2>&1) \
|| [[ $SAID == *refused* ]] || {{
            SAID=$(head -n 1 <<< "${{SAID:-no answer within 10 s}}")
            echo "$SLURMD_NODENAME cannot reach $NAME at its NodeAddr $ADDRESS, port $PORT: \
${{SAID##*: }}." \\
                "$SLURMD_NODENAME has to resolve that name (DNS, /etc/hosts), and ports between \
the nodes have" \\
                "to be open. Or submit the job again with --exclude=$SLURMD_NODENAME." >&2
            return 1
        }}
    done <<< "$NODES"
}}
srun bash -c "$(declare -f reach); reach"

# Single quotes: each node fills in its own name and number. If torchrun gives up on one, srun ends
# the others.
srun --kill-on-bad-exit=1 --cpus-per-task="${{SLURM_CPUS_PER_TASK:-{nproc_per_node}}}" bash -c '
    read -r _ OWN < <(grep "^$SLURMD_NODENAME " <<< "$NODES")
    exec torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {nproc_per_node} \
--max-restarts {max_restarts} \\
        --rdzv-backend c10d --rdzv-endpoint "$FIRST:$PORT" --rdzv-id "$SLURM_JOB_ID" \\
        --rdzv-conf "is_host=$((SLURM_NODEID == 0))" --local-addr "$OWN" "$SCRIPT"
'
"""


def as_slurm(
    script: str | os.PathLike, path: str | os.PathLike, nodes: int, nproc_per_node: int,
    gpus_per_node: int = 0, max_restarts: int = 3, time: str = "01:00:00",
    ledger_dir: str | os.PathLike | None = None,
) -> str:  # fmt: skip
    """Write an sbatch file to `path` that runs `script`, a file of `as_script`, and return the
    command that submits it.

    script: has to be on a file system that all nodes share, as do the checkpoints that it writes.
    nproc_per_node: ranks on each node. gpus_per_node: requested from Slurm; 0 requests none.
    max_restarts: how often torchrun may restart all ranks. time: the job's time limit, in Slurm's
    format. ledger_dir: the ranks' logs are written to a folder in it that is named after the job's
    id; with None no logs are written. Raises FileNotFoundError if `script` does not exist, and
    ValueError for fewer than 1 node or fewer than 1 rank per node.
    """
    script, path = os.path.abspath(script), os.fspath(path)
    if not os.path.isfile(script):
        raise FileNotFoundError(
            f"{script} is not there: write it first, launch.as_script(fn, {script!r}, ...)"
        )
    if nodes < 1 or nproc_per_node < 1:
        raise ValueError(f"{nodes} nodes of {nproc_per_node} ranks: a job needs at least 1 of each")
    text = TEMPLATE.format(
        name=os.path.splitext(os.path.basename(script))[0], file=os.path.basename(path),
        script=shlex.quote(script),
        gpus=f"#SBATCH --gpus-per-node={gpus_per_node}\n" if gpus_per_node else "",
        ledger=f'export LEDGER_DIR={shlex.quote(os.path.abspath(ledger_dir))}/"$SLURM_JOB_ID"\n'
        if ledger_dir else "",
        nodes=nodes, nproc_per_node=nproc_per_node, max_restarts=max_restarts, time=time,
    )  # fmt: skip
    with open(path, "w") as file:
        file.write(text)
    return f"sbatch {shlex.quote(path)}"
