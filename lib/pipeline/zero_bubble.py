"""ZB-H1: backward in two halves, so that the second can wait until there is nothing else to do (Qi et al. 2024).

Backward of y = x w makes two products:

    I    grad x = grad y w^T      the previous stage waits for it
    W    grad w = x^T grad y      nobody waits for it before the optimizer's step

1F1B does both at once, so every stage keeps the next one waiting for work that it does not need. Here I goes first,
and rank i puts its W off by i micro-batches: the later the rank, the more W are left to fill the end, when no
micro-batch is left to run forward. p = 4, m = 4, F = I = W; stage left out, `0` is micro-batch 0:

    rank 0   F0 F1 F2 F3  .  .  . I0 W0 I1 W1 I2 W2 I3 W3
    rank 1    . F0 F1 F2  .  . I0 F3 I1 W0 I2 W1 I3 W2 W3
    rank 2    .  . F0 F1  . I0 F2 I1 F3 I2 W0 I3 W1 W2 W3
    rank 3    .  .  . F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3

    idle time of a rank    (p-1)(F + I - W)    1F1B: (p-1)(F + I + W), three times as much if F = I = W

That holds for m >= p if W is the shortest of the three; else it is (p-1) max(F, I): a W that is too long to fit where
a rank would wait makes the others late.

Memory. Until I a micro-batch keeps everything that backward reads; between I and W only what W reads, the layers'
inputs and their output gradients. Rank i has at most p-i micro-batches before I and i between I and W: min(m, p)
together, on every rank. That is the peak of 1F1B's rank 0, so the largest GPU needs no more memory than before.
"""

from lib.pipeline.actions import Action, at_least_one


# exercise: lab2.zb_h1
def zb_h1(p, m):
    """1F1B with B split into I and W, W put off by i micro-batches on rank i. Returns a list per rank."""
    at_least_one(p=p, m=m)
    schedule = []
    for rank in range(p):
        warmup = min(p - 1 - rank, m)
        actions = [Action(rank, "F", j) for j in range(warmup)]
        for j in range(m):
            if warmup + j < m:
                actions.append(Action(rank, "F", warmup + j))
            actions.append(Action(rank, "I", j))
            if j >= rank:
                actions.append(Action(rank, "W", j - rank))
        schedule.append(actions + [Action(rank, "W", j) for j in range(max(m - rank, 0), m)])
    return schedule
