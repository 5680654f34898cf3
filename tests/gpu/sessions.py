"""Cells on living ranks: variables stay on the GPU, an error and the stop button leave them, and a
hang inside NCCL ends the session with a message that names what is lost.

    cell                                  the session afterwards
    ------------------------------------  ----------------------------------------------------------
    x = ..., all-reduced                  goes on; `x` stays on the rank's device
    an error on every rank                goes on, and `x` is kept
    an error on rank 1 alone              goes on: the others are not inside NCCL
    stop, while ranks compute             goes on, and `x` is kept
    an all-reduce against a receive       ends: what a GPU waits for cannot be interrupted
"""

import argparse
import os
import signal
import sys
import threading
import time

from lib import launch
from tests.gpu.processes import ranks_left

FIRST = """
x = torch.ones(1 << 20) * (rank + 1)
dist.all_reduce(x)
place = str(x.device)
x[0].item()
"""
KEPT = "dist.all_reduce(x)\nkept = x[0].item()"
ERROR_ON_ALL = "torch.ones(3) @ torch.ones(4)"
ERROR_ON_ONE = "if rank == 1:\n    torch.ones(3) @ torch.ones(4)"
COMPUTES = "import time\nwhile True:\n    x.sum().item()\n    time.sleep(0.01)"
HANG = "if rank == 1:\n    dist.recv(torch.zeros(3), 0)\nelse:\n    dist.all_reduce(x)"
STOP_AFTER = 2.0  # seconds


def stopped(session: launch.sessions.Session, source: str) -> str:
    """What is said when the stop button is pressed while `source` runs; "" if nothing stopped."""
    timer = threading.Timer(STOP_AFTER, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        session.cell(source)
    except KeyboardInterrupt as stop:
        return str(getattr(stop, "then", stop))
    finally:
        timer.cancel()
    return ""


def failed(session: launch.sessions.Session, source: str) -> str:
    """The message of the error that `source` ends with; "" if it ends well."""
    try:
        session.cell(source)
    except launch.RankError as error:
        return str(error)
    return ""


def run(name: str, ranks: int) -> tuple[list[str], dict[str, float]]:
    """(what is not as it should be, in words; {what: seconds})"""
    wrong, took = [], {}

    def timed(what, call, *args):
        began = time.monotonic()
        said = call(*args)
        took[what] = time.monotonic() - began
        print(f"{what}, {took[what]:.1f} s: {said}", flush=True)
        return said

    session = timed("start", lambda: launch.session(ranks, backend=name, timeout=60))
    timed("first cell", session.cell, FIRST)
    total = ranks * (ranks + 1) / 2
    values, devices = [float(x[0]) for x in session["x"]], session["place"]
    on_gpu = name != "gloo"
    if values != [total] * ranks or any(x.is_cuda for x in session["x"]):
        wrong.append(f"x is {values} on the notebook's side, and {total} was due, on the CPU")
    if any(on_gpu is not place.startswith("cuda") for place in devices):
        wrong.append(f"the tensors were on {devices}")
    timed("cell", session.cell, "x.fill_(1.0)")
    for what, call, source in (
        ("error on all", failed, ERROR_ON_ALL),
        ("error on one", failed, ERROR_ON_ONE),
        ("stop", stopped, COMPUTES),
    ):
        if ranks == 1 and source is ERROR_ON_ONE:
            continue
        said = timed(what, call, session, source)
        if "The session continues, and its variables are kept." not in said:
            wrong.append(f"{what}: {said!r}")
            session.end()
            return wrong, took
        timed(f"cell after {what}", session.cell, KEPT)
    if ranks > 1:
        said = timed("hang", failed, session, HANG)
        ends = "has ended" if on_gpu else "The session continues"
        if ends not in said or "waits" not in said:
            wrong.append(f"hang: {said!r}")
    session.end()
    if left := ranks_left():
        wrong.append(f"{left} processes left")
    return wrong, took


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sessions")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    wrong, took = run(options.backend, options.ranks)
    seconds = ", ".join(f"{what} {each:.1f}" for what, each in took.items())
    print(f"showed: {'; '.join(wrong) or 'as it should be'} (seconds: {seconds})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
