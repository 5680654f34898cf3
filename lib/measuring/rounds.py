"""Repeats rounds of a measurement until they settle a claim of the text, such as "the ring is at
least 1.5 times as fast as the star". A claim is a value with bounds, and has one of three outcomes.

    holds                  the value's interval is within the bounds; the claim is printed with its
                           values
    refuted                the interval is outside the bounds, twice in a row on a machine that is
                           otherwise idle; Refuted is raised
    could not be measured  neither, when the time is up; a line says so, and there is no result, so
                           that no figure is drawn from noise

    round 0  star  ring  value: one per round, such as star / ring, because a slow second slows
    round 1  ring  star  both sides alike
    ...                  interval: the median over the rounds, between two order statistics

Of n values, the k-th smallest and the k-th largest enclose the median of the distribution with a
probability that depends only on n and k, because each value is above the median with probability
1/2. It is 1 - 2 P(Binomial(n, 1/2) < k) (David and Nagaraja, Order Statistics, 2003, section 7.1).
We take the largest k with at least 95%. Even the smallest and the largest of five values reach only
94%, so for fewer than six rounds we print the range of the values, and call it a range. We look at
the values after each try and add rounds until the claim is settled. The 95% are therefore the
confidence of a single look, and not of all looks together.

During a measurement, ranks of other notebooks on this machine wait (lib/launch/alone.py). Other
programs are noticed by the processor time that they use. Rounds during which they kept the machine
too busy cannot refute a claim. With LAB_CLAIMS=hold, as when solutions are executed and validated,
any outcome but "holds" raises Refuted. With LAB_CLAIMS=once there is a single try, and no other
notebook has to wait.
"""

import contextlib
import math
import os
import string
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import psutil

from lib import linux
from lib.launch.alone import alone

# Shares of the processors. If other programs use more than BUSY, and less than IDLE is idle, the
# machine is too busy for a claim to be refuted.
BUSY = 0.1
IDLE = 0.3
PATIENCE = 20.0  # seconds after which no further try is begun
TO_HOLD = (
    6  # factor on PATIENCE if every claim has to hold, because the machine may be less busy later
)
# A try lasts at least this many seconds, because the system counts processor time in 10 ms steps.
SHORTEST = 0.2
FEWEST = 6  # rounds for a 95% interval: the range of five contains the median in 94% of cases only
CONFIDENCE = 0.95
Side = TypeVar("Side", bound=object)  # how a caller names the things that it compares
Rounds = Mapping[object, np.ndarray]  # {side: (rounds, ...)}


class Refuted(AssertionError):
    """A claim that the measurement contradicts, or, with LAB_CLAIMS=hold, does not confirm."""


class Interval(NamedTuple):
    """The median of some rounds, and two values around it: a 95% interval, or, for fewer than six
    rounds, the smallest and the largest."""

    median: float
    low: float
    high: float
    rounds: int


class Claim(NamedTuple):
    """What a measurement should show: that the median of a value is within bounds.

    sentence: the claim, with {} for the value, as in "{:.1f} times as fast". value: a function from
    {side: (rounds, ...) numbers} to the (rounds,) values that are judged. at_least, at_most: the
    bounds.
    """

    sentence: str
    value: Callable[[Rounds], np.ndarray]
    at_least: float = -np.inf
    at_most: float = np.inf

    def judge(self, found: Rounds) -> tuple[str, Interval]:
        """("holds", "refuted" or "open", the interval that decided it). It is open if the interval
        is neither within the bounds nor outside them."""
        seen = interval(self.value(found))
        if self.at_least <= seen.low and seen.high <= self.at_most:
            return "holds", seen
        return ("refuted" if seen.high < self.at_least or seen.low > self.at_most else "open"), seen

    def told(self, seen: Interval) -> str:
        """The sentence with the median, followed by the interval and the bounds. The numbers have
        the format that the sentence gives its value."""
        spec = next(
            (spec for _, name, spec, _ in _fields(self.sentence) if name in ("", "0")), ".3g"
        )
        low, high = (format(value, spec) for value in (seen.low, seen.high))
        bound = lambda value: f"{100 * value:g}%" if spec.endswith("%") else f"{value:g}"
        bounds = [f"at least {bound(self.at_least)}"] * (self.at_least > -np.inf)
        bounds += [f"at most {bound(self.at_most)}"] * (self.at_most < np.inf)
        kind = "95% interval" if seen.rounds >= FEWEST else f"range of {seen.rounds} rounds"
        numbers = f"{kind} {low} to {high}; claimed: {' and '.join(bounds)}"
        return f"{self.sentence.format(seen.median)} ({numbers})"


_fields = string.Formatter().parse


def interval(values) -> Interval:
    """The median of `values` (n,), between the order statistics that enclose the true median with
    at least 95% confidence; for fewer than six values between the smallest and the largest."""
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(
            f"an interval needs finite values of shape (n,), got shape {values.shape}: "
            f"{values.tolist()[:8]}"
        )
    n, k, below = len(values), 1, 2.0 ** -len(values)  # below: P(fewer than k values are lower)
    while below + math.comb(n, k) * 2.0**-n <= (1 - CONFIDENCE) / 2:
        below += math.comb(n, k) * 2.0**-n
        k += 1
    ordered = np.sort(values)
    return Interval(float(np.median(values)), float(ordered[k - 1]), float(ordered[n - k]), n)


def interleave(clocks: list[Callable[[], float]], rounds: int) -> np.ndarray:
    """Call every clock once a round, forwards in even rounds and backwards in odd ones.

    clocks: functions that return seconds. Returns these seconds, (rounds, sides). The order
    alternates so that of any two sides, each runs first in half of an even number of rounds.
    """
    seconds = np.empty((rounds, len(clocks)))
    for i in range(rounds):
        forwards = range(len(clocks))
        for side in forwards if i % 2 == 0 else reversed(forwards):
            seconds[i, side] = clocks[side]()
    return seconds


def in_turns(sides: Mapping[Side, Callable[[], object]], rounds: int) -> dict[Side, np.ndarray]:
    """{side: (rounds,) seconds that its function took}. A round calls each of them once, and every
    other round goes through them backwards."""
    seconds = interleave([lambda fn=fn: _seconds(fn) for fn in sides.values()], rounds)
    return dict(zip(sides, seconds.T, strict=True))


def measure(
    run: Callable[[], Rounds], *claims: Claim, patience: float = PATIENCE
) -> dict[object, np.ndarray] | None:
    """Take rounds until every claim holds, one is refuted or the time is up, and print the outcome.
    Returns the rounds, {side: (rounds, ...) numbers}, or None where a claim could not be measured.

    run: one try, a function that returns {side: (rounds, ...) numbers} of at least 3 rounds. Tries
    on a quiet machine are joined; until there is one, each try is judged by itself. patience:
    seconds after which no further try is begun. Raises Refuted, and ValueError for too few rounds.
    """
    asked = os.environ.get("LAB_CLAIMS")
    patience *= {"once": 0, "hold": TO_HOLD}.get(asked, 1)
    with contextlib.nullcontext() if asked == "once" else alone():
        found, verdicts, others = _tries(run, claims, patience)
    for claim, (outcome, seen) in zip(claims, verdicts, strict=True):
        if outcome == "holds":
            print(_lines(f"holds after {seen.rounds} rounds: {claim.told(seen)}"))
        elif outcome == "refuted":
            raise Refuted(f"refuted after {seen.rounds} rounds: {claim.told(seen)}")
        else:
            says = f"could not be measured in {seen.rounds} rounds: {claim.told(seen)}"
            if asked == "hold":
                raise Refuted(f"{says}; other programs used {others:.0%} of the processors")
            why = (
                f"Other programs used {others:.0%} of the processors"
                if others > BUSY
                else "The rounds differ too much"
            )
            print(_lines(f"{says}. {why}: run this cell again when the machine has less to do."))
            return None
    return found


def _tries(run, claims, patience):
    """(rounds, [(outcome, interval) of each claim], share of the processors that other programs
    used in the last try). A claim that was refuted only once is returned as open."""
    deadline, quiet, said = time.monotonic() + patience, {}, 0
    while True:
        before, new = _used(), {}
        while not new or time.monotonic() < before.at + SHORTEST:
            new = _joined(new, run())
        others, idle = _between(before, _used())
        if is_quiet := others <= BUSY or idle >= IDLE:
            quiet = _joined(quiet, new)
        found = quiet or new
        verdicts = [claim.judge(found) for claim in claims]
        outcomes = {outcome for outcome, _ in verdicts}
        said = said + 1 if is_quiet and "refuted" in outcomes else 0
        if outcomes <= {"holds"} or said > 1:
            return found, verdicts, others
        if time.monotonic() >= deadline:
            return found, [("open" if o == "refuted" else o, seen) for o, seen in verdicts], others


def _joined(rounds, more):
    more = {side: np.asarray(values) for side, values in more.items()}
    if any(len(values) < 3 for values in more.values()):
        raise ValueError(
            f"a claim needs 3 rounds or more, not {[len(values) for values in more.values()]}"
        )
    return {
        side: np.concatenate([rounds.get(side, values[:0]), values])
        for side, values in more.items()
    }


class _Used(NamedTuple):
    at: float  # the clock, in seconds
    ours: float  # processor seconds of this process and of all that it has started
    idle: float  # idle seconds, summed over the processors that we may use
    processors: int  # how many we may use


def _used():
    mine, us = 0.0, psutil.Process()
    for process in (us, *us.children(recursive=True)):
        try:
            # user and system time, its own and that of its children that have ended
            mine += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # ended meanwhile
    all_of_them = psutil.cpu_times(percpu=True)
    may_use = linux.processors()
    idle = sum(all_of_them[i].idle + getattr(all_of_them[i], "iowait", 0.0) for i in may_use)
    return _Used(time.monotonic(), mine, idle, len(may_use))


def _between(before, after):
    """(share of the processors that other programs used, share of them that was idle)."""
    span = max(1e-9, after.at - before.at) * after.processors
    idle = min(1.0, (after.idle - before.idle) / span)
    return max(0.0, 1.0 - idle - (after.ours - before.ours) / span), idle


def _lines(text):
    return textwrap.fill(
        text, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _seconds(fn):
    begin = time.perf_counter()
    fn()
    return time.perf_counter() - begin
