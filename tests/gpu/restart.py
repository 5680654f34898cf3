"""A rank is killed under torchrun: all ranks start again from the last checkpoint, and end at the
same loss.

    torchrun --max-restarts 2    attempt 0: steps 0 1 2 3, then SIGKILL for the last rank
                                 attempt 1: steps 3 4 5 ... 9

On GPUs a restart also means: the dead rank's memory, contexts and communicators are gone, and new
ones connect.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
from lib import backend
from lib.data_parallel import OverlappedDataParallel

folder, kill = sys.argv[1], sys.argv[2] == "kill"
backend.join(timeout=60)
rank, device = dist.get_rank(), backend.device()
net = OverlappedDataParallel(torch.nn.Linear(8, 8).double().to(device))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
first, path = 0, f"{folder}/checkpoint"
if os.path.exists(path):
    first, state = torch.load(path, map_location=device)
    net.module.load_state_dict(state)
else:
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.fill_(0.1 + i)
for step in range(first, 10):
    x = torch.arange(8, dtype=torch.float64, device=device) / (1 + rank + step)
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    net.average_gradients()
    optimizer.step()
    dist.all_reduce(loss.detach_())
    if kill and first == 0 and step == 3 and rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        torch.save((step + 1, net.module.state_dict()), path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()
if rank == 0:
    print(f"from step {first}, {dist.get_backend()}, last loss {loss.item()!r}", flush=True)
dist.destroy_process_group()
"""


def train(folder: Path, how: str, ranks: int, seconds: float) -> tuple[str, str, str]:
    """(first step, backend, last loss) of the attempt that ended."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               str(ranks),
               "--max-restarts", "2", str(folder / "train.py"), str(folder), how]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, cwd=folder, env=env
    )
    found = re.findall(r"from step (\d+), (\w+), last loss (\S+)", done.stdout)
    if done.returncode or len(found) != 1:
        raise RuntimeError(
            f"torchrun left with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return found[0]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.restart")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="restart-") as folder:
        plain = train(Path(folder) / "plain", "live", options.ranks, 80)
        killed = train(Path(folder) / "killed", "kill", options.ranks, 80)
    good = plain[2] == killed[2] and int(killed[0]) > 0 and killed[1] == plain[1] == options.backend
    print(
        f"showed: on {killed[1]}, killed at step 3, went on from step {killed[0]}; last loss "
        f"{killed[2]}, without a kill {plain[2]}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
