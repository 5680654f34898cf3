"""What a job loses to failures, to its saves and to its restarts, and how often to save so that it
loses least.

    |restart| interval |save| interval |save| inte X restart| interval |save| interval |sa X ...
              [= kept =]     [= kept =]     [lost]          [= kept =]     [==== lost ====]

T  interval, of computing between two saves        S  save, during which training stands still
R  restart, from a failure until training goes on  M  mtbf, mean time between failures of the job

All four are in seconds.

    P(k or more saves between failures)   e^(-(R + k (T + S)) / M)
    saves between failures, on average    its sum over k = 1, 2, ... = e^(-R/M) / (e^((T+S)/M) - 1)
    lost share                            1 - T/M times that
    where T, S and R are small against M  about S/T + (T/2 + R) / M
    least lost                            (1 - T/M) e^((T+S)/M) = 1 for any R: about sqrt(2 S M)

Assumed: failures come at a constant rate and independent of each other, so that times between them
are exponential; they come during saves and restarts, too; a save that is cut short is none, and all
others can be loaded; the job is long against M. goodput = 1 - lost share, of the steps that an
undisturbed job would do in the time.

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
    """What was counted of a job."""

    days: float
    failures: int
    gpus: int


# unexpected ones; 47 were planned, 58.7 % of the 419 are GPUs'
LLAMA_3 = Failures(days=54, failures=419, gpus=16_384)


# exercise: lab6.job_mtbf
def job_mtbf(days, failures, gpus, job_gpus):
    """Seconds between two failures of a job on `job_gpus` GPUs, if one on `gpus` GPUs had
    `failures` in `days` days.

    Each GPU, with its share of hosts and network, fails at the same rate; the first that fails
    stops the job.
    """
    of_a_gpu = days * SECONDS_PER_DAY * gpus / failures
    return of_a_gpu / job_gpus


# exercise: lab6.lost_share
def lost_share(interval, save, restart, mtbf):
    """The share of time, 0 to 1, in which a job does not do work that it keeps. All four in
    seconds.

    Raises ValueError for an interval or mtbf that is not above 0, and for a save or restart below
    0.
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
    """Seconds of computing between two saves with which a job loses least. save, mtbf: seconds.

    Raises ValueError where one is not above 0: who saves in no time saves after every step.
    """
    if not (0 < save < inf and 0 < mtbf < inf):
        raise ValueError(
            f"save={save}, mtbf={mtbf}: give seconds above 0; who saves in no time saves after "
            f"every step"
        )
    low, high = 0.0, 1.0  # of T/M
    for _ in range(60):
        x = (low + high) / 2
        # the logarithm of (1 - x) e^(x + S/M)
        low, high = (x, high) if log1p(-x) + x + save / mtbf > 0 else (low, x)
    return x * mtbf


def young(save, mtbf):
    """Young's interval, in seconds: good where it is short against mtbf."""
    return (2 * save * mtbf) ** 0.5


def kept_work(gaps, interval, save, restart):
    """Seconds of work that are kept between failures that lie so far apart: whole intervals, each
    saved. (...) -> (...)

    gaps: seconds from one failure to the next. Each begins with a restart; a failure may come
    before it is over.
    """
    return interval * np.floor(np.maximum(0.0, np.asarray(gaps) - restart) / (interval + save))


def simulated(interval, save, restart, mtbf, failures=10_000, jobs=1, seed=0):
    """Lost shares of `jobs` jobs, (jobs,), each of so many failures drawn at random: no
    formula, a clock."""
    gaps = np.random.default_rng(seed).exponential(mtbf, (jobs, failures))
    return 1 - kept_work(gaps, interval, save, restart).sum(axis=1) / gaps.sum(axis=1)
