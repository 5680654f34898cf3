"""torch's Flight Recorder, read: what a hang on gloo leaves behind, and what torch's own
tool makes of it."""

import pickle
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from lib import launch
from lib.ledger import flight


def one_batch_fewer(folder):
    """Collectives of all ranks and of a pair, a message, a tensor of two dimensions; then
    rank 2 stays away."""
    rank = dist.get_rank()
    pair = dist.new_group([1, 2])
    dist.broadcast(torch.ones(2, 3), 0)
    if rank in (1, 2):
        dist.all_reduce(torch.ones(5), group=pair)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    if rank == 1:
        dist.recv(torch.ones(1), 0)
    # from here on a rank has only its last call to make; on a busy machine that takes a while
    flight.dump_after(2.0, folder)
    if rank == 2:
        while flight.written(folder) < 3:
            time.sleep(0.01)
        dist.recv(torch.ones(1), 0)
    dist.all_reduce(torch.ones(4))


@pytest.fixture(scope="module")
def hang(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("dumps"))
    with pytest.raises(launch.RankError) as raised:
        launch.capture(one_batch_fewer, folder, nproc=3, backend="gloo", fresh=True)
    return raised.value, folder


def test_the_launcher_proves_the_deadlock_though_a_thread_has_written_the_dump(hang):
    verdict, _ = hang
    assert verdict.kind == "deadlock" and verdict.waits == {0: [2], 1: [2], 2: [0]}


def test_a_record_is_what_the_rank_called(hang):
    _, folder = hang
    dumps = flight.read(folder)
    everybody = {"group": "0", "members": (0, 1, 2)}
    broadcast = everybody | {"nth": 1, "op": "broadcast", "elements": 6, "state": "completed"}
    last = everybody | {"nth": 2, "op": "all_reduce", "elements": 4, "state": "scheduled"}
    in_pair = {"members": (1, 2), "nth": 1, "op": "all_reduce", "elements": 5, "state": "completed"}
    assert dumps[0] == [broadcast, last]  # messages are not recorded on gloo
    assert [{k: v for k, v in r.items() if k != "group"} for r in dumps[2][1:]] == [in_pair]
    assert dumps[1][1] == dumps[2][1] and dumps[1][2] == last
    assert dumps[2][0] == broadcast and dumps[2][1]["group"] != "0"


def test_who_is_to_blame_is_whom_the_others_wait_for(hang):
    verdict, folder = hang
    assert flight.blame(flight.read(folder)) == {"0": (2, "all_reduce", [2])}
    assert verdict.waits[0] == verdict.waits[1] == [2]


def test_the_table_has_a_line_for_each_call(hang):
    lines = flight.table(flight.read(hang[1])).splitlines()
    assert len(lines) == 1 + 2 + 3 + 2
    assert lines[0].split() == ["rank", "group", "nth", "op", "elements", "state"]
    assert lines[2].split() == ["0", "0", "2", "all_reduce", "4", "scheduled"]


def test_torchs_own_tool_reads_the_dumps(hang):
    tool = [
        sys.executable,
        "-m",
        "torch.distributed.flight_recorder.fr_trace",
        hang[1],
        "--prefix",
        "rank_",
    ]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    if "gloo != 'nccl'" in said:
        pytest.skip(
            f"not run: the tool of torch {torch.__version__} reads NCCL's dumps alone; 2.12's "
            f"reads gloo's too"
        )
    assert done.returncode == 0, said
    assert "missing ranks: {2}" in said and "gloo:all_reduce" in said


def test_the_buffers_size_is_read_when_the_process_starts():
    """2,000 records unless told otherwise: nothing has to be set for this lab."""

    def many():
        x = torch.ones(1)
        for _ in range(2010):
            dist.all_reduce(x)
        return [
            r["nth"]
            for r in flight._records(
                pickle.loads(flight._recorder()()) | {"pg_config": flight._groups()}
            )
        ]

    (numbers,) = launch.capture(many, nproc=1, backend="gloo", ledger=False, fresh=True)
    assert numbers == list(range(11, 2011))


@pytest.mark.parametrize("variable", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_recorder_that_is_off_says_so_on_the_rank(variable):
    def off():
        import os

        os.environ[variable] = "0"
        flight.dump_after(1, "nowhere")

    with pytest.raises(
        launch.RankError, match="Flight Recorder is off here: take TORCH_FR_BUFFER_SIZE=0 out"
    ):
        launch.capture(off, nproc=1, backend="gloo")


def test_a_torch_without_a_recorder_says_so(monkeypatch):
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.delattr(torch._C._distributed_c10d, "_dump_nccl_trace", raising=False)
    with pytest.raises(RuntimeError, match="has no _dump_nccl_trace"):
        flight.dump_after(1, "nowhere")


def test_a_folder_without_dumps_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no dumps in"):
        flight.read(str(tmp_path))
