"""A script that is started by torchrun and knows nothing of lib.launch: it trains, ends by itself,
and fails aloud."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, pathlib, sys
import torch, torch.distributed as dist
from torch import nn
from lib.data_parallel import OverlappedDataParallel
from lib.zero import FSDPModule

dist.init_process_group("gloo")
rank, ending = dist.get_rank(), sys.argv[1]
torch.manual_seed(rank)
model = OverlappedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(3):
    model(torch.full((2, 4), rank + 1.0)).square().mean().backward()
    model.average_gradients()
    optimizer.step()
    optimizer.zero_grad()
    if ending == "leaves" and rank == 1:
        sys.exit("rank 1 ends here")
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
fsdp = FSDPModule(net, [net[0]])
fsdp(torch.ones(2, 4)).sum().backward()
fsdp.average_gradients()
pathlib.Path(f"sum{rank}").write_text(\
repr(sum(p.double().sum().item() for p in model.parameters())))
if ending == "destroys":
    dist.destroy_process_group()
"""


def start(folder, ending, **more):
    """(what both ranks have printed, exit status)."""
    (folder / "train.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    job = subprocess.Popen(
        [*command, ending], cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1",
                                                          "PYTHONPATH": path} | more,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        return job.communicate(timeout=300)[0], job.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["destroys", "just ends"])
def test_a_script_ends_by_itself_with_the_same_model_on_both_ranks(tmp_path, ending):
    said, status = start(tmp_path, ending)
    sums = [path.read_text() for path in tmp_path.glob("sum*")]
    assert status == 0 and len(sums) == 2 and len(set(sums)) == 1, said


@pytest.mark.slow
def test_a_rank_that_leaves_ends_the_job(tmp_path):
    said, status = start(tmp_path, "leaves")
    assert status != 0 and "rank 1 ends here" in said, said
