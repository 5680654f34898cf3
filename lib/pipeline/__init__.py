"""Pipeline parallelism: every rank has some of the layers, and micro-batches go through the ranks like cars on a line.

Deciding: plain Python, no torch, no ranks.
    actions.py       2F0: what a rank does, and what that needs
    schedules.py     relay, GPipe, 1F1B
    interleaved.py   v thinner stages on every rank
    zero_bubble.py   backward in two halves: ZB-H1
    versions.py      PipeDream: no flush, and which weights each action reads
    validate.py      can the ranks run it? else the action at fault, or the circle
    simulate.py      when each action runs, the bubble, what is kept
    measured.py      the times and the messages of a run, to simulate it with
    grid.py          a schedule as text
    balance.py       layers into stages

What executes a schedule on ranks needs torch, so it is imported by its own name and not from here.
"""

from lib.pipeline.actions import Action, inputs, messages, parse, source, target
from lib.pipeline.balance import balance
from lib.pipeline.grid import grid
from lib.pipeline.interleaved import interleaved
from lib.pipeline.measured import recorded, times_of
from lib.pipeline.schedules import gpipe, one_f_one_b, relay
from lib.pipeline.simulate import UNIT, Bar, Simulation, kept, simulate
from lib.pipeline.validate import ScheduleError, validate
from lib.pipeline.versions import pipedream, versions, versions_kept
from lib.pipeline.zero_bubble import zb_h1

__all__ = [
    "UNIT", "Action", "Bar", "ScheduleError", "Simulation", "balance", "gpipe", "grid", "inputs", "interleaved", "kept",
    "messages", "one_f_one_b", "parse", "pipedream", "recorded", "relay", "simulate", "source", "target", "times_of",
    "validate", "versions", "versions_kept", "zb_h1",
]  # fmt: skip
