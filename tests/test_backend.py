"""Which backend is chosen, for every number of GPUs a machine may have; and how the ranks
of one attempt meet."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from lib import backend
from lib.backend import choose, gpus, meet


@pytest.mark.parametrize(
    ("backend", "nproc", "gpus", "name", "ranks_per_gpu"),
    [
        ("auto", 4, 0, "gloo", 0),
        ("auto", 4, 1, "gloo", 0),
        ("auto", 1, 1, "nccl", 1),
        ("auto", 4, 4, "nccl", 1),
        ("auto", 5, 4, "gloo", 0),
        ("gloo", 4, 8, "gloo", 0),
        ("nccl", 2, 2, "nccl", 1),
        ("nccl-shared", 2, 1, "nccl", 2),
        ("nccl-shared", 3, 2, "nccl", 2),
    ],
)
def test_the_choice(backend, nproc, gpus, name, ranks_per_gpu):
    choice = choose(backend, nproc, gpus)
    assert (choice.name, choice.ranks_per_gpu) == (name, ranks_per_gpu)
    assert f"{nproc} rank" in choice.why and name in choice.why


@pytest.mark.parametrize(
    ("backend", "nproc", "gpus", "says"),
    [
        ("nccl", 4, 0, "4 ranks, but this machine has no GPU"),
        ("nccl", 4, 1, "4 ranks, but this machine has 1 GPU"),
        ("nccl-shared", 3, 1, "at most 2 ranks on a GPU: 3 ranks, but this machine has 1 GPU"),
        ("nccl-shared", 2, 0, "no GPU"),
    ],
)
def test_more_ranks_than_the_gpus_carry_is_an_error_that_says_so(backend, nproc, gpus, says):
    with pytest.raises(RuntimeError, match=says):
        choose(backend, nproc, gpus)


OK, OLD = ["H100", "", True], ["H100", "The NVIDIA driver on your system is too old", True]
T4 = ["T4", "", False]


@pytest.mark.parametrize(
    ("lines", "end", "names", "says"),
    [
        ([OK, OK], "", ("H100", "H100"), ""),
        (
            [OLD, OLD],
            "",
            (),
            "GPU 0 (H100) does not work: The NVIDIA driver on your system is too old. CUDA_VISIBLE",
        ),
        ([OK, OLD], "", ("H100",), "GPU 1 (H100) does not work: The NVIDIA driver"),
        (
            [OK],
            "; import os; os.abort()",
            ("H100",),
            "GPU 1 does not work: a trial process was ended by SIGABRT",
        ),
        (
            [],
            "; raise SystemExit(3)",
            (),
            "GPU 0 does not work: a trial process left with exit code 3",
        ),
        (
            [OK],
            "; import time; time.sleep(60)",
            ("H100",),
            "GPU 1 does not work: a trial process did not",
        ),
    ],
)
def test_a_gpu_counts_if_it_computes(lines, end, names, says):
    """The trial of two GPUs, as a process that prints these lines and ends in this way. Only the
    one that sleeps is not waited for: a busy machine may take seconds to start a process."""
    prints = f"print({chr(10).join(map(json.dumps, lines))!r}, flush=True)" if lines else "pass"
    found = gpus.tried(
        [sys.executable, "-c", prints + end], 2, seconds=1.5 if "sleep" in end else 60
    )
    assert found.names == names and found.why.startswith(says) and bool(found.why) == bool(says)


def test_gpus_without_units_for_bfloat16_are_told():
    for lines, has_it in (([OK, OK], True), ([T4, T4], False), ([OK, T4], False)):
        prints = f"print({chr(10).join(map(json.dumps, lines))!r})"
        assert gpus.tried([sys.executable, "-c", prints], 2).bfloat16 is has_it


def test_the_trial_runs_here_and_finds_what_there_is():
    found = gpus.tried([sys.executable, "-c", gpus.TRIAL], counted=gpus.torch.cuda.device_count())
    assert found.why or len(found.names) == gpus.torch.cuda.device_count()


def test_gpus_that_do_not_work_are_not_taken_and_the_reason_is_said(monkeypatch):
    why = "GPU 1 (T4) does not work: CUDA error: all CUDA-capable devices are busy or unavailable"
    monkeypatch.setattr(gpus, "working", lambda: gpus.Gpus(("T4",), why))
    assert choose("auto", 1).why == "1 rank: nccl, one GPU each (1 x T4)"
    assert (
        choose("auto", 2).why == f"2 ranks: gloo, on the CPU (1 GPU that works; {why} for 2 ranks)"
    )
    with pytest.raises(RuntimeError, match="busy or unavailable"):
        choose("nccl", 2)
    monkeypatch.setattr(gpus, "working", lambda: gpus.Gpus((), why))
    assert choose("auto", 1).why == f"1 rank: gloo, on the CPU ({why})"


def test_gloo_asks_nothing_of_the_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "working", None)
    assert choose("gloo", 4).why == "4 ranks: gloo, on the CPU"


def test_the_ranks_of_an_attempt_meet_though_those_of_others_have_left_their_keys():
    store = dist.HashStore()
    with ThreadPoolExecutor(8) as ranks:

        def attempt(world_size):
            return [
                ranks.submit(meet, store, rank, world_size, 20)
                for rank in reversed(range(world_size))
            ]

        # of an attempt that ended while its ranks were coming
        lost = ranks.submit(meet, store, 2, 3, 0.2)
        with pytest.raises(dist.DistError):
            lost.result()
        for world_size in (3, 3, 2, 1):
            stores = [met.result() for met in attempt(world_size)]
            assert not stores[0].check(["address"]), (
                "what an earlier attempt has left does not show"
            )
            stores[0].set("address", str(world_size))
            assert {store.get("address") for store in stores} == {str(world_size).encode()}


def test_rank_0_does_not_take_a_dead_rank_for_the_one_that_is_to_come():
    store = dist.HashStore()
    store.set("here/1", "dead")
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(meet, store, 0, 2, 20)
        time.sleep(0.1)
        assert not first.done()
        second = ranks.submit(meet, store, 1, 2, 20).result()
        second.set("said", "by rank 1")
        assert first.result().get("said") == b"by rank 1"


def test_who_has_not_come_is_named():
    with pytest.raises(
        RuntimeError, match=r"after 0\.1 s rank 1, 2 of 3 has not come: does torchrun run there\?"
    ):
        meet(dist.HashStore(), 0, 3, 0.1)


def test_a_setting_of_the_users_stays(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    backend.unless_set(backend.ON_A_GPU | {"NCCL_HOSTID": "rank0"})
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1" and os.environ["NCCL_HOSTID"] == "rank0"


@pytest.mark.parametrize(
    ("capability", "shared", "expected"),
    [
        (
            (9, 0),
            False,
            {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NCCL_CUMEM_ENABLE": None, "NCCL_HOSTID": None},
        ),
        (
            (7, 5),
            False,
            {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NCCL_CUMEM_ENABLE": "0", "NCCL_HOSTID": None},
        ),
        (
            (9, 0),
            True,
            {"NCCL_HOSTID": "rank0", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_CUMEM_ENABLE": None},
        ),
    ],
)
def test_a_rank_on_a_gpu_joins_with_its_settings(monkeypatch, capability, shared, expected):
    """CUDA reads its own at its first call, NCCL at `init_process_group`."""
    found, connections = {}, []
    note = lambda *args, **kwargs: found.update({name: os.environ.get(name) for name in expected})
    others = {name: value for name, value in os.environ.items() if name not in expected}
    monkeypatch.setattr(os, "environ", others | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    at_first_call = lambda index: connections.append(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
    monkeypatch.setattr(torch.cuda, "set_device", at_first_call)
    for name in ("init", "set_default_device"):
        monkeypatch.setattr(torch if "default" in name else torch.cuda, name, lambda *args: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(dist, "init_process_group", note)
    monkeypatch.setattr(backend.peers, "refuse_strangers", lambda: None)
    backend.join(backend.choose("nccl-shared" if shared else "nccl", 1, 1), dist.HashStore())
    assert found == expected and connections == ["32"]
