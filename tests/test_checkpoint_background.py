"""Checkpoints in the background: killed at any moment the last whole one is there; what resumes has
the same bits."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoints import in_a_child
from torch import nn

from lib import launch, zero
from lib.training import checkpoint
from lib.training.checkpoint import AsyncCheckpoint, BackgroundSave, resume, slow_disk
from lib.training.model import GPT, Shape

STEPS, EVERY = 12, 2
ROWS = 64  # of data
SHAPE = Shape(vocab_size=11, seq_len=5, n_layers=2, hidden=8, n_heads=2)


# --- one process, killed --------------------------------------------------------------------------


class Run:
    """Training with dropout, whose order of data is drawn anew in each epoch."""

    def __init__(self, folder, saver=AsyncCheckpoint, **named):
        torch.manual_seed(1)
        random.seed(1)
        self.data = torch.randn(ROWS, 8)
        self.model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.3), nn.Linear(64, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step, position = resume(folder, self.model, self.optimizer)
        self.position = position or {"order": random.sample(range(ROWS), ROWS), "next": 0}
        self.saver = saver(folder, **named)

    def train(self, steps, event=lambda: None):
        while self.step < steps:
            event()
            if self.position["next"] == ROWS:
                self.position.update(order=random.sample(range(ROWS), ROWS), next=0)
            begin = self.position["next"]
            rows = self.position["order"][begin : begin + 16]
            self.position["next"] = begin + 16
            self.model(self.data[rows]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if self.step % EVERY == 0:
                self.saver.begin(self.step, self.model, self.optimizer, self.position)
        self.saver.wait()
        return self

    def state(self):
        parts = (
            self.model.state_dict(),
            self.optimizer.state_dict(),
            checkpoint.random_state(),
            self.position,
        )
        return repr([x.tolist() if torch.is_tensor(x) else x for x in leaves(parts)])


def leaves(value):
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in leaves(one)]
    return [value]


class Moments:
    """Counts the moments at which a run can be killed: a step, a piece of a file, fsync,
    rename, unlink."""

    def __init__(self, dies_at=None):
        self.count, self.dies_at, self.lock = 0, dies_at, threading.Lock()
        for name in ("fsync", "replace", "unlink"):
            setattr(os, name, self.counted(getattr(os, name)))

    def __call__(self):
        with self.lock:
            self.count += 1
            if self.count == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def counted(self, call):
        def counting(*args, **named):
            self()
            return call(*args, **named)

        return counting

    def open(self, path, mode):
        """A file on a disk so slow that training goes on beside it; half of a piece is
        written at the moment."""
        file = slow_disk(5e6)(path, mode)
        write = file.write

        def counting(data):
            data = bytes(data)
            first = write(data[: len(data) // 2])
            self()
            return first + write(data[len(data) // 2 :])

        file.write = counting
        return file


def moments_of_a_run(folder):
    """How many there are in a run that ends: told through a file."""

    def run():
        moments = Moments()
        Run(folder, open=moments.open).train(STEPS, moments)
        Path(folder, "count").write_text(str(moments.count))

    assert in_a_child(run) == 0
    return int(Path(folder, "count").read_text())


def killed_at(folder, moment):
    def run():
        moments = Moments(moment)
        Run(folder, open=moments.open).train(STEPS, moments)

    return in_a_child(run)


def check_killed(tmp_path, number):
    before = checkpoint.random_state()
    (tmp_path / "whole").mkdir()
    (tmp_path / "count").mkdir()
    try:
        want = Run(tmp_path / "whole").train(STEPS).state()
        most = moments_of_a_run(tmp_path / "count")
        assert most > 60
        seen = set()
        for moment in random.Random(0).sample(range(1, most), number):
            folder = tmp_path / str(moment)
            folder.mkdir()
            status = killed_at(folder, moment)
            # threads go at their own pace: there may be a moment less
            assert status in (0, -signal.SIGKILL)
            whole = sorted(folder.glob("step_*.pt"))
            states = [torch.load(path, weights_only=True) for path in whole]
            assert all(
                sorted(state) == ["model", "optimizer", "position", "random"] for state in states
            )
            run = Run(folder)
            assert run.step == (int(whole[-1].stem[5:]) if whole else 0)
            seen.add(run.step)
            assert run.train(STEPS).state() == want, moment
        return seen
    finally:
        checkpoint.set_random_state(before)


def test_killed_at_some_moments_it_resumes_with_the_same_bits(tmp_path):
    assert len(check_killed(tmp_path, 6)) > 2


@pytest.mark.slow
def test_killed_at_50_moments_it_resumes_with_the_same_bits(tmp_path):
    assert check_killed(tmp_path, 50) >= {0, *range(2, STEPS - 1, EVERY)}


# --- one process, not killed ----------------------------------------------------------------------


def small():
    model = nn.Linear(300, 300)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_begin_returns_while_the_disk_is_busy_and_the_next_waits(tmp_path):
    saver, (model, optimizer) = AsyncCheckpoint(tmp_path, slow_disk(1e6)), small()  # 0.36 s a file
    began = time.monotonic()
    saver.begin(1, model, optimizer, 0)
    assert time.monotonic() - began < 0.2 and not saver.path(1).exists()
    saver.begin(2, model, optimizer, 0)
    assert saver.path(1).exists() and time.monotonic() - began > 0.3 and not saver.path(2).exists()
    saver.wait()
    assert saver.path(2).exists() and time.monotonic() - began > 0.6


def test_a_write_that_fails_is_told_once_and_leaves_the_former(tmp_path):
    saver, (model, optimizer) = AsyncCheckpoint(tmp_path), small()
    saver.begin(1, model, optimizer, 0)
    saver.wait()
    saver.open = lambda path, mode: open("/nowhere/at/all", mode)  # noqa: SIM115
    saver.begin(2, model, optimizer, 0)
    with pytest.raises(FileNotFoundError):
        saver.begin(3, model, optimizer, 0)
    saver.wait()
    assert resume(tmp_path, model, optimizer) == (1, 0)


def test_the_last_two_are_kept_and_nothing_is_resumed_from_nothing(tmp_path):
    saver, (model, optimizer) = AsyncCheckpoint(tmp_path), small()
    assert resume(tmp_path, model, optimizer) == (0, None)
    for step in (1, 2, 3):
        saver.begin(step, model, optimizer, {"next": step})
    saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step_00000002.pt",
        "step_00000003.pt",
    ]
    assert resume(tmp_path, model, optimizer) == (3, {"next": 3})


def test_a_slow_disk_is_as_slow_as_it_says(tmp_path):
    began = time.monotonic()
    with slow_disk(1e6)(tmp_path / "file") as file:
        for _ in range(10):
            assert file.write(bytes(20_000)) == 20_000
    assert 0.17 < time.monotonic() - began < 2 and (tmp_path / "file").stat().st_size == 200_000
    with pytest.raises(ValueError, match="rate is 0"):
        slow_disk(0)


# --- on ranks -------------------------------------------------------------------------------------


def trained(folder, steps, save=None, killed=False):
    """Shards after `steps` steps, from the last checkpoint on; one in the
    background every second step."""
    torch.manual_seed(dist.get_rank())
    model = GPT(SHAPE).double()
    fsdp = zero.PrefetchingFSDP(model, model.blocks)
    optimizer = torch.optim.AdamW(fsdp.groups, lr=0.01)
    background, first = BackgroundSave(slow_disk(1e6) if killed else open), 0
    if checkpoint.latest(folder) is not None:
        _, own, facts = zero.load_shards(folder, fsdp.flats, optimizer)
        checkpoint.set_random_state(own)
        first = facts.step
    for step in range(first, steps):
        tokens = torch.randint(11, (2, 6))
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        fsdp.average_gradients()
        optimizer.step()
        optimizer.zero_grad()
        if save and (step + 1) % 2 == 0:
            zero.save_shards(
                folder,
                step + 1,
                fsdp.flats,
                optimizer,
                own=checkpoint.random_state(),
                save=background.save,
            )
            if killed and step + 1 == 6:
                dist.barrier()
                os._exit(9)
    background.wait()
    return [shard.detach().clone() for shard in fsdp.shards]


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_ranks_that_die_while_they_write_resume_from_the_last_whole_one_with_the_same_bits(
    tmp_path,
):
    want = launch.capture(trained, tmp_path / "none", 8, nproc=3, ledger=False)
    with pytest.raises(launch.RankError, match="exit code 9"):
        launch.capture(trained, tmp_path / "run", 8, True, True, nproc=3, ledger=False)
    assert names(tmp_path / "run") == ["step_00000002", "step_00000004", "step_00000006.unfinished"]
    got = launch.capture(trained, tmp_path / "run", 8, True, nproc=3, ledger=False)
    assert all(
        torch.equal(a, b)
        for of, to in zip(got, want, strict=True)
        for a, b in zip(of, to, strict=True)
    )
    assert names(tmp_path / "run") == ["step_00000006", "step_00000008"]


def fails(folder):
    """Rank 1's disk is full at step 2; what each rank is told, and what is there then."""
    full = dist.get_rank() == 1

    def opened(path, mode):
        if full and "00000002" in str(path):
            raise OSError(28, "No space left on device")
        return open(path, mode)

    background, told = BackgroundSave(opened), []
    for step in (1, 2, 3):
        try:
            background.save(folder, step, {"a": torch.ones(2)}, own=dist.get_rank())
        except (OSError, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
            background.save(folder, step, {"a": torch.ones(2)}, own=dist.get_rank())
    background.wait()
    return told, checkpoint.load(folder)[1]


def test_a_rank_whose_disk_is_full_is_told_of_on_all_ranks_and_the_next_save_works(tmp_path):
    results = launch.capture(fails, tmp_path, nproc=3, ledger=False)
    assert [own for _, own in results] == [0, 1, 2]
    assert "No space left" in results[1][0][0]
    assert all("1 of the other ranks failed" in results[r][0][0] for r in (0, 2))
    assert names(tmp_path) == ["step_00000001", "step_00000003"]


def sends(folder):
    background = BackgroundSave()
    for step in (1, 2):
        background.save(folder, step, {})
    background.wait()


def test_what_is_sent(tmp_path):
    log = launch.capture(sends, tmp_path, nproc=2).ledger
    # of two saves
    assert sum(e.nbytes for e in log.of(0) if e.op == "send" and e.numel == 2) == 2 * 16
    # and an all-reduce of one number for each
    assert len([e for e in log.of(0) if e.op == "send"]) == 4
