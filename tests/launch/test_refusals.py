"""What is wrong with the call itself, or with where it is made, is said at once."""

import os
import subprocess
import tempfile
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from programs import no_rank_is_left

from lib import backend, launch
from lib.launch import ranks

pytestmark = pytest.mark.usefixtures("on_gloo")


def world_sum():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


@pytest.mark.parametrize("nproc", [0, -1])
def test_nproc_below_one_is_refused(nproc):
    with pytest.raises(ValueError, match=f"nproc={nproc}: a run needs at least one rank"):
        launch.run(world_sum, nproc=nproc)


@pytest.mark.parametrize("nproc", ["4", 2.0, True, None])
def test_nproc_that_is_no_whole_number_is_refused(nproc):
    with pytest.raises(TypeError, match="how many ranks"):
        launch.run(world_sum, nproc=nproc)


def test_a_seed_that_is_no_whole_number_is_refused():
    with pytest.raises(TypeError, match=r"seed=1\.5 is a float; the base seed is a whole number"):
        launch.run(world_sum, nproc=2, seed=1.5)


def test_something_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"launch.run runs a function, not 3\.0"):
        launch.run(world_sum() if dist.is_initialized() else 3.0, nproc=2)


def test_an_argument_that_cannot_be_pickled_is_named():
    generator = (i for i in range(3))
    with pytest.raises(TypeError, match=r"argument 1 \(generator\) cannot be sent to the ranks"):
        launch.run(lambda a, b: a, 1, generator, nproc=2)


def test_a_function_that_cannot_be_pickled_is_named():
    generator = (i for i in range(3))
    with pytest.raises(TypeError, match="cannot be sent to the ranks"):
        launch.run(lambda: next(generator), nproc=2)


@pytest.mark.skipif(torch.cuda.device_count() >= 64, reason="this machine has 64 GPUs")
def test_nccl_with_too_few_gpus_says_how_many_there_are():
    gpus = torch.cuda.device_count()
    with pytest.raises(RuntimeError, match=rf"64 ranks, but this machine has ({gpus} GPU|no GPU)"):
        launch.run(world_sum, nproc=64, backend="nccl")


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend='mpi' is not one of"):
        launch.run(world_sum, nproc=2, backend="mpi")


def test_a_launch_inside_a_rank_is_refused():
    def nested():
        from lib import launch as inner

        inner.run(print, nproc=2)

    with pytest.raises(launch.RankError, match=r"launch.run was called inside rank \d"):
        launch.capture(nested, nproc=2)


# else it would prepare ranks for this backend beside the next tests
@pytest.mark.usefixtures("keeper_waits")
def test_a_rank_that_cannot_take_its_device_says_why(monkeypatch):
    """Told to take a GPU where there is none: what torch says, and not how the process left."""
    monkeypatch.setattr(backend, "choose", lambda *_: backend.Choice("nccl", 1, "a GPU each"))
    with pytest.raises(launch.RankError) as caught:
        launch.capture(world_sum, nproc=torch.cuda.device_count() + 1)
    message = str(caught.value)
    assert caught.value.kind == "raised" and "lib, choice.py:" in message, message
    assert "cuda" in message.lower() and "exit code" not in message and no_rank_is_left()


def test_a_working_directory_that_is_gone_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RuntimeError, match=r"the working directory no longer exists.*os\.chdir"):
        launch.capture(world_sum, nproc=2)


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="not run: only root can mount a small folder"
)
@pytest.mark.parametrize("kilobytes", [8, 32, 256])
# else it would prepare ranks in this folder, which then is unmounted
@pytest.mark.usefixtures("keeper_waits")
def test_a_full_temporary_folder_is_told(tmp_path, monkeypatch, kilobytes):
    """Too small for what is sent, for the ranks' output, for the pages of their logs."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", tmp_path]
    ).returncode:
        pytest.skip("not run: this machine does not let root mount")
    try:
        small = SimpleNamespace(
            mkdtemp=partial(tempfile.mkdtemp, dir=tmp_path), gettempdir=lambda: str(tmp_path)
        )
        monkeypatch.setattr(ranks, "tempfile", small)
        with pytest.raises(
            RuntimeError,
            match=r"no space is left in .*: make room there, or start Python with TMPDIR",
        ):
            launch.capture(fills_its_log, b"x" * 20_000, nproc=2)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    assert no_rank_is_left()


def fills_its_log(_):
    x = torch.ones(4)
    for _ in range(2000):
        dist.all_reduce(x)
