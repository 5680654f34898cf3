"""A small job whose ranks are killed at times drawn before: what failures, saves and restarts cost
it, measured.

    failure       + restart             + save                      failure
       X [launch, load, wait]|step|step|wait, save|step|step|wait, sa X [launch, load, wait]|...
                              [= kept =]           [= lost =]

The ranks train a GPT data parallel, and the last one kills itself by SIGKILL when its time has
come, whatever it does then; all start again from the last complete checkpoint. What is kept is what
the folder of checkpoints says.

Each step, save and restart takes the time of a Pace, which is longer than what it does. So a
formula may be given these times, even on a busy machine: `pace_here` makes all of them longer
there.
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
ROOM, MOST = 2, 20  # a pace over what a part takes; how many times longer it may become
TRIED = 20  # steps, a save after every fourth


class Pace(NamedTuple):
    """Seconds of a step, a save and a restart, and the mean time between two failures."""

    step: float
    save: float
    restart: float
    mtbf: float

    def times(self, factor):
        return Pace(*(factor * seconds for seconds in self))


NO_PACE, PACE = Pace(0, 0, 0, 0), Pace(step=0.01, save=0.06, restart=0.25, mtbf=1.0)


def pace_here(pace=PACE, nproc=2):
    """The Pace, every part of it so many times longer, MOST at most, that this machine can
    keep it, as it is now."""
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
    """(n,) seconds of work that were kept between failures, in the time of `pace`; gaps as for it.

    On a busy machine everything takes longer by one factor (`pace_here`), and so do the gaps.
    """
    here = pace_here(pace)
    with tempfile.TemporaryDirectory() as folder:
        longer = here.mtbf / pace.mtbf
        return kept_steps(folder, longer * np.array(gaps), every, here) * pace.step


def kept_steps(folder, gaps, every, pace, nproc=2):
    """(n,) steps that were kept between failures that are so many seconds apart, (n,): each a
    SIGKILL of the last rank.

    folder: of the checkpoints, in which the job goes on; every: steps between two saves. A failure
    has come before the first of them, too: all begin with a restart. Takes sum(gaps) seconds.
    Raises launch.RankError if ranks end otherwise.
    """
    kept, failed = [], time.monotonic()
    for gap in gaps:
        before = checkpoint.latest(folder) or 0
        _until_killed(folder, every, pace, failed, failed + gap, nproc)
        kept.append((checkpoint.latest(folder) or 0) - before)
        failed += gap
    return np.array(kept)


def _until_killed(folder, every, pace, failed, fails, nproc):
    longest = 60 + max(0.0, fails - time.monotonic())  # seconds, to restart and until it is killed
    try:
        launch.capture(
            train, folder, every, pace, failed, fails, nproc=nproc, timeout=longest, ledger=False
        )
    except launch.RankError as error:
        if error.kind != "died":
            raise


def train(folder, every, pace, failed=0.0, fails=None, steps=None):
    """On ranks: go on from the last checkpoint of `folder`, and save after every `every` steps.

    failed: when the failure before it came, from which on the restart counts; fails: when the last
    rank is killed, None for never. Both by time.monotonic(), which all processes of a machine
    share. steps: of the entire job, None for ever. Returns {"loss", "ready": when it went on,
    "step", "save": seconds that these really took, medians}.
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
            _wait_until(due - pace.save / 2)  # it is complete at its end
            begin = time.monotonic()
            checkpoint.save(
                folder, step + 1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            )
            took["save"].append(2 * (time.monotonic() - begin))  # in half of its time
            _wait_until(due)
    return {"loss": loss.item(), "ready": ready} | {
        part: float(np.median(each)) for part, each in took.items()
    }


def _as_saved(folder, vocab_size):
    """(model, optimizer, the step to go on with), as the last checkpoint has them; the same
    on every rank."""
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
    """All gradients in one message."""
    gradients = [parameter.grad for parameter in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    collectives.all_reduce(flat)
    for gradient, mean in zip(
        gradients, (flat / N).split([g.numel() for g in gradients]), strict=True
    ):
        gradient.copy_(mean.view_as(gradient))


def _wait_until(when):
    time.sleep(max(0.0, when - time.monotonic()))
