"""Is ours as fast as theirs? Interleaved rounds, a paired ratio, and a control that shows what
noise alone would say.

    round 0  ours    theirs   again        again: theirs a second time
    round 1  again   theirs   ours         every other round backwards,
                                           so that no side always goes first
    ...
    ratio    median over the rounds of ours / theirs
    control  median over the rounds of again / theirs: the ratio of two sides that do not differ

Both have a 95% interval between two order statistics (lib/measuring/rounds.py). The two sides of a
pair are measured right after each other, so a machine that is slow for a second slows both, and
their ratio stays. On a shared machine a ratio without interval and control proves nothing.

    "not slower"      the ratio's lower bound is at most max(1.0, the control's upper bound)
    "at most x"       the ratio's upper bound is at most x
"""

from typing import NamedTuple

import numpy as np

from lib.measuring.rounds import Interval, interval

ROUNDS = 31  # at least; fewer only for what takes seconds, and then the table says how many


class Comparison(NamedTuple):
    """Two sides and the control, from the rounds of one run. Seconds are medians, per call."""

    ours: float
    theirs: float
    ratio: Interval  # ours / theirs
    control: Interval  # theirs / theirs
    rounds: int


class Bar(NamedTuple):
    """What is asked of a ratio. at_most: at most so many times theirs; None: not slower than the
    control allows."""

    at_most: float | None
    why: str  # where it comes from

    def __str__(self):
        return "not slower" if self.at_most is None else f"at most {self.at_most:g}"

    def met(self, comparison: Comparison) -> bool:
        if self.at_most is None:
            return comparison.ratio.low <= max(1.0, comparison.control.high)
        return comparison.ratio.high <= self.at_most


def compare(ours, theirs, again) -> Comparison:
    """Seconds (n,) of the two sides and the control, round by round, to a Comparison."""
    ours, theirs, again = (np.asarray(side, dtype=float) for side in (ours, theirs, again))
    if not ours.shape == theirs.shape == again.shape:
        raise ValueError(
            f"sides are paired by round, but have {len(ours)}, {len(theirs)}, {len(again)} rounds"
        )
    return Comparison(
        float(np.median(ours)),
        float(np.median(theirs)),
        interval(ours / theirs),
        interval(again / theirs),
        len(ours),
    )
