"""Lab 2's graded exercises, a file each. In the order of the notebook, with the section:

    balance.py        1  layers into stages
    relay_step.py     2  one batch through p ranks and back
    gpipe.py          3  all forwards, then all backwards
    one_f_one_b.py    4  warmup, steady, cooldown
    weight_stash.py   5  PipeDream: which weights a backward reads
    interleaved.py    6  v thinner stages on every rank
    pipeline_report.py  8  Llama 3 405B: pace, bubble, memory and MFU
    zb_h1.py          9  bonus: every backward in two halves
    zb_v.py          12  bonus: two stages per rank in a V
    fastest.py       13  bonus: the puzzle, lists with the shortest makespan

Beside them:

    schedules.py         what schedules share: what is wrong with one, kept, idle; their hints
    on_ranks.py          a schedule executed: gradients of the whole batch
    relay_cases.py       what relay_step.py is checked on
"""

__all__ = [
    "balance", "fastest", "gpipe", "interleaved", "on_ranks", "one_f_one_b",
    "pipeline_report", "relay_cases", "relay_step", "schedules",
    "weight_stash", "zb_h1", "zb_v",
]  # fmt: skip
