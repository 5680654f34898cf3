"""Lab 2's graded exercises, one file each, in the order of the notebook. The number is the section:

    balance.py           1  layers split into stages
    relay_step.py        2  one batch forward through p ranks and back
    gpipe.py             3  all forwards, then all backwards
    one_f_one_b.py       4  warmup, steady, cooldown
    weight_stash.py      5  PipeDream: which weights a backward reads
    interleaved.py       6  v smaller stages on every rank
    pipeline_report.py   8  Llama 3 405B: pace, bubble, memory and MFU
    zb_h1.py             9  bonus: every backward in two halves
    zb_v.py             12  bonus: two stages per rank, placed in a V
    fastest.py          13  bonus: the puzzle, a schedule with the shortest makespan

What they share:

    schedules.py            cases for schedules; what is wrong with a schedule, how much it keeps,
                            how long it is idle
    on_ranks.py             executes a schedule and compares its gradients with the full batch's
    relay_cases.py          the cases of relay_step.py
"""

__all__ = [
    "balance", "fastest", "gpipe", "interleaved", "on_ranks", "one_f_one_b",
    "pipeline_report", "relay_cases", "relay_step", "schedules",
    "weight_stash", "zb_h1", "zb_v",
]  # fmt: skip
