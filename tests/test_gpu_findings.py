"""What the probe finds on a machine: each thing that is wrong has its own next move; and the raw
ranks run, on gloo."""

import sys

import pytest

from tests.gpu import findings, moves, probe, report
from tests.gpu.pretended import gpu, machine
from tests.gpu.processes import marked
from tests.gpu.raw import PHASES


def with_product(**facts):
    seen = machine(pair=False)
    seen["products"] = [gpu(lines=[], **facts)]
    return seen


def with_smi(**facts):
    seen = machine()
    seen["smi"]["gpus"][0] |= facts
    return seen


def with_pair(lines, late=False, error=""):
    seen = machine()
    seen["pair"]["ranks"][1] = {"late": late, "error": error, "lines": lines}
    return seen


def with_little_memory(free):
    seen = machine()
    seen["products"][0]["lines"][0]["free_mib"] = free
    return seen


def up_to(phase):
    """The lines of a rank that has not done this phase."""
    return [{"what": what, "seconds": 0.1} for what in PHASES[: PHASES.index(phase)]]


NONE_LISTED = {"smi": {"error": "there is no nvidia-smi"}, "products": []}
NONE_COUNTED = {"products": [], "torch": machine()["torch"] | {"count": 0}}
WRONG = [{"what": "import"}, {"what": "init"}, {"what": "all_reduce", "right": False}]
FINDINGS = {
    # what is wrong -> (facts, the finding's name, words of its next move)
    "no GPU": (machine(pair=False, count=0) | NONE_LISTED, "no GPU", "--gpus all"),
    "torch for the CPU": (
        machine(count=0, cuda=None) | {"products": []},
        "torch without CUDA",
        "TORCH_INDEX",
    ),
    "none counted": (machine() | NONE_COUNTED, "driver too old", "Update the driver"),
    "old driver": (
        with_product(error="The NVIDIA driver on your system is too old"),
        "driver too old",
        "Update",
    ),
    "hidden": (machine() | NONE_COUNTED | {"visible": ""}, "hidden", "unset CUDA_VISIBLE_DEVICES"),
    "torch fails": (machine(count=0, error="ImportError: libcudart"), "torch fails", "make setup"),
    "torch hangs": (machine(count=0, late=True), "torch fails", "make setup"),
    "no kernels": (
        with_product(error="CUDA error: no kernel image is available"),
        "no kernels",
        "built for it",
    ),
    "no kernels for a P100": (machine(arch=["sm_100", "sm_120"]), "no kernels", "cu126"),
    "MIG": (with_smi(mig="Enabled"), "MIG", "-mig 0"),
    "prohibited": (with_smi(mode="Prohibited"), "prohibited", "-c DEFAULT"),
    "exclusive": (with_smi(mode="Exclusive_Process"), "exclusive", "-c DEFAULT"),
    "no memory": (with_product(error="CUDA out of memory."), "no memory", "CUDA_VISIBLE_DEVICES"),
    "little memory": (with_little_memory(900), "busy", "nvidia-smi shows"),
    "much memory in use": (with_little_memory(50_000), "busy", "nvidia-smi shows"),
    "a GPU hangs": (with_product(late=True), "no product", "Xid"),
    "no NCCL": (machine(pair=False, nccl=None), "no NCCL", "wheel for Linux"),
    "/dev/shm": (machine() | {"shm_mib": 64}, "/dev/shm is small", "--shm-size"),
    "refused": (
        with_pair(up_to("init"), error="Duplicate GPU detected"),
        "one GPU for two",
        "MULTI_RANK_GPU_ENABLE",
    ),
    "NCCL fails": (
        with_pair(up_to("init"), error="Call to bind failed"),
        "NCCL fails",
        "NCCL_DEBUG=INFO",
    ),
    "wrong numbers": (with_pair(WRONG), "NCCL is wrong", "report it"),
    "init hangs": (with_pair(up_to("init"), late=True), "init hangs", "NCCL_SOCKET_IFNAME"),
    "all_reduce hangs": (
        with_pair(up_to("all_reduce"), late=True),
        "all_reduce hangs",
        "NCCL_P2P_DISABLE",
    ),
    "a batch hangs": (
        with_pair(up_to("batch of 8 MB"), late=True),
        "a batch hangs",
        "communicator of its own",
    ),
    "new_group hangs": (
        with_pair(up_to("new_group"), late=True),
        "new_group hangs",
        "NCCL_NVLS_ENABLE=0",
    ),
    "DDP step hangs": (
        with_pair(up_to("DDP step"), late=True),
        "DDP step hangs",
        "autograd's thread",
    ),
    "destroy hangs": (
        with_pair(up_to("destroy"), late=True),
        "destroy hangs",
        "every launch ends in a destroy",
    ),
}


@pytest.mark.parametrize("what", FINDINGS)
def test_what_the_probe_finds_has_its_next_move(what):
    facts, name, words = FINDINGS[what]
    (found,) = findings.judge(facts)
    assert (
        found.name == name and words in found.next_move and found.fatal == (name in moves.FATAL)
    ), found
    of_the_pair = (
        found.text.startswith("two ranks on one GPU") and name != findings.LATE_BUT_TOGETHER
    )
    assert findings.together(facts) == ("pair" in facts and not of_the_pair)
    assert report.seconds(facts) and report.machine(facts)


def test_every_next_move_is_reached_by_a_finding_and_is_its_own():
    names = {name for _, name, _ in FINDINGS.values()}
    assert names == moves.FATAL.keys() | moves.NOT_FATAL.keys()
    same = {"prohibited", "exclusive"}  # of these the administrator's answer is one
    texts = [text for name, text in (moves.FATAL | moves.NOT_FATAL).items() if name not in same]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_machine_on_which_all_is_well_has_no_findings(gpus):
    assert findings.judge(machine(gpus)) == [] and findings.together(machine(gpus))
    said = report.seconds(machine(gpus))
    assert (
        "a synchronous all_reduce has no Work" in said
        and "DDP's reducer runs on another thread" in said
    )


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("6.0", False), ("7.5", True), ("8.9", True), ("9.0", True), ("10.0", False), ("12.1", True)],
)
def test_machine_code_runs_within_a_major_version_and_ptx_on_later_ones(capability, runs):
    assert findings.has_kernels(capability, ["sm_75", "sm_80", "sm_90a", "compute_120"]) == runs


def test_nvidia_smis_lines_are_read():
    seen = probe.parse(
        "NVIDIA H200, 580.159.03, 9.0, Disabled, Default\nTesla T4, 580.159.03, 7.5, [N/A], "
        "Default\n"
    )
    assert seen["driver"] == "580.159.03" and [gpu["mig"] for gpu in seen["gpus"]] == [
        "Disabled",
        "[N/A]",
    ]
    assert seen["gpus"][1] == {
        "name": "Tesla T4",
        "capability": "7.5",
        "mig": "[N/A]",
        "mode": "Default",
    }


def test_what_a_failed_rank_said_is_told_without_its_calls():
    out = (
        '{"what": "import"}\nhost:1:2 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 0 '
        "and rank 1\n"
    )
    err = """[W1122 10:00:00 socket.cpp:1] a warning
[rank0]: Traceback (most recent call last):
[rank0]:   File "raw.py", line 1, in <module>
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:1, invalid usage
[rank0]: Last error:
[rank0]: Duplicate GPU detected
"""
    said = probe.told(out, err)
    assert said.startswith(
        "Duplicate GPU detected : rank 0 and rank 1 torch.distributed.DistBackendError: NCCL error"
    )
    assert (
        said.endswith("Last error: Duplicate GPU detected")
        and probe.told("", "Killed\n") == "Killed"
    )


def test_two_raw_ranks_on_one_gpu_get_the_settings_that_two_of_lib_get(monkeypatch):
    started = []

    class Recorded:
        def __init__(self, seconds):
            self.folder = "folder"

        def start(self, name, *command, env):
            started.append((name, command[-1], env))

        def ended(self):
            return {"0": "said by 0", "1": "said by 1"}

    monkeypatch.setattr(probe, "Programs", Recorded)
    assert probe.pair("nccl", 1, 60) == {"shared": True, "ranks": ["said by 0", "said by 1"]}
    assert [(name, index) for name, index, _ in started] == [("0", 0), ("1", 0)]
    for rank, (_, _, env) in enumerate(started):
        assert env["NCCL_HOSTID"] == f"rank{rank}" and env["WORLD_SIZE"] == "2"
    started.clear()
    probe.pair("nccl", 2, 60)
    assert [index for _, index, _ in started] == [0, 1]
    assert not any("NCCL_HOSTID" in env for *_, env in started)


@pytest.mark.slow
def test_the_raw_ranks_run_on_gloo_and_stop_where_their_time_is_up():
    seen = probe.pair("gloo", 2, 60)
    for rank in seen["ranks"]:
        assert not rank["late"] and not rank["error"], rank
        assert all(line.get("right", True) for line in rank["lines"])
        assert tuple(line["what"] for line in rank["lines"]) == PHASES
        (step,) = [line for line in rank["lines"] if line["what"] == "DDP step"]
        assert step["hook"] == step["reducer"] == ["main", "cpu"], (
            "on the CPU autograd has no thread of its own"
        )
    programs = probe.Programs(3)
    programs.start("alone", sys.executable, probe.RAW, "rank", programs.folder, "gloo", 0,
                   env={"RANK": "0", "WORLD_SIZE": "2"})  # fmt: skip
    seen = programs.ended()["alone"]
    assert seen["late"] and seen["error"] == "" and marked(programs.mark) == []
