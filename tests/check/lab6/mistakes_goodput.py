"""Known mistakes in job_mtbf, lost_share and best_interval."""

from math import exp, expm1, sqrt

from mistakes import Mistake, edit


def _lost(T, S, R, M):
    return 1 - T / M * exp(-R / M) / expm1((T + S) / M)


_NOT_SCALED = (
    "that is the job that was counted. A job on other GPUs fails more often, or less: times gpus / "
    "job_gpus."
)
_HALF = "a failure comes in the middle of an interval on average: T/2 is lost, not T."
_RESTART = "after each failure R seconds pass until training goes on: where is the restart?"
_TWO = (
    "the 2 is missing: half an interval is lost, T/(2M), so that S/T + T/(2M) is least at sqrt(2 S "
    "M)."
)
MISTAKES = {
    "job_mtbf": (
        Mistake("a GPU's", edit("return of_a_gpu / job_gpus", "return of_a_gpu"),
                "that is the time between failures of one GPU. The job stops when any of its GPUs "
                "fails: divide by job_gpus."),
        Mistake("not scaled", lambda days, failures, gpus, job: days * 86400 / failures,
                _NOT_SCALED),
        Mistake("scaled the other way", edit("* gpus / failures\n    return of_a_gpu / job_gpus",
                                             "/ gpus / failures\n    return of_a_gpu * job_gpus"),
                "more GPUs fail more often: the time between failures shrinks, times gpus / "
                "job_gpus."),
        Mistake("of the GPU's alone", edit("/ failures", "/ (0.587 * failures)"),
                "any unexpected interruption stops the job, of a GPU or of something else: take "
                "all 419."),
        *(Mistake("another unit", lambda d, f, g, job, unit=unit: d * unit * g / f / job,
                  "a day has 24 * 60 * 60 seconds.") for unit in (1, 24, 24 * 60)),
        *(Mistake("rounded", rule,
                  "seconds are no whole number: / and not //, and no round.") for rule in (
            lambda d, f, g, job: d * 86400 // f * g // job, lambda d, f, g,
            job: d * 86400 / f * g // job,
            lambda d, f, g, job: int(d * 86400 / f * g / job), lambda d, f, g,
            job: round(d * 86400 / f * g / job))),
        Mistake("failures in a second", lambda d, f, g, job: f * job / (d * 86400 * g),
                "that is how often it fails, failures in a second. The time between two of them is "
                "1 over it."),
    ),
    "lost_share": (
        Mistake("restart left out", lambda T, S, R, M: _lost(T, S, 0, M), _RESTART),
        Mistake("restart left out", lambda T, S, R, M: S / T + T / 2 / M, _RESTART),
        Mistake("save left out", lambda T, S, R, M: _lost(T, 0, R, M),
                "training stands still while it saves: a cycle takes T + S seconds, of which T are "
                "kept."),
        Mistake("save left out", lambda T, S, R, M: (T / 2 + R) / M,
                "training stands still while it saves: S of each T + S seconds."),
        Mistake("half the interval", lambda T, S, R, M: S / T + (T + R) / M, _HALF),
        Mistake("half the interval", lambda T, S, R, M: S / (T + S) + (T + S + R) / M, _HALF),
        Mistake("half the interval", lambda T, S, R, M: _lost(T, S, R + T / 2, M),
                "the sum over saves that end has counted the work that is lost already: nothing "
                "more to add."),
        Mistake("lost work left out", lambda T, S, R, M: S / (T + S) + R / M,
                "what was computed since the last save is lost with each failure, T/2 on average."),
        Mistake("first order only", lambda T, S, R, M: S / T + (T / 2 + R) / M),
        Mistake("first order only", lambda T, S, R, M: min(1, S / T + (T / 2 + R) / M)),
        Mistake("first order only", lambda T, S, R, M: S / (T + S) + ((T + S) / 2 + R) / M),
        Mistake("never fails in a restart", lambda T, S, R, M: 1 - T / (M + R) / expm1((T + S) / M),
                "a failure may come before the restart is over, and it begins anew: the first save "
                "after it ends with probability e^(-(R + T + S)/M)."),
        Mistake("never fails in a save", lambda T, S, R,
            M: 1 - T / (T + S) * T / M * exp(-R / M) / expm1(T / M),
                "a failure may come during a save, and then its interval is lost: (T + S)/M in the "
                "exponent."),
        Mistake("the whole cycle is kept", edit("1 - interval * saves",
            "1 - (interval + save) * saves"),
                "of each cycle of T + S seconds, T are work: the save is lost, too."),
        *(Mistake("another sum", lambda T, S, R, M,
        saves=saves: 1 - T / M * exp(-R / M) * saves((T + S) / M),
                  "q + q^2 + q^3 + ..., with q = e^(-(T+S)/M), is 1 / (e^((T+S)/M) - 1): the 1 is "
                  "not in the exponent.")
          for saves in (lambda x: 1 / (exp(x) + 1), lambda x: 1 / exp(x - 1),
          lambda x: 1 / (1 - exp(-x)))),
        Mistake("one save", lambda T, S, R, M: 1 - T / M * exp(-(R + T + S) / M),
                "that counts the first save alone. A second may end before the next failure, and a "
                "third: sum over k."),
        Mistake("a restart for each save", lambda T, S, R, M: 1 - T / M / expm1((T + S + R) / M),
                "R passes once between two failures, before the first interval: e^(-R/M) times the "
                "sum over saves."),
        Mistake("what is kept", edit("return 1 - interval * saves / mtbf",
            "return interval * saves / mtbf")),
        Mistake("percent", edit("return 1 - interval * saves / mtbf",
            "return 100 * (1 - interval * saves / mtbf)")),
        Mistake("restart divides", edit("exp(-restart / mtbf - cycle)",
            "exp(restart / mtbf - cycle)"),
                "e^(-R/M): the longer the restart, the less is kept. And nothing can be kept more "
                "than once."),
    ),
    "best_interval": (
        Mistake("without the 2", lambda S, M: sqrt(S * M), _TWO),
        Mistake("without the 2", lambda S, M: sqrt(S * M) * (1 + sqrt(S / M) / 3 + S / M / 9) - S,
                _TWO),
        Mistake("without the 2", lambda S,
            M: sqrt(S * M) * (1 + sqrt(S / M / 2) / 3 + S / M / 18) - S, _TWO),
        *(Mistake("another series", lambda S, M,
        factor=factor: sqrt(2 * S * M) * factor(S / M / 2) - S,
                  "Daly's series is sqrt(2SM) (1 + sqrt(x)/3 + x/9) - S, with x = S/(2M).")
          for factor in (lambda x: 1 + sqrt(2 * x) / 3 + 2 * x / 9, lambda x: 1 + x / 3 + x / 9,
                         lambda x: 1 - sqrt(x) / 3 - x / 9, lambda x: 1 - sqrt(x) / 3 + x / 9,
                         lambda x: 1 + sqrt(x) / 3 - x / 9)),
        Mistake("half of it", lambda S, M: sqrt(S * M / 2),
                "the 2 stands on the other side: sqrt(2 S M), where T^2 / (2M) = S."),
        Mistake("no square root", lambda S, M: 2 * S * M,
                "take the square root: seconds times seconds are no time."),
        Mistake("from save to save", edit("return x * mtbf", "return x * mtbf + save"),
                "asked is the computing between two saves, without the save itself."),
        Mistake("from save to save", lambda S,
            M: sqrt(2 * S * M) * (1 + sqrt(S / M / 2) / 3 + S / M / 18),
                "Daly subtracts the save at the end: asked is the computing between two saves "
                "alone."),
        Mistake("Young's alone", lambda S, M: sqrt(2 * S * M)),
        Mistake("Young's alone", lambda S, M: sqrt(2 * S * M) + S),
        Mistake("the save subtracted alone", lambda S, M: sqrt(2 * S * M) - S,
                "Daly's two other terms are missing: sqrt(2 S M) (1 + sqrt(S/2M)/3 + (S/2M)/9) - "
                "S."),
    ),
}  # fmt: skip
