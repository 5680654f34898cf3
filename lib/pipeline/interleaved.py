"""Interleaved 1F1B: v thinner stages on every rank (Megatron-LM, Narayanan et al. 2021, section 2.2).

    stage      0 1 2 3 4 5 6 7             p = 4, v = 2: the pipeline goes round the ranks v times
    rank       0 1 2 3 0 1 2 3

A stage has 1/v of the layers, so a step down the pipeline takes 1/v of the time, and so does the bubble:

    bubble     (p-1) / (vm + p-1)                    instead of (p-1) / (m + p-1)
    messages   2(vp-1)m                              instead of 2(p-1)m: about v times as many, of the same size
    kept       rank i: min(vm, (v-1)p + 2(p-1-i) + 1) micro-batches x stages, a stage being 1/v of 1F1B's;
               rank 0 so keeps 1 + (p-1)/(pv) times as much as in 1F1B

Order of the forwards on a rank: p micro-batches through its first stage, the same p through its second, ... through its
v-th; then the next p micro-batches. By the time rank 0 has sent p micro-batches off, the first of them has come round
to rank 0 again. That is why p must divide m: p micro-batches enter together. Backward the same, from the last stage to
the first. Rank 0 of p = 2, v = 2, m = 4 (stages 0 and 2):

    forwards   0F0 0F1  2F0 2F1   0F2 0F3  2F2 2F3
    backwards  2B0 2B1  0B0 0B1   2B2 2B3  0B2 0B3

and then warmup, steady, cooldown, as in 1F1B. Rank i's warmup holds (v-1)p forwards, all rounds of the first p
micro-batches but the last, and two more for each rank behind it: in that last round the first micro-batch goes down
these ranks (an F each) and its gradient comes up again (a B each), and rank i does not stand idle meanwhile.
"""

from lib.pipeline.actions import Action, at_least_one
from lib.pipeline.schedules import one_f_one_b, warmup_steady_cooldown


# exercise: lab2.interleaved
def interleaved(p, m, v):
    """1F1B with v stages per rank, stage s on rank s mod p. Returns a list per rank; with v = 1 it is one_f_one_b.

    Raises ValueError if v > 1 and p does not divide m, with the m below and above that it does divide.
    """
    at_least_one(p=p, m=m, v=v)
    if v == 1:
        return one_f_one_b(p, m)
    if m % p:
        near = " or ".join(f"m = {near}" for near in (m // p * p, (m // p + 1) * p) if near > 0)
        raise ValueError(
            f"m = {m} micro-batches, p = {p} ranks: interleaved stages take p micro-batches at a time; use {near}"
        )

    schedule = []
    for rank in range(p):
        rounds = [range(first, first + p) for first in range(0, m, p)]  # micro-batches that enter together
        mine = [chunk * p + rank for chunk in range(v)]  # this rank's stages
        forwards = [Action(stage, "F", j) for together in rounds for stage in mine for j in together]
        backwards = [Action(stage, "B", j) for together in rounds for stage in reversed(mine) for j in together]
        warmup = (v - 1) * p + 2 * (p - 1 - rank)
        schedule.append(warmup_steady_cooldown(forwards, backwards, warmup))
    return schedule
