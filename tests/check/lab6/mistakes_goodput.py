"""Known mistakes in job_mtbf, lost_share and best_interval."""

from math import exp, expm1, sqrt

from mistakes import Mistake, edit


def _lost(T, S, R, M):
    return 1 - T / M * exp(-R / M) / expm1((T + S) / M)


MISTAKES = {
    "job_mtbf": (
        Mistake("a GPU's", edit("return of_a_gpu / job_gpus", "return of_a_gpu")),
        Mistake("not scaled", lambda days, failures, gpus, job: days * 86400 / failures),
        Mistake(
            "scaled the other way",
            edit(
                "* gpus / failures\n    return of_a_gpu / job_gpus",
                "/ gpus / failures\n    return of_a_gpu * job_gpus",
            ),
        ),
        Mistake("of the GPU's alone", edit("/ failures", "/ (0.587 * failures)")),
        *(
            Mistake("another unit", lambda d, f, g, job, unit=unit: d * unit * g / f / job)
            for unit in (1, 24, 24 * 60)
        ),
        *(
            Mistake("rounded", rule)
            for rule in (
                lambda d, f, g, job: d * 86400 // f * g // job,
                lambda d, f, g, job: d * 86400 / f * g // job,
                lambda d, f, g, job: int(d * 86400 / f * g / job),
                lambda d, f, g, job: round(d * 86400 / f * g / job),
            )
        ),
        Mistake("failures in a second", lambda d, f, g, job: f * job / (d * 86400 * g)),
    ),
    "lost_share": (
        Mistake("restart left out", lambda T, S, R, M: _lost(T, S, 0, M)),
        Mistake("restart left out", lambda T, S, R, M: S / T + T / 2 / M),
        Mistake("save left out", lambda T, S, R, M: _lost(T, 0, R, M)),
        Mistake("save left out", lambda T, S, R, M: (T / 2 + R) / M),
        Mistake("half the interval", lambda T, S, R, M: S / T + (T + R) / M),
        Mistake("half the interval", lambda T, S, R, M: S / (T + S) + (T + S + R) / M),
        Mistake("lost work counted twice", lambda T, S, R, M: _lost(T, S, R + T / 2, M)),
        Mistake("lost work left out", lambda T, S, R, M: S / (T + S) + R / M),
        Mistake("first order only", lambda T, S, R, M: S / T + (T / 2 + R) / M),
        Mistake("first order only", lambda T, S, R, M: min(1, S / T + (T / 2 + R) / M)),
        Mistake("first order only", lambda T, S, R, M: S / (T + S) + ((T + S) / 2 + R) / M),
        Mistake(
            "never fails in a restart", lambda T, S, R, M: 1 - T / (M + R) / expm1((T + S) / M)
        ),
        Mistake(
            "never fails in a save",
            lambda T, S, R, M: 1 - T / (T + S) * T / M * exp(-R / M) / expm1(T / M),
        ),
        Mistake(
            "the whole cycle is kept", edit("1 - interval * saves", "1 - (interval + save) * saves")
        ),
        *(
            Mistake(
                "another sum",
                lambda T, S, R, M, saves=saves: 1 - T / M * exp(-R / M) * saves((T + S) / M),
            )
            for saves in (
                lambda x: 1 / (exp(x) + 1),
                lambda x: 1 / exp(x - 1),
                lambda x: 1 / (1 - exp(-x)),
            )
        ),
        Mistake("one save", lambda T, S, R, M: 1 - T / M * exp(-(R + T + S) / M)),
        Mistake("a restart for each save", lambda T, S, R, M: 1 - T / M / expm1((T + S + R) / M)),
        Mistake(
            "what is kept",
            edit("return 1 - interval * saves / mtbf", "return interval * saves / mtbf"),
        ),
        Mistake(
            "percent",
            edit(
                "return 1 - interval * saves / mtbf", "return 100 * (1 - interval * saves / mtbf)"
            ),
        ),
        Mistake(
            "restart divides", edit("exp(-restart / mtbf - cycle)", "exp(restart / mtbf - cycle)")
        ),
    ),
    "best_interval": (
        Mistake("without the 2", lambda S, M: sqrt(S * M)),
        Mistake("without the 2", lambda S, M: sqrt(S * M) * (1 + sqrt(S / M) / 3 + S / M / 9) - S),
        Mistake(
            "without the 2", lambda S, M: sqrt(S * M) * (1 + sqrt(S / M / 2) / 3 + S / M / 18) - S
        ),
        *(
            Mistake(
                "another series",
                lambda S, M, factor=factor: sqrt(2 * S * M) * factor(S / M / 2) - S,
            )
            for factor in (
                lambda x: 1 + sqrt(2 * x) / 3 + 2 * x / 9,
                lambda x: 1 + x / 3 + x / 9,
                lambda x: 1 + sqrt(x) / 9 + x / 3,
                lambda x: 1 + sqrt(x) / 3,
                lambda x: 1 - sqrt(x) / 3 - x / 9,
                lambda x: 1 - sqrt(x) / 3 + x / 9,
                lambda x: 1 + sqrt(x) / 3 - x / 9,
            )
        ),
        Mistake("half of it", lambda S, M: sqrt(S * M / 2)),
        Mistake("no square root", lambda S, M: 2 * S * M),
        Mistake("from save to save", edit("return x * mtbf", "return x * mtbf + save")),
        Mistake(
            "from save to save",
            lambda S, M: sqrt(2 * S * M) * (1 + sqrt(S / M / 2) / 3 + S / M / 18),
        ),
        Mistake("Young's alone", lambda S, M: sqrt(2 * S * M)),
        Mistake("Young's alone", lambda S, M: sqrt(2 * S * M) + S),
        Mistake("the save subtracted alone", lambda S, M: sqrt(2 * S * M) - S),
    ),
}
