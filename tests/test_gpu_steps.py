"""The programs that the steps of `make test-gpu` run, here on gloo: their code runs, and their
verdicts are right.

A rehearsal says nothing of a GPU: no step has run on one. It shows that a step does not fail
because of its own code.
"""

import pytest
import torch
import torch.distributed as dist

from lib import launch
from tests.gpu import (
    checks,
    groups,
    hangs,
    polling,
    restart,
    reuse,
    sessions,
    snapshots,
    soak,
    solutions,
    test_gpu,
    test_gpu_context_parallel,
    test_gpu_hybrid,
    test_gpu_moe,
    test_gpu_pipeline,
    test_gpu_tensor_parallel,
    test_gpu_zero,
    timings,
)

SOME = ("both send 8 MB, connected", "larger receive", "barrier against receive")


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(hangs.CASES), marks=pytest.mark.slow)])
def test_hangs_have_their_verdicts_and_leave_nothing(names, monkeypatch, capsys):
    monkeypatch.setattr(hangs, "SOON", 60.0)  # other tests run at the same time
    assert hangs.main(["--backend", "gloo"], {name: hangs.CASES[name] for name in names}) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "both send 8 MB, connected: deadlock" in last and "larger receive: mismatch" in last
    assert last.count("; ") == len(names) and last.endswith("0 processes left")


def test_a_verdict_of_the_wrong_kind_is_wrong_and_two_new_ranks_under_nccl_have_kinds_of_their_own(
    capsys,
):
    wrong = hangs.CASES["killed rank"]._replace(on_gloo=("deadlock",))
    assert hangs.main(["--backend", "gloo"], {"killed rank": wrong}) == 1
    assert (
        "killed rank: died" in (said := capsys.readouterr().out) and "deadlock within 18 s" in said
    )
    new, connected = hangs.CASES["both send 12 B, new"], hangs.CASES["both send 12 B, connected"]
    assert hangs.allowed(new, "nccl-shared", 2) == (
        "raised",
        "died",
    ) and "returned" not in hangs.allowed(new, "nccl", 4)
    assert "returned" in hangs.allowed(connected, "nccl", 2) and hangs.allowed(
        connected, "gloo", 2
    ) == ("deadlock",)


def test_three_launches_run_on_the_same_processes_and_keep_no_work(capsys):
    assert reuse.main(["--backend", "gloo", "--ranks", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("showed: 3 launches in ") and "the same processes; " in last


def test_a_snapshot_is_of_its_moment_and_one_that_is_not_is_named(monkeypatch, capsys):
    small = ["--backend", "gloo", "--mebibytes", "1"]
    assert snapshots.main(small) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("showed: 1 MiB in 64 tensors: pageable ") and "WRONG" not in last
    monkeypatch.setattr(snapshots, "snapshot", dict)  # the same tensors, which training changes
    assert snapshots.main(small) == 1 and "; WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_session_keeps_its_variables_through_an_error_and_the_stop_button(ranks, capsys):
    assert sessions.main(["--backend", "gloo", "--ranks", ranks]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("showed: as it should be") and "cell after stop" in last


def test_a_session_that_ends_where_it_should_go_on_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sessions, "ERROR_ON_ALL", "import os; os._exit(1)")
    assert sessions.main(["--backend", "gloo", "--ranks", "2"]) == 1
    assert "error on all: " in capsys.readouterr().out.splitlines()[-1]


def test_launches_on_new_processes_and_works_that_are_kept_are_named(capsys):
    assert reuse.main(["--backend", "gloo", "--ranks", "1"], leaves_a_hook) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert "process ids differ from launch to launch" in said and "a hook on all modules" in said
    assert "200 of 200 works are alive" in said and "memory grew by 200 MiB" in said
    assert "devices differ" in said and "bytes on the GPU at the begin differ" in said


def leaves_a_hook():
    """A rank that is not reused, pretends that each launch finds another device, and keeps
    all its works."""
    import os

    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    pid = os.getpid()
    return {
        "pid": pid,
        "device": f"cuda:{pid}",
        "bytes": pid,
        "alive": reuse.WORKS,
        "grew": 200 << 20,
    }


def test_labs_are_chosen_by_number(capsys):
    stems = lambda labs: [path.stem.split("_")[0] for path in solutions.chosen(labs)]
    assert stems([]) == [f"lab{n}" for n in range(7)] and stems(["lab1", "0"]) == ["lab0", "lab1"]
    with pytest.raises(SystemExit):
        solutions.main(["0", "lab9"])
    assert "there is no Lab 9: name one of 0, 1, 2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_chosen_lab_is_executed_and_not_stored(tmp_path, monkeypatch, capsys):
    (path,) = solutions.chosen(["2"])
    import nbformat

    short = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("import lib\nassert 1 + 1 == 2")]
    )
    nbformat.write(short, tmp_path / path.name)
    before = (tmp_path / path.name).read_bytes()
    monkeypatch.setattr(solutions.chosen, "__defaults__", (tmp_path,))
    assert solutions.main(["2"]) == 0 and (tmp_path / path.name).read_bytes() == before
    assert capsys.readouterr().out.splitlines()[-1] == "showed: 1 of 1 executed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "test",
    [
        test_gpu_pipeline.test_every_schedule_has_the_gradients_of_one_process,
        test_gpu_pipeline.test_pipedream_on_a_gpu_is_pipedream_on_the_cpu,
        test_gpu_tensor_parallel.test_every_mode_has_the_gradients_of_one_process,
        test_gpu_context_parallel.test_rings_have_the_numbers_of_one_process,
        test_gpu_moe.test_every_way_has_the_gradients_of_one_process,
    ],
    ids=lambda test: f"{test.__module__.split('_')[-1]}: {test.__name__}",
)
def test_what_pytest_runs_on_a_gpu_runs_on_gloo(test):
    test(("gloo", 2))


@pytest.mark.slow
def test_replicas_and_stages_of_zero_run_on_gloo(tmp_path):
    test_gpu.test_replicas_have_the_gradients_of_one_process_and_of_torch_ddp(
        ("gloo", 2), test_gpu.OverlappedDataParallel
    )
    test_gpu_zero.test_every_stage_trains_as_one_process(("gloo", 2), tmp_path)


def test_the_soak_equals_one_process_and_finds_a_missing_wait(capsys):
    assert soak.main(["--backend", "gloo", "--times", "2", "--steps", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert [said.split()[0] for said in last.removeprefix("showed: ").split("; ")[:4]] == [
        "Overlapped",
        "Zero2",
        "Prefetching",
        "experts",
    ]
    assert soak.main(["--backend", "gloo", "--times", "1", "--steps", "1", "--never-wait"]) == 0
    assert soak.REFUSED in capsys.readouterr().out


@pytest.mark.slow
def test_a_soak_without_waits_that_sees_nothing_wrong_fails(monkeypatch, capsys):
    monkeypatch.setattr(soak, "forgotten", soak.background.Work.wait)
    assert soak.main(["--backend", "gloo", "--times", "1", "--steps", "1", "--never-wait"]) == 1
    assert "NO WRONG VALUE WAS SEEN" in capsys.readouterr().out


def test_groups_are_counted_and_those_destroyed_are_gone(capsys):
    assert groups.main(["--backend", "gloo"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        last.startswith("showed: 40 groups: ")
        and "LEFT" not in last
        and "51 left behind: +" in last
    )


@pytest.mark.slow
def test_the_ledger_s_cost_and_the_timings_are_told(capsys):
    assert polling.main(["--backend", "gloo", "--rounds", "2"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("showed: ledger on / off: all_reduce 1 KB ")
    )
    assert timings.main(["--backend", "gloo", "--rounds", "2", "--largest", "1"]) == 0
    assert "1 MB: lib " in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_the_checks_of_two_ranks_pass(capsys):
    assert checks.main(["--backend", "gloo", "--ranks", "1"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("showed: 5 of 5 checks passed (split_rows, ")
    )
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
            seen = test_gpu_hybrid.on_mesh(
                test_gpu_hybrid.HybridByHand, {"tp": 2}, test_gpu_hybrid.sgd
            )
            want = torch.tensor(test_gpu_hybrid.one_process(test_gpu_hybrid.sgd))
            found = ((torch.tensor(seen) - want) / want).abs().flatten().tolist()
        return max(found), len(dist.distributed_c10d._world.pg_map)

    for worst, left in launch.capture(counted, nproc=2, backend="gloo", timeout=300, fresh=True):
        assert worst < test_gpu_hybrid.TOLERANCE and left == 1, "the world alone"
