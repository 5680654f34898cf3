"""The programs that the steps of `make test-gpu` run, here on gloo: their code runs, and their verdicts are right."""

import pathlib
import sys

import pytest
import torch
import torch.distributed as dist

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `tests` is no package that is installed: pytest alone would not find it

from lib import launch  # noqa: E402
from tests.gpu import checks, groups, hangs, polling, restart, soak, test_gpu_hybrid, timings  # noqa: E402


def test_hangs_have_their_verdicts_and_leave_nothing(capsys):
    assert hangs.main(["--backend", "gloo"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        "both send 8 MB: deadlock" in last and "larger receive: mismatch" in last and last.endswith("0 processes left")
    )


def test_the_soak_equals_one_process_and_finds_a_missing_wait(capsys):
    assert soak.main(["--backend", "gloo", "--times", "2", "--steps", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert [said.split()[0] for said in last.removeprefix("showed: ").split("; ")[:4]] == [
        "Overlapped",
        "Zero2",
        "Prefetching",
        "experts",
    ]
    assert soak.main(["--backend", "gloo", "--times", "1", "--steps", "1", "--never-wait"]) == 1


def test_groups_are_counted_and_those_destroyed_are_gone(capsys):
    assert groups.main(["--backend", "gloo"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("showed: 40 groups: ") and "LEFT" not in last and "51 left behind: +" in last


@pytest.mark.slow
def test_the_ledger_s_cost_and_the_timings_are_told(capsys):
    assert polling.main(["--backend", "gloo", "--rounds", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("showed: ledger on / off: all_reduce 1 KB ")
    assert timings.main(["--backend", "gloo", "--rounds", "2", "--largest", "1"]) == 0
    assert "1 MB: lib " in capsys.readouterr().out.splitlines()[-1]


def test_the_checks_of_two_ranks_pass(capsys):
    assert checks.main(["--backend", "gloo", "--ranks", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("showed: 6 of 6 checks passed (split_rows, ")
    assert len(checks.fitting(8)) > 25


@pytest.mark.slow
def test_a_killed_rank_starts_again_under_torchrun(capsys):
    assert restart.main(["--backend", "gloo"]) == 0
    assert "went on from step" in capsys.readouterr().out


@pytest.mark.parametrize("meshes", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_a_mesh_trains_as_one_process_does_and_its_groups_end_with_its_case(meshes):
    def counted():
        if meshes == "all":
            found = test_gpu_hybrid.run_each().values()
        else:
            seen = test_gpu_hybrid.on_mesh(test_gpu_hybrid.HybridByHand, {"tp": 2}, test_gpu_hybrid.sgd)
            want = torch.tensor(test_gpu_hybrid.one_process(test_gpu_hybrid.sgd))
            found = ((torch.tensor(seen) - want) / want).abs().flatten().tolist()
        return max(found), len(dist.distributed_c10d._world.pg_map)

    for worst, left in launch.capture(counted, nproc=2, backend="gloo", timeout=300, fresh=True):
        assert worst < test_gpu_hybrid.TOLERANCE and left == 1, "the world alone"
