"""How much of its time a job loses to failures, to saving checkpoints and to restarts, and how
often to save so that it loses the least.

    |restart| interval |save| interval |save| inte X restart| interval |save| interval |sa X ...
              [= kept =]     [= kept =]     [lost]          [= kept =]     [==== lost ====]

T  interval of computing between two saves         S  save, during which training pauses
R  restart, from a failure until training resumes  M  mtbf, mean time between failures of the job

All four are in seconds.

    P(k or more saves between failures)   e^(-(R + k (T + S)) / M)
    saves between failures, on average    its sum over k = 1, 2, ... = e^(-R/M) / (e^((T+S)/M) - 1)
    lost share                            1 - T/M times that
    if T, S and R are small against M     about S/T + (T/2 + R) / M
    least lost                            (1 - T/M) e^((T+S)/M) = 1 for any R: T about sqrt(2 S M)

We assume that failures occur at a constant rate and independently of each other, so that the times
between them are distributed exponentially, and that they also occur during saves and restarts. A
save that is interrupted is useless, and all others can be loaded. The job is long compared with M.
goodput = 1 - lost share: the share of the steps that an undisturbed job would do in that time.

Sources: Young 1974, "A first order approximation to the optimum checkpoint interval", for the
square root; Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart
dumps", for the complete model and its series; Grattafiori et al. 2024, "The Llama 3 herd of
models", section 3.3.4, for LLAMA_3.
"""

from math import exp, expm1, inf, log1p
from typing import NamedTuple

import numpy as np

SECONDS_PER_DAY = 24 * 60 * 60


class Failures(NamedTuple):
    """How many failures a published job had."""

    days: float
    failures: int
    gpus: int


# unexpected interruptions, of which 58.7 % were failures of GPUs; 47 more were planned
LLAMA_3 = Failures(days=54, failures=419, gpus=16_384)


# exercise: lab6.job_mtbf
def job_mtbf(days, failures, gpus, job_gpus):
    """Mean seconds between two failures of a job on `job_gpus` GPUs, if a job on `gpus` GPUs had
    `failures` failures in `days` days.

    Each GPU, together with its share of hosts and network, fails at the same rate, and the first
    one that fails stops the job.
    """
    of_a_gpu = days * SECONDS_PER_DAY * gpus / failures
    return of_a_gpu / job_gpus


# exercise: lab6.lost_share
def lost_share(interval, save, restart, mtbf):
    """The share of time, from 0 to 1, in which a job does no work that it keeps. All four arguments
    are in seconds.

    Raises ValueError if interval is not finite and above 0, if mtbf is not above 0, or if save or
    restart is below 0.
    """
    if not (0 < interval < inf and mtbf > 0 and save >= 0 and restart >= 0):
        raise ValueError(
            f"interval={interval}, save={save}, restart={restart}, mtbf={mtbf}: give seconds, "
            f"above 0 for interval and mtbf, 0 or more for save and restart"
        )
    cycle = (interval + save) / mtbf
    # between two failures: e^(-R/M) / (e^((T+S)/M) - 1)
    saves = -exp(-restart / mtbf - cycle) / expm1(-cycle)
    return 1 - interval * saves / mtbf


# exercise: lab6.best_interval
def best_interval(save, mtbf):
    """The seconds of computing between two saves with which a job loses the least. save, mtbf:
    seconds.

    Raises ValueError if one of them is not finite and above 0. (A job whose saves took no time
    would save after every step.)
    """
    if not (0 < save < inf and 0 < mtbf < inf):
        raise ValueError(
            f"save={save}, mtbf={mtbf}: give finite seconds above 0. A job whose saves take no "
            f"time saves after every step"
        )
    low, high = 0.0, 1.0  # of T/M
    for _ in range(60):
        x = (low + high) / 2
        # the logarithm of (1 - x) e^(x + S/M)
        low, high = (x, high) if log1p(-x) + x + save / mtbf > 0 else (low, x)
    return x * mtbf


def young(save, mtbf):
    """Young's interval, in seconds, which is accurate if the interval is short compared with
    mtbf."""
    return (2 * save * mtbf) ** 0.5


def kept_work(gaps, interval, save, restart):
    """Seconds of work that are kept in each gap between two failures: the complete intervals, each
    of which was saved. (...) -> (...)

    gaps: seconds from one failure to the next. Each gap begins with a restart, and a failure may
    interrupt that.
    """
    return interval * np.floor(np.maximum(0.0, np.asarray(gaps) - restart) / (interval + save))


def simulated(interval, save, restart, mtbf, failures=10_000, jobs=1, seed=0):
    """The lost shares of `jobs` jobs, (jobs,), simulated with this number of random failures
    each."""
    gaps = np.random.default_rng(seed).exponential(mtbf, (jobs, failures))
    return 1 - kept_work(gaps, interval, save, restart).sum(axis=1) / gaps.sum(axis=1)
