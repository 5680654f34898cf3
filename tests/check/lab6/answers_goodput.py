"""Answers to Lab 6's job_mtbf, lost_share and best_interval: wrong ones, each with its
hint, and right ones."""

from math import exp, sqrt

import numpy
from as_an_answer import as_an_answer, told

from lib.cost import goodput

# right


def by_the_rate(days, failures, gpus, job_gpus):
    rate = failures / (gpus * days * 24 * 3600)  # failures of a GPU in a second
    return 1 / (job_gpus * rate)


def by_hours(days, failures, gpus, job_gpus):
    return numpy.float64(days) * 24 / failures * gpus / job_gpus * 3600


def sum_over_saves(interval, save, restart, mtbf):
    saves, k = 0.0, 1
    while (more := exp(-(restart + k * (interval + save)) / mtbf)) > 1e-12:
        saves, k = saves + more, k + 1
    return 1 - saves * interval / mtbf


def dalys_wall_time(interval, save, restart, mtbf):
    """Of Daly 2006: seconds until an interval is saved, restarts and lost work included."""
    takes = mtbf * exp(restart / mtbf) * (exp((interval + save) / mtbf) - 1)
    return numpy.float64(1 - interval / takes)


def dalys_series(save, mtbf):
    x = save / (2 * mtbf)
    return sqrt(2 * save * mtbf) * (1 + sqrt(x) / 3 + x / 9) - save


def a_search(save, mtbf):
    intervals = [mtbf * k / 5000 for k in range(1, 5001)]
    return min(intervals, key=lambda T: sum_over_saves(T, save, 0, mtbf))


def by_newton(save, mtbf):
    T = sqrt(2 * save * mtbf)
    for _ in range(50):
        slope = -T / mtbf**2 * exp((T + save) / mtbf)
        T = min(mtbf, max(T / 2, T - ((1 - T / mtbf) * exp((T + save) / mtbf) - 1) / slope))
    return T


# wrong


def nothing_returned(*args):
    args[0] + 1


def in_words(*args):
    return "3 hours"


def half_the_save(interval, save, restart, mtbf):
    return sum_over_saves(interval, save / 2, restart, mtbf)


def simulates(interval, save, restart, mtbf):
    return goodput.simulated(interval, save, restart, mtbf)[0]


def forty_percent(interval, save, restart, mtbf):
    return 0.4


def below_nothing(interval, save, restart, mtbf):
    return -save / interval - restart / mtbf - 0.01


def saves_every_minute(save, mtbf):
    return 60


def saves_every_hour(save, mtbf):
    return 3600


def of_the_save_alone(save, mtbf):
    return 60 * save


def calls_libs_share(interval, save, restart, mtbf):
    return goodput.lost_share(interval, save, restart, mtbf)


def searches_with_libs(save, mtbf):
    return min(
        (mtbf * k / 500 for k in range(1, 501)), key=lambda T: goodput.lost_share(T, save, 0, mtbf)
    )


def calls_libs_interval(save, mtbf):
    return goodput.best_interval(save, mtbf)


def another_time(days, failures, gpus, job_gpus):
    return days * 86400 / (failures + 1) * gpus / job_gpus


def not_written(*args):
    raise NotImplementedError


WRONG = {
    "job_mtbf": {
        nothing_returned: "nothing returned",
        in_words: "no number",
        another_time: "another time",
        not_written: "not written",
    },
    "lost_share": {
        nothing_returned: "nothing returned",
        in_words: "no number",
        half_the_save: "three losses",
        simulates: "called what it builds",
        forty_percent: "three losses",
        below_nothing: "more than all",
        calls_libs_share: "called what it builds",
        not_written: "not written",
    },
    "best_interval": {
        nothing_returned: "nothing returned",
        in_words: "no number",
        saves_every_minute: "another interval",
        saves_every_hour: "another interval",
        of_the_save_alone: "another interval",
        calls_libs_interval: "called what it builds",
        searches_with_libs: "called what it builds",
        not_written: "not written",
    },
}
RIGHT = {
    "job_mtbf": [by_the_rate, by_hours, as_an_answer(goodput.job_mtbf)],
    "lost_share": [sum_over_saves, dalys_wall_time, as_an_answer(goodput.lost_share)],
    "best_interval": [dalys_series, a_search, by_newton, as_an_answer(goodput.best_interval)],
}
WRONG["best_interval"] |= told(
    goodput.best_interval,
    ("minutes", "not in seconds", ("return x * mtbf", "return x * mtbf / 60")),
    ("a_little_long", "near, not near enough", ("return x * mtbf", "return 1.05 * x * mtbf")),
)
SLOW = [a_search]
