"""Checkpoints: a kill at any moment leaves the former whole."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoints import in_a_child, is_whole, names, save_at

from lib import launch
from lib.training import checkpoint

# of os: whatever changes a folder or brings it to disk
CALLS = ["mkdir", "open", "fsync", "rename", "unlink", "rmdir"]


def die_before(number):
    """SIGKILL this process before its `number`-th such call, or in the middle of a file:
    torch.save counts too."""
    count = 0

    def counted(call, half=None):
        def die_or_call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number:
                if half is not None:
                    half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return die_or_call

    def half_a_file(state, file):
        whole = Path(f"{file.name}.whole")
        torch_save(state, whole)
        file.write(whole.read_bytes()[: whole.stat().st_size // 2])
        file.flush()
        whole.unlink()

    torch_save = torch.save
    torch.save = counted(torch_save, half_a_file)
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def killed_before_each_call(folder, step):
    """A save of `step` after those of 1 and 2, killed at every point: what is left, and what the
    next save makes."""
    folder, seen = Path(folder), []
    save_at(folder / "start", 1)
    save_at(folder / "start", 2)
    for number in range(1, 100):
        here = folder / str(number)
        shutil.copytree(folder / "start", here)

        def run(here=here, number=number):
            die_before(number)
            save_at(here, step)

        status = in_a_child(run)
        left = checkpoint.latest(here)
        seen.append(
            {"status": status, "latest": left, "whole": is_whole(here, left), "left": names(here)}
        )
        save_at(here, 4)
        seen[-1] |= {"after": names(here), "whole after": is_whole(here, 4)}
        if status == 0:
            return seen
    return seen


@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "the same step again"])
def test_killed_at_any_point_the_former_or_the_new_one_is_whole(tmp_path, step):
    (seen,) = launch.capture(
        killed_before_each_call, tmp_path, step, nproc=1, backend="gloo", ledger=False
    )
    *killed, ended = seen
    assert len(killed) > 10 and {point["status"] for point in killed} == {-signal.SIGKILL}
    assert ended["status"] == 0 and ended["latest"] == step
    assert all(point["whole"] and point["whole after"] for point in seen)
    latest = [point["latest"] for point in seen]
    assert latest == sorted(latest) and set(latest) == {2, step}
    suffixes = {Path(name).suffix for point in killed for name in point["left"]}
    assert {".unfinished", ".removed"} <= suffixes and (".replaced" in suffixes) == (step == 2)
    for point in seen:  # leftovers are gone with the next save, and two are kept
        assert point["after"] == [f"step_{point['latest']:08d}", "step_00000004"]


def killed_from_outside(folder):
    """A child saves one step after another and is killed at no particular moment, ten times; it
    goes on each time."""
    folder, seen = Path(folder), []
    for turn in range(10):
        before = checkpoint.latest(folder) or 0
        child = os.fork()
        if child == 0:
            step = before
            while True:
                step += 1
                save_at(folder, step)
        deadline = time.monotonic() + 100
        while (checkpoint.latest(folder) or 0) < before + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.0013 * turn)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left = checkpoint.latest(folder)
        seen.append(left >= before + 2 and is_whole(folder, left))
    return seen


def test_killed_from_outside_at_any_time(tmp_path):
    (seen,) = launch.capture(
        killed_from_outside, tmp_path, nproc=1, backend="gloo", timeout=200, ledger=False
    )
    assert seen == [True] * 10


def three_saves(folder, victim=None, number=None):
    """Steps 1, 2 and 3 on all ranks; `victim` is killed in the third."""
    for step in (1, 2, 3):
        if step == 3 and dist.get_rank() == victim:
            die_before(number)
        save_at(folder, step)


def go_on(folder):
    loaded = is_whole(folder, 2)
    save_at(folder, 3)
    return loaded, is_whole(folder, 3)


@pytest.mark.parametrize(
    ("victim", "number"),
    [(1, 1), (2, 2), (0, 4), (0, 8)],
    ids=["in its file", "before fsync", "in shared.pt", "before the rename"],
)
def test_one_rank_killed_between_files_leaves_the_former_to_all(tmp_path, victim, number):
    with pytest.raises(launch.RankError, match=f"rank {victim}"):
        launch.capture(three_saves, tmp_path, victim, number, nproc=3)
    assert names(tmp_path) == ["step_00000001", "step_00000002", "step_00000003.unfinished"]
    assert launch.capture(go_on, tmp_path, nproc=3) == [(True, True)] * 3
    assert names(tmp_path) == ["step_00000002", "step_00000003"]


def order_of_calls(folder):
    """What the operating system is asked, in order: fsync and rename, with the names."""
    log, fsync, rename = [], os.fsync, os.rename

    def noted_fsync(descriptor):
        log.append(("fsync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def noted_rename(source, target):
        inodes = {path.stat().st_ino for path in [Path(source), *Path(source).iterdir()]}
        log.append(("rename", Path(target).name, inodes))
        rename(source, target)

    os.fsync, os.rename = noted_fsync, noted_rename
    save_at(folder, 1)
    return log, Path(folder).stat().st_ino


def test_every_file_and_its_folder_are_on_disk_before_the_name_is_given(tmp_path):
    (log, folder) = launch.capture(order_of_calls, tmp_path, nproc=1, backend="gloo")[0]
    place = next(i for i, entry in enumerate(log) if entry[0] == "rename")
    _, name, inodes = log[place]
    assert name == "step_00000001" and len(inodes) == 3  # the folder, shared.pt, rank_0.pt
    assert inodes <= {inode for _, inode in log[:place]}
    assert ("fsync", folder) in log[place + 1 :]  # and then the name itself
