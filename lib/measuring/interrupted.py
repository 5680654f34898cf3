"""Measures what failures cost a small training job. One of its ranks is killed at times that were
drawn in advance, which ends the job, and we count the steps that were saved.

    failure       + restart             + save                      failure
       X [launch, load, wait]|step|step|wait, save|step|step|wait, sa X [launch, load, wait]|...
                              [= kept =]           [= lost =]

The ranks train a GPT with data parallelism. The last rank kills itself with SIGKILL at the drawn
time, whatever it is doing then, and all ranks start again from the last complete checkpoint. A step
is kept if the folder has a checkpoint that contains it.

Each step, save and restart does its real work and then waits until the time that a Pace gives it is
over. We can therefore put these times into a formula, and compare its result with the steps that
were kept. On a busy machine the real work takes longer, so `pace_here` makes all of these times
longer there.
"""

import itertools
import os
import signal
import tempfile
import threading
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from lib import backend, collectives, launch
from lib.training import checkpoint
from lib.training import text as texts
from lib.training.model import GPT, Shape, cross_entropy

ROWS, SEQ_LEN = 4, 16  # of a rank, in a step
# ROOM: a part takes at least this many times as long as its real work. MOST: the largest factor
# by which a pace is multiplied, even if that leaves less room.
ROOM, MOST = 2, 20
TRIED = 20  # steps of the job that `pace_here` times, with a save after every fourth


class Pace(NamedTuple):
    """Seconds that a step, a save and a restart are made to take, and the mean time between two
    failures."""

    step: float
    save: float
    restart: float
    mtbf: float

    def times(self, factor):
        return Pace(*(factor * seconds for seconds in self))


NO_PACE, PACE = Pace(0, 0, 0, 0), Pace(step=0.01, save=0.06, restart=0.25, mtbf=1.0)


def pace_here(pace=PACE, nproc=2):
    """`pace`, with all of its times multiplied by one factor from 1 to MOST. It is the smallest
    that gives each part ROOM times the time of its real work on this machine, as busy as it is now,
    but not more than MOST."""
    with tempfile.TemporaryDirectory() as folder:
        _until_killed(folder, 1, NO_PACE, 0.0, time.monotonic(), nproc)
        failed = time.monotonic()
        took = launch.capture(
            train, folder, 4, NO_PACE, failed, None, TRIED, nproc=nproc, ledger=False
        )[0]
    needs = Pace(took["step"], took["save"], took["ready"] - failed, 0)
    return pace.times(
        min(MOST, max(1.0, *(ROOM * n / p for n, p in zip(needs[:3], pace[:3], strict=True))))
    )


def work_kept_here(gaps, every, pace=PACE):
    """(n,) seconds of work that were kept between failures, on the time scale of `pace`.

    gaps: (n,) seconds between failures, on the same scale. On a busy machine everything takes
    longer by one factor (`pace_here`), the gaps too, and the result is scaled back.
    """
    here = pace_here(pace)
    with tempfile.TemporaryDirectory() as folder:
        longer = here.mtbf / pace.mtbf
        return kept_steps(folder, longer * np.array(gaps), every, here) * pace.step


def kept_steps(folder, gaps, every, pace, nproc=2):
    """(n,) steps that were kept between one failure and the next, where a failure is a SIGKILL of
    the last rank.

    gaps: (n,) seconds between failures. folder: of the checkpoints, from which the job continues.
    every: steps between two saves. The first gap begins with a restart like all others, as if a
    failure came before it. Takes about sum(gaps) seconds. Raises launch.RankError if ranks end for
    another reason.
    """
    kept, failed = [], time.monotonic()
    for gap in gaps:
        before = checkpoint.latest(folder) or 0
        _until_killed(folder, every, pace, failed, failed + gap, nproc)
        kept.append((checkpoint.latest(folder) or 0) - before)
        failed += gap
    return np.array(kept)


def _until_killed(folder, every, pace, failed, fails, nproc):
    longest = 60 + max(0.0, fails - time.monotonic())  # seconds until it has been killed, at most
    try:
        launch.capture(
            train, folder, every, pace, failed, fails, nproc=nproc, timeout=longest, ledger=False
        )
    except launch.RankError as error:
        if error.kind != "died":
            raise


def train(folder, every, pace, failed=0.0, fails=None, steps=None):
    """On ranks: continue from the last checkpoint of `folder`, and save after every `every` steps.

    failed: the time of the failure before, when the restart began. fails: when the last rank is
    killed, None for never. Both are of time.monotonic(), a clock that all processes of a machine
    share. steps: of the entire job; with None it ends only by a failure. Returns {"loss": of the
    last step, "ready": when the model was loaded, "step": median seconds of a step without waiting,
    "save": twice those of writing a checkpoint, which has half of a save's time}.
    """
    rank, N = dist.get_rank(), dist.get_world_size()
    if fails is not None and rank == N - 1:
        kill = threading.Timer(
            max(0.0, fails - time.monotonic()), os.kill, (os.getpid(), signal.SIGKILL)
        )
        kill.daemon = True
        kill.start()
    data, took, loss = texts.load(), {"step": [], "save": []}, None
    model, optimizer, first = _as_saved(folder, len(data.vocabulary))
    ready = time.monotonic()
    due = max(ready, failed + pace.restart)
    _wait_until(due)
    for step in itertools.count(first) if steps is None else range(first, steps):
        begin, due = time.monotonic(), due + pace.step
        tokens, targets = texts.batch(data.train, step, batch_size=ROWS * N, seq_len=SEQ_LEN)
        loss = cross_entropy(model(tokens[rank::N]), targets[rank::N])
        loss.backward()
        _average(model.parameters(), N)
        optimizer.step()
        optimizer.zero_grad()
        backend.synchronize()
        took["step"].append(time.monotonic() - begin)
        _wait_until(due)
        if (step + 1) % every == 0:
            due += pace.save
            # a checkpoint counts when it is complete, so it is written in the second half of a save
            _wait_until(due - pace.save / 2)
            begin = time.monotonic()
            checkpoint.save(
                folder, step + 1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            )
            took["save"].append(2 * (time.monotonic() - begin))  # writing has half of pace.save
            _wait_until(due)
    return {"loss": loss.item(), "ready": ready} | {
        part: float(np.median(each)) for part, each in took.items()
    }


def _as_saved(folder, vocab_size):
    """(model, optimizer, the step to continue with) of the last checkpoint, the same on every rank;
    the initial ones if there is no checkpoint."""
    torch.manual_seed(0)
    model, first = GPT(Shape(vocab_size, SEQ_LEN, n_layers=1, hidden=16, n_heads=2)), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if checkpoint.latest(folder) is not None:
        shared, _, facts = checkpoint.load(folder)
        model.load_state_dict(shared["model"])
        optimizer.load_state_dict(shared["optimizer"])
        first = facts.step
    return model, optimizer, first


def _average(parameters, N):
    """Average the gradients over N ranks, with one all-reduce for all of them."""
    gradients = [parameter.grad for parameter in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    collectives.all_reduce(flat)
    for gradient, mean in zip(
        gradients, (flat / N).split([g.numel() for g in gradients]), strict=True
    ):
        gradient.copy_(mean.view_as(gradient))


def _wait_until(when):
    time.sleep(max(0.0, when - time.monotonic()))
