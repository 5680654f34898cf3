"""Seven schedules: relay, GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-V, DualPipeV. To see one:
`print(grid(relay(4)))`.

p ranks, m micro-batches; a backward takes as long as two forwards.

relay   0F0  .   .   .   .   .   .   .   .   .  0B0 ---   one batch; one rank works, the others wait
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

1F1B is idle for as long as GPipe, but a micro-batch's activations live only until its B, which
comes soon. So m can grow until the bubble is small, while the memory stays the same.

Every schedule here runs its backwards in the order 0, 1, ... m-1, so that gradients add up in the
same order and two schedules give the same bits. (The figure in the GPipe paper runs them from m-1
down to 0, with the same bubble and the same memory.)

Sources: GPipe, Huang et al. 2019; 1F1B, PipeDream (Narayanan et al. 2019), which does not flush;
with the flush it is PipeDream-Flush (Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN
Training). Interleaved: Megatron-LM (Narayanan et al. 2021, section 2.2). ZB-H1, and in section 6
ZB-V: Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241. (Their V-Half, V-Min and
V-ZB, of Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, are not here.) DualPipe:
DeepSeek-AI 2024, DeepSeek-V3, and its V: Qi et al. 2025, DualPipe could be better without the Dual.
"""

from collections import Counter

from lib.pipeline.actions import Action, at_least_one, loop


def relay(p: int, m: int = 1) -> list[list[Action]]:
    """Naive model parallelism: each micro-batch runs forward through all stages and back before the
    next one starts. Returns a list per rank."""
    at_least_one(p=p, m=m)
    return [[Action(rank, kind, j) for j in range(m) for kind in "FB"] for rank in range(p)]


# exercise: lab2.gpipe
def gpipe(p: int, m: int) -> list[list[Action]]:
    """All m forwards, then all m backwards. Returns a list per rank."""
    at_least_one(p=p, m=m)
    return [[Action(rank, kind, j) for kind in "FB" for j in range(m)] for rank in range(p)]


def forward_only(p, m, v=1, placement=loop):
    """The forward passes alone, for a loss without gradients (Megatron's `forward_only`). Returns a
    list per rank.

    With several stages on a rank, p micro-batches pass through one of them before the first enters
    the next, because that is how long the first takes to come back from the other ranks.
    """
    at_least_one(p=p, m=m, v=v)
    stage_ranks = placement(p, v * p)
    groups = [range(m)[first : first + p] for first in range(0, m, p)]
    order = [Action(stage, "F", j) for group in groups for stage in range(v * p) for j in group]
    return [[action for action in order if stage_ranks[action.stage] == rank] for rank in range(p)]


# exercise: lab2.one_f_one_b
def one_f_one_b(p: int, m: int) -> list[list[Action]]:
    """Warmup forwards, then one forward and one backward in turn, then the backwards that are left.
    Returns a list per rank.

    Rank i runs p-1-i forwards ahead, one for each rank downstream of it. That is enough to keep
    them all busy until gradients begin to come back. It runs no more than that, because each of
    them is kept in memory.
    """
    at_least_one(p=p, m=m)
    forwards = [[Action(rank, "F", j) for j in range(m)] for rank in range(p)]
    backwards = [[Action(rank, "B", j) for j in range(m)] for rank in range(p)]
    return [warmup_steady_cooldown(forwards[i], backwards[i], warmup=p - 1 - i) for i in range(p)]


def warmup_steady_cooldown(forwards, backwards, warmup):
    """One rank's actions: `warmup` forwards; then one forward, one backward; then the backwards
    that are left."""
    warmup = min(warmup, len(forwards))  # fewer micro-batches than the pipeline is deep
    steady = len(forwards) - warmup
    actions = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
        actions += [forward, backward]
    return actions + backwards[steady:]


# exercise: lab2.interleaved
def interleaved(p: int, m: int, v: int) -> list[list[Action]]:
    """1F1B with v stages per rank, stage s on rank s mod p. Returns a list per rank; with v = 1 it
    is one_f_one_b.

        stage      0 1 2 3 4 5 6 7           p = 4, v = 2: the pipeline goes round the ranks v times
        rank       0 1 2 3 0 1 2 3

    A stage has 1/v of the layers, so a step down the pipeline takes 1/v of the time, and so does
    the bubble:

        bubble    (p-1) / (v m + p-1)   instead of (p-1) / (m + p-1)
        messages  2(v p - 1)m           instead of 2(p-1)m: somewhat more than v times as many
        kept      rank i: min(v m, (v-1)p + 2(p-1-i) + 1) micro-batches x stages, a stage being 1/v
                  of 1F1B's, so that where m > p rank 0 keeps 1 + (p-1)/(pv) times as much as
                  in 1F1B

    Order of the forwards on a rank: p micro-batches through its first stage, the same p through its
    second, ... through its v-th; then the next p micro-batches. By the time rank 0 has sent p
    micro-batches, the first of them has come round to rank 0 again. That is why p should divide m:
    p micro-batches that enter together are a microbatch group (Megatron's word). If p does not
    divide m, a group has r = m / (m // p) micro-batches, more than p; if m < p, there is one group,
    of r = m. In the formula for `kept`, (v-1)p then becomes (v-1)r; for m < p the bubble is larger
    than the formula says. The backwards have the same order, from the last stage to the first. Rank
    0 of p = 2, v = 2, m = 4 (stages 0 and 2):

        forwards   0F0 0F1  2F0 2F1   0F2 0F3  2F2 2F3
        backwards  2B0 2B1  0B0 0B1   2B2 2B3  0B2 0B3

    These two lists are merged into warmup, steady and cooldown, as in 1F1B. Rank i's warmup begins
    with (v-1)r forwards, which take the first group through all of the rank's stages but the last.
    Then rank i's last stage runs the first micro-batch, which continues through the last stages of
    the p-1-i ranks downstream, and whose gradient comes back through the same stages. Rank i has to
    wait for that gradient, and meanwhile runs 2(p-1-i) more forwards: two for each of these ranks,
    one for its forward and one for its backward.

    Raises ValueError if v > 1 and m does not divide into m // p groups of equal size; the message
    names the nearest multiples of p.
    """
    at_least_one(p=p, m=m, v=v)
    if v == 1:
        return one_f_one_b(p, m)
    n_groups = max(1, m // p)
    if m % n_groups:
        near = " or ".join(f"m = {near}" for near in (m // p * p, (m // p + 1) * p) if near > 0)
        raise ValueError(
            f"m = {m} micro-batches, p = {p} ranks: they make no {n_groups} groups of equal "
            f"size; use {near}"
        )

    schedule, r = [], m // n_groups
    for rank in range(p):
        # micro-batches that enter together
        groups = [range(first, first + r) for first in range(0, m, r)]
        mine = [chunk * p + rank for chunk in range(v)]  # this rank's stages
        forwards = [Action(stage, "F", j) for group in groups for stage in mine for j in group]
        backwards = [
            Action(stage, "B", j) for group in groups for stage in reversed(mine) for j in group
        ]
        warmup = (v - 1) * r + 2 * (p - 1 - rank)
        schedule.append(warmup_steady_cooldown(forwards, backwards, warmup))
    return schedule


# exercise: lab2.zb_h1
def zb_h1(p: int, m: int) -> list[list[Action]]:
    """1F1B with B split into I and W, W delayed by i micro-batches on rank i. Returns a list per
    rank.

    Backward of y = x w has two matmuls:

        I    grad x = grad y w^T      the previous stage waits for it
        W    grad w = x^T grad y      needed only by the optimizer's step

    1F1B does both at once, so every stage keeps the previous stage waiting for work that the
    previous stage does not need. Here I runs first, and rank i delays its W by i micro-batches. The
    later the rank, the more W are left to fill its idle time at the end, when all forwards are
    done.
    In this example p = 4, m = 4 and F = I = W; the stage is left out, and `0` is micro-batch 0:

        rank 0   F0 F1 F2 F3  .  .  . I0 W0 I1 W1 I2 W2 I3 W3
        rank 1    . F0 F1 F2  .  . I0 F3 I1 W0 I2 W1 I3 W2 W3
        rank 2    .  . F0 F1  . I0 F2 I1 F3 I2 W0 I3 W1 W2 W3
        rank 3    .  .  . F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3

        idle time of a rank  (p-1)(F + I - W)    1F1B: (p-1)(F + I + W)

    With F = I = W that is a third of 1F1B's. It holds for m >= p if W is the shortest of the three;
    otherwise the idle time is (p-1) max(F, I), because a W that is too long to fit where a rank
    would wait makes the others late.

    Memory. Until I a micro-batch keeps everything that backward reads; between I and W only what W
    reads, the layers' inputs and their output gradients. Rank i has at most p-i micro-batches
    before I and i between I and W: min(m, p) together, on every rank. That is the peak of 1F1B's
    rank 0, so the GPU with the highest peak needs no more memory than before.
    """
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


# exercise: lab2.zb_v
def zb_v(p: int, m: int) -> list[list[Action]]:
    """ZB-V: two stages per rank, placed in a V, and every backward in halves. Returns a list per
    rank.

        stage  0 1 2 3 | 4 5 6 7  p = 4: down the ranks and up again
        rank   0 1 2 3 | 3 2 1 0  rank 0 has the first stage and the last, rank 3 the middle two

    In the V the loss is computed on rank 0, which can begin the backward of the last stage at once.
    The nearer one stage of a rank is to the loss, the farther from it is the other, so all ranks
    keep the same amount. On rank i, whose first and second model chunk are stages i and 2p-1-i:

        warmup    2(p-i)-1 forwards of the first chunk, then i of both in turn, then p-i of the
                  second, each followed by its I and W
        steady    F I W of the first chunk, F I W of the second
        cooldown  the I that are left, and after them W, which no other rank waits for

    p = 2, m = 4, F = I = W = 1; a and b are the rank's two stages:

        rank 0  aF0 aF1 aF2 bF0 bI0 bW0 bF1 bI1 bW1 aF3 aI0 aW0 bF2 ...
        rank 1   .  aF0 bF0 aF1 bF1 bI0 bW0 aF2 aI0 aW0 bF2 bI1 bW1 ...

           ...  bI2 bW2 aI1 aW1 bF3 bI3 bW3 aI2 aW2 aI3 aW3  .
           ...  aF3 aI1 aW1 bF3 bI2 bW2 aI2 bI3 aI3 aW2 bW3 aW3

        idle time of a rank  (p-1) max(I, 2(I-W)), if I >= F >= W and m >= 2p-1
        kept                 2p stages x micro-batches on every rank, with F done and W not, if m >=
                             2p-1; a stage is half of 1F1B's, so that is the peak of 1F1B's rank 0
        messages             4(p-1)m

    F, I and W are the times of one of the 2p stages. If all three are equal, a rank is idle for
    (p-1) F, which is as long as the last rank waits for its first input. In 1F1B a rank is idle for
    (p-1)(F + I + W) of stages that are twice as large, so six times as long.

    The order is that of torch's ScheduleZBVZeroBubble. With fewer than 2p-1 micro-batches it is the
    schedule for 2p-1, without the actions of the missing ones.
    """
    at_least_one(p=p, m=m)
    schedule, n = [], max(m, 2 * p - 1)
    for i in range(p):
        a, b = i, 2 * p - 1 - i  # the first and the second model chunk
        work = (
            [(a, "F")] * (2 * (p - i) - 1)
            + [(b, "F"), (a, "F")] * i
            + [(b, "F"), (b, "I"), (b, "W")] * (p - i)
        )
        work += [(a, "F"), (a, "I"), (a, "W"), (b, "F"), (b, "I"), (b, "W")] * (n - p)
        work += (
            [(a, "I"), (b, "I")] * i
            + [(a, "I"), (a, "W")] * (p - i)
            + [(b, "W")] * i
            + [(a, "W")] * i
        )
        schedule.append(numbered(work, m))
    return schedule


def dualpipe_v(p: int, m: int) -> list[list[Action]]:
    """DualPipeV: placed in a V like `zb_v`, with forwards and backwards in pairs. Returns a list
    per rank.

    In the steady state a rank alternates F of one of its stages and the full B of the other. The
    two do not depend on each other, so on a GPU the messages of one can overlap with the
    computation of the other. This is made for experts on other ranks (Lab 5), whose exchange takes
    as long as the computation. Backwards that are paired with an F are full. At the beginning and
    at the end, where ranks would otherwise wait, some are split into I and W. Here, and in
    torch's runtime by default, the two of a pair run one after the other, first F and then B.

    Rank i, with n = p-1-i ranks downstream of it, has a first model chunk a and a second one b:

        warmup    2n forwards of a; then F of a and of b in turn, i+1 times; then I, W and F of b,
                  n times
        steady    F of a with B of b, then F of b with B of a, m-2p+i+1 times
        cooldown  B of b, then F of b with B of a, n times; then 2(i+1) backwards of b and of a in
                  turn, of which the second half runs I only; then a delayed W and I of a, n times;
                  then the W that are left

        idle time of a rank    (p-1) max(F + I - W, 2(F-W)) of one stage's times, if F >= I >= W
        kept                   2p+1 stages x micro-batches on every rank, one more than ZB-V

    (DeepSeek's formula, (PP/2 - 1)(F&B + B - 3W) with PP = 2p, is for pairs that run as one, F&B.)
    The order is that of torch's ScheduleDualPipeV, whose pairs follow one another here. Raises
    ValueError for m < 2p.
    """
    at_least_one(p=p, m=m)
    if m < 2 * p:
        raise ValueError(
            f"m = {m} micro-batches, p = {p} ranks: DualPipeV takes at least 2p = {2 * p} of them"
        )
    schedule = []
    for i in range(p):
        # the first and the second model chunk, and the number of ranks downstream of this one
        a, b, n_downstream = i, 2 * p - 1 - i, p - 1 - i
        last_backwards = [b, a] * (i + 1)  # the stages of b's and a's last backwards in turn
        full, split = last_backwards[: i + 1], last_backwards[i + 1 :]
        # the stages whose W are delayed, in the order of their I
        delayed = split + [a] * n_downstream
        work = (
            [(a, "F")] * (2 * n_downstream)
            + [(a, "F"), (b, "F")] * (i + 1)
            + [(b, "I"), (b, "W"), (b, "F")] * n_downstream
        )
        work += [(a, "F"), (b, "B"), (b, "F"), (a, "B")] * (m - 2 * p + i + 1)
        work += [(b, "B"), (b, "F"), (a, "B")] * n_downstream + [(stage, "B") for stage in full]
        work += [(stage, "I") for stage in split]
        work += [action for stage in delayed[:n_downstream] for action in ((stage, "W"), (a, "I"))]
        schedule.append(numbered(work + [(stage, "W") for stage in delayed[n_downstream:]], m))
    return schedule


def numbered(work, m):
    """[(stage, kind), ...] as actions: each stage runs the micro-batches in order; those numbered m
    and above are left out."""
    actions, done = [], Counter()
    for stage, kind in work:
        actions.append(Action(stage, kind, done[stage, kind]))
        # a full backward counts for both its halves
        for part in {"B": "BIW", "I": "BI"}.get(kind, kind):
            done[stage, part] += 1
    return [action for action in actions if action.microbatch < m]
