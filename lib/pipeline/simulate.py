r"""When does each action of a schedule run, if every action takes a known time?

    rank 0   [ 0F0 ][ 0F1 ]............[  0B0  ]      an action starts when its rank is free
                    \                  /              and what it needs has arrived
    rank 1           -->[ 1F0 ][  1B0  ]

    start(a) = max( end of the action before a in its rank's list,
                    end of each action that a needs + message time, if it comes from another rank )
    end(a)   = start(a) + time of a

A message is sent while both ranks compute: it delays the rank that waits for it, but uses no
compute time. Messages do not slow each other down either. On a real network they may; the
difference is what Lab 2 measures.

    bubble of a rank   (makespan - busy) / makespan

If all times are integers, so are the results, and can be compared with a formula by ==.

A schedule as text, as the papers draw it: time steps are columns, ranks are rows.

    rank 0  0F0 0F1  .   .  0B0 ---  .  0B1 ---        --- the action continues
    rank 1   .  1F0 1B0 --- 1F1 1B1 ---  .   .          .  the rank is idle
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

from lib.pipeline.actions import Action, Dependencies
from lib.pipeline.validate import walk

UNIT = {"F": 1, "B": 2, "I": 1, "W": 1}  # backward has two matmuls where forward has one


class Bar(NamedTuple):
    """A timed action, one event of the run's trace."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """A schedule and its timed actions, `bars`, sorted by rank and then by start. All properties
    follow from them."""

    schedule: Sequence[Sequence[Action]]
    bars: list[Bar]

    @property
    def makespan(self) -> float:
        """From the start of the first action to the end of the last."""
        return max(bar.end for bar in self.bars) - min(bar.start for bar in self.bars)

    @property
    def busy(self) -> list[float]:
        """[time that rank 0, 1, ... computes]"""
        busy: list[float] = [0] * len(self.schedule)
        for rank, _, start, end in self.bars:
            busy[rank] += end - start
        return busy

    @property
    def bubbles(self) -> list[float]:
        """[share of the makespan that rank 0, 1, ... is idle]"""
        makespan = self.makespan
        return [(makespan - busy) / makespan for busy in self.busy]

    @property
    def bubble(self) -> float:
        """Share of all ranks' time that is idle: the mean of `bubbles`."""
        total = len(self.schedule) * self.makespan
        return (total - sum(self.busy)) / total

    @property
    def peak_live(self) -> list[int]:
        """[most micro-batches x stages with F done and B (or I) not, on rank 0, 1, ...]"""
        return [max(live for live, _ in kept(actions)) for actions in self.schedule]

    @property
    def peak_kept(self) -> list[int]:
        """[most micro-batches x stages with F done and B (or W) not, on rank 0, 1, ...]"""
        return [max(live + waiting for live, waiting in kept(actions)) for actions in self.schedule]


def simulate(
    schedule: Sequence[Sequence[Action]], times: Mapping[str, Any] = UNIT, message: Any = 0
) -> Simulation:
    """Run `schedule` on a clock. Returns a Simulation, whose `bars` are (rank, action, start, end).

    times: {"F": ..., "B": ...}, or with "I" and "W" in place of "B" or in addition to it, in any
        unit; each a number, or a list with one per stage (v p of them).
    message: time from one rank to the next, same unit; a number, or a list with one per pair of
        neighbouring stages: message[s] between stages s and s+1, in both directions. Nothing is
        sent between stages of one rank.
    Raises ScheduleError for a schedule that deadlocks, ValueError for a time that is missing or a
    list of another length.
    """
    dependencies = Dependencies(schedule)
    n_stages = dependencies.n_stages
    edges = _one_per(
        n_stages - 1, message, "message times, one between each two neighbouring stages"
    )
    durations = {
        kind: _one_per(n_stages, time, f"times for {kind}, one per stage")
        for kind, time in times.items()
    }

    free, end, bars = [0] * len(schedule), {}, []
    for rank, action in walk(schedule):
        if action.kind not in durations:
            raise ValueError(
                f"{action} needs a time: times has {', '.join(times)}, add {action.kind!r}"
            )
        arrivals = [
            end[need]
            + (edges[min(need.stage, action.stage)] if dependencies.rank(need) != rank else 0)
            for need in dependencies.of(action)
        ]
        start = max([free[rank], *arrivals])
        free[rank] = end[action] = start + durations[action.kind][action.stage]
        bars.append(Bar(rank, action, start, end[action]))
    return Simulation(schedule, sorted(bars, key=lambda bar: (bar.rank, bar.start)))


def kept(actions: Iterable[Action]) -> list[tuple[int, int]]:
    """What one rank keeps after each action of its list: [(live, waiting), ...], in micro-batches x
    stages.

    live: F done, B or I not: all that backward reads. In a transformer layer of batch b, sequence
        s, hidden size h and a heads 34 sbh + 5 a s^2 b bytes, if nothing is recomputed.
    waiting: I done, W not: only what the weights' gradients read, 32 sbh bytes (Qi et al. 2024,
        table 1).
    So the bytes after each action are live * (bytes of a live one) + waiting * (bytes of a waiting
    one).
    """
    live = waiting = 0
    after = []
    for action in actions:
        live += {"F": 1, "B": -1, "I": -1, "W": 0}[action.kind]
        waiting += {"F": 0, "B": 0, "I": 1, "W": -1}[action.kind]
        after.append((live, waiting))
    return after


def _one_per(n, times, what):
    times = list(times) if not isinstance(times, Real) else [times] * n
    if len(times) != n:
        raise ValueError(f"{len(times)} {what}: this schedule takes {n}")
    return times


def grid(
    schedule: Sequence[Sequence[Action]],
    times: Mapping[str, Any] = UNIT,
    message: Any = 0,
    line_length: int = 100,
) -> str:
    """`schedule` as text, one line per rank, one column per unit of time.

    times, message: as in `simulate`, but integers; `plots` draws schedules with other times.
    line_length: the most characters of a line. A longer row is continued below, under a line with
    the time at which it continues. Raises ValueError for times that are not whole numbers,
    ScheduleError for a schedule that deadlocks.
    """
    bars = simulate(schedule, times, message).bars
    fractional = next(
        (bar for bar in bars if bar.start != int(bar.start) or bar.end != int(bar.end)), None
    )
    if fractional:
        raise ValueError(
            f"{fractional.action} runs from {fractional.start} to {fractional.end}, but a column "
            f"is a whole unit of time: draw such times with plots.gantt"
        )
    width = max(len(str(bar.action)) for bar in bars)
    steps = int(max(bar.end for bar in bars))
    rows = [["."] * steps for _ in schedule]
    for rank, action, start, end in bars:
        rows[rank][int(start) : int(end)] = [str(action)] + ["-" * width] * int(end - start - 1)
    names = [f"rank {rank}" for rank in range(len(schedule))]
    n_blocks = -(-steps // max(1, (line_length - len(names[-1])) // (width + 1)))
    columns = -(-steps // n_blocks)
    lines = []
    for first in range(0, steps, columns):
        lines += [f"from {first} on"] if first else []
        lines += [
            " ".join(
                [
                    name.ljust(len(names[-1])),
                    *(cell.center(width) for cell in row[first : first + columns]),
                ]
            )
            for name, row in zip(names, rows, strict=True)
        ]
    return "\n".join(line.rstrip() for line in lines)
