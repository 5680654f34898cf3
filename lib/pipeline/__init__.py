"""Pipeline parallelism: every rank has some of the layers, and micro-batches pass through the ranks
like cars on an assembly line.

Scheduling, which is plain Python without ranks and, except for __main__.py, without torch:
    actions.py     actions such as 2F0, and `Dependencies`: which rank has which stage, and which
                   action needs whose result
    schedules.py   relay (naive model parallelism), GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-V,
                   DualPipeV
    validate.py    whether ranks can run it; if not, the action at fault, or the cycle of waits
    simulate.py    when each action runs, the bubble, what is kept; a schedule as text
    measured.py    the times of a run's actions and messages, as inputs of the simulation
    balance.py     splits layers into stages
    stash.py       PipeDream: no flush, and which weights each action reads; 2BW
    puzzle.py      a scheduling puzzle for students: unequal stages, messages, a cap on memory
    shortest.py    its shortest makespan, by branch and bound
    __main__.py    finds it for every level of the puzzle, and stores it
    report.py      pace, bubble, memory and MFU of a real model's pipeline
    transfers.py   the messages of a schedule: when to post a receive, what has been sent

Executing on ranks. These modules need torch, so they are imported by name and not from here:
    relay_step.py    the relay of one batch, forward and back, by hand
    straight.py      1F1B by hand: warmup, steady state, cooldown; begin here
    split.py         splits a model into stages; a parameter in two of them
    links.py         a process group for each direction between two neighbours
    shapes.py        shape inference: the shapes of all messages, before the first run
    halves.py        split backward: the halves I (dgrad) and W (wgrad)
    execute.py       executes a list of actions on a rank
    stage.py         Stage, Pipeline: `run` a step, `evaluate` a loss without gradients
    asynchronous.py  PipeDream
    paced_run.py     stages that sleep, for more ranks than cores
    trials.py        what Lab 2 measures: gradients, bytes kept, times

`# exercise: lab.name` marks what students write in that lab (lib/README.md).
"""

from lib.pipeline.actions import (
    Action,
    Dependencies,
    dependencies_of,
    loop,
    messages,
    parse,
    source,
    target,
    v_shape,
)
from lib.pipeline.balance import balance
from lib.pipeline.measured import recorded, times_of
from lib.pipeline.schedules import dualpipe_v, gpipe, interleaved, one_f_one_b, relay, zb_h1, zb_v
from lib.pipeline.simulate import UNIT, Bar, Simulation, grid, kept, simulate
from lib.pipeline.stash import pipedream, versions
from lib.pipeline.validate import ScheduleError, validate

__all__ = [
    "UNIT",
    "Action",
    "Bar",
    "Dependencies",
    "ScheduleError",
    "Simulation",
    "balance",
    "dependencies_of",
    "dualpipe_v",
    "gpipe",
    "grid",
    "interleaved",
    "kept",
    "loop",
    "messages",
    "one_f_one_b",
    "parse",
    "pipedream",
    "recorded",
    "relay",
    "simulate",
    "source",
    "target",
    "times_of",
    "v_shape",
    "validate",
    "versions",
    "zb_h1",
    "zb_v",
]  # fmt: skip
