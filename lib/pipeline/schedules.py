"""Three schedules for one stage per rank: relay, GPipe, and 1F1B. Print any of them with `print(grid(gpipe(4, 4)))`.

p ranks, m micro-batches; a backward takes as long as two forwards.

relay       0F0  .   .   .   .   .   .   .   .   .  0B0 ---         one batch; one rank works, the others wait
             .  1F0  .   .   .   .   .   .  1B0 ---  .   .
             .   .  2F0  .   .   .  2B0 ---  .   .   .   .
             .   .   .  3F0 3B0 ---  .   .   .   .   .   .

GPipe       0F0 0F1 0F2 0F3  .   .   .   .   .   .   .   .   .  0B0 --- 0B1 --- 0B2 --- 0B3 ---
             .  1F0 1F1 1F2 1F3  .   .   .   .   .   .  1B0 --- 1B1 --- 1B2 --- 1B3 ---  .   .
             .   .  2F0 2F1 2F2 2F3  .   .   .  2B0 --- 2B1 --- 2B2 --- 2B3 ---  .   .   .   .
             .   .   .  3F0 3F1 3F2 3F3 3B0 --- 3B1 --- 3B2 --- 3B3 ---  .   .   .   .   .   .

1F1B        0F0 0F1 0F2 0F3  .   .   .   .   .   .  0B0 --- 0F4 0B1 --- 0F5 0B2 --- ...
             .  1F0 1F1 1F2  .   .   .   .  1B0 --- 1F3 1B1 --- 1F4 1B2 --- 1F5 ...
             .   .  2F0 2F1  .   .  2B0 --- 2F2 2B1 --- 2F3 2B2 --- 2F4 ...
             .   .   .  3F0 3B0 --- 3F1 3B1 --- 3F2 3B2 --- 3F3 ...

            bubble (share of all ranks' time)    micro-batches that rank i keeps, F done and B not
relay       (p-1) / p                            1
GPipe       (p-1) / (m+p-1)                      m
1F1B        (p-1) / (m+p-1)                      min(m, p-i)

1F1B wastes as much time as GPipe, but a micro-batch's activations live only until its B, which comes soon. So m may
grow until the bubble is small, and the memory does not.

Every schedule here runs its backwards in the order 0, 1, ... m-1, so that gradients add up in one order and two
schedules give the same bits. (The figure in the GPipe paper runs them from m-1 down to 0: same bubble, same memory.)

Sources: GPipe, Huang et al. 2019; 1F1B, PipeDream (Narayanan et al. 2019), which does not flush; with the flush it is
PipeDream-Flush (Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training).
"""

from lib.pipeline.actions import Action, at_least_one


def relay(p, m=1):
    """Each micro-batch forward through all stages and back before the next one starts. Returns a list per rank."""
    at_least_one(p=p, m=m)
    return [[Action(rank, kind, j) for j in range(m) for kind in "FB"] for rank in range(p)]


# exercise: lab2.gpipe
def gpipe(p, m):
    """All m forwards, then all m backwards. Returns a list per rank."""
    at_least_one(p=p, m=m)
    return [[Action(rank, kind, j) for kind in "FB" for j in range(m)] for rank in range(p)]


# exercise: lab2.one_f_one_b
def one_f_one_b(p, m):
    """Fill the pipeline, then one forward, one backward. Returns a list per rank.

    Rank i runs p-1-i forwards ahead, one for each rank behind it: enough to keep them all at work when gradients begin
    to come back, and no more, for each of them is kept in memory.
    """
    at_least_one(p=p, m=m)
    forwards = [[Action(rank, "F", j) for j in range(m)] for rank in range(p)]
    backwards = [[Action(rank, "B", j) for j in range(m)] for rank in range(p)]
    return [warmup_steady_cooldown(forwards[i], backwards[i], warmup=p - 1 - i) for i in range(p)]


def warmup_steady_cooldown(forwards, backwards, warmup):
    """One rank's actions: `warmup` forwards; then one forward, one backward; then the backwards that are left."""
    warmup = min(warmup, len(forwards))  # fewer micro-batches than the pipeline is deep
    steady = len(forwards) - warmup
    actions = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
        actions += [forward, backward]
    return actions + backwards[steady:]
