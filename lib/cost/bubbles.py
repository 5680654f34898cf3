"""Bubble rates of pipeline schedules: the share of a schedule's time in which a rank does not
compute.

    rate = (cost - ideal) / cost        ideal = m (F + I + W)

    1F1B, interleaved, ZB-H1  the clock of lib.pipeline.simulate; ZB-1p finds ZB-H1's rate (Qi et
                              al. 2024, table 5)
    ZB-H2                     cost = ideal + (p-1)(F + I - 2W) + 2 (p-1) c
    ZB-V                      cost = ideal + (p-1)(F + I - 2W) +   (p-1) c
    ZB-2p                     cost = ideal                     +   (p-1) c

F, I, W: seconds of forward, and of backward's two halves, of a rank's layers for one micro-batch;
c: of a message. If more micro-batches are in flight than in 1F1B, W can be delayed further, and a
rank is only idle for the time that W cannot fill. ZB-H2's formula is for the paper's schedule
(section 2.3), with a message each way for each rank except the first; it gives the four digits of
table 5. The paper's ZB-V and ZB-2p are schedules that a heuristic found. Their formulas here are
ours, and not the paper's: ZB-V's is what W cannot fill, and ZB-2p's is what messages alone leave
idle. For m = 4p and above they are within half a point of the published rates. With fewer
micro-batches ZB-2p's formula is a lower bound, and the heuristic's rate is between it and ZB-H2's.

The published rates are computed, not measured. For interleaved 1F1B their authors let only the
first of every p micro-batches wait for the message between the last rank and the first; `patient`
does the same. (lib.pipeline.simulate lets each of them wait, as it has to in reality, which gives
up to 0.35 points more.)

Source of the times: Qi et al. 2024 (arXiv 2401.10241), table 9, in data/zero_bubble_times.csv.
Table 8 does not print its times: F + I are scaled from table 9, W and c inferred from two of its
five rates.
"""

import functools

from lib.cost.published import table
from lib.pipeline import dependencies_of, interleaved, one_f_one_b, simulate, zb_h1
from lib.pipeline.actions import count_stages
from lib.pipeline.validate import walk

# The models have two layers fewer: embedding and loss count as a layer each.
LAYERS = {"1.5B": 24, "6.2B": 32, "14.6B": 48, "28.3B": 64}
SCHEDULES = ("1f1b-i", "1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v")
WITHIN = 0.005  # of a published rate
MOST = 1024  # micro-batches, for which the clock takes about a second
SEARCHED = {  # says whose numbers these are
    "zb-2p": "ours: what messages alone leave idle, not the schedule that the paper's heuristic "
    "found",
    "zb-v": "ours: what W cannot fill, not the schedule that the paper's heuristic found",
}


@functools.cache
def bubble_rate(schedule, p, m, times, message, v=1):
    """The bubble rate of `schedule`, one of SCHEDULES; v: stages per rank of "1f1b-i".

    times: (F, I, W) of a rank's layers, for one micro-batch; message: the time of a message between
    neighbours, in the same unit. Raises ValueError for any other schedule.
    """
    F, I, W = times
    ideal = m * (F + I + W)
    hops = (p - 1) * message
    if schedule == "1f1b":
        cost = simulate(one_f_one_b(p, m), {"F": F, "B": I + W}, message).makespan
    elif schedule == "1f1b-i":
        cost = patient(interleaved(p, m, v), {"F": F / v, "B": (I + W) / v}, message)
    elif schedule in ("zb-h1", "zb-1p"):
        cost = simulate(zb_h1(p, m), {"F": F, "I": I, "W": W}, message).makespan
    elif schedule == "zb-h2":
        cost = ideal + (p - 1) * max(0.0, F + I - 2 * W) + 2 * hops
    elif schedule == "zb-v":
        cost = ideal + (p - 1) * max(0.0, F + I - 2 * W) + hops
    elif schedule == "zb-2p":
        cost = ideal + hops
    else:
        raise ValueError(
            f"schedule {schedule!r} has no bubble rate here: use one of {', '.join(SCHEDULES)}"
        )
    return (cost - ideal) / cost


def patient(schedule, times, message):
    """The makespan by the clock of lib.pipeline.simulate, except that most micro-batches do not
    wait for messages between the last rank and the first."""
    p, n_stages = len(schedule), count_stages(schedule)
    free, end = [0.0] * p, {}
    for rank, action in walk(schedule):
        start = free[rank]
        for need in dependencies_of(action, n_stages):
            away = need.stage % p != action.stage % p
            comes_round = away and {need.stage % p, action.stage % p} == {0, p - 1}
            if not comes_round or action.microbatch % p == 0:
                start = max(start, end[need] + message * away)
        free[rank] = end[action] = start + times[action.kind]
    return max(free)


def schedule_of(label):
    """The schedule that a row's label names at its end ("6.2B-m64-1f1b-i"); None if it names
    none."""
    return next((schedule for schedule in SCHEDULES if label.endswith("-" + schedule)), None)


def measured_times(model, p, m, micro_batch=None):
    """((F, I, W), message) in milliseconds of the model "1.5B", "6.2B", "14.6B" or "28.3B" on p
    ranks, from the row with the nearest m.

    micro_batch: sequences in one, or None if it is not stated, as in table 8, whose times are then
    used if there are any. Raises ValueError if there is no row for these arguments.
    """
    rows = [row for row in table("zero_bubble_times") if row["model"] == model and row["p"] == p]
    if micro_batch is None:
        rows = [row for row in rows if row["source"].startswith("inferred")] or rows
    else:
        rows = [row for row in rows if row["micro_batch"] == micro_batch]
    if not rows:
        known = ", ".join(
            sorted({f"{row['model']} on {row['p']}" for row in table("zero_bubble_times")})
        )
        raise ValueError(f"no measured times for {model!r} on {p} ranks: there are {known}")
    row = min(rows, key=lambda row: abs(row["m"] - m))
    return (row["t_f_ms"], row["t_b_ms"], row["t_w_ms"]), row["t_comm_ms"]


def published_rate(label, p, m, v, micro_batch=None):
    """(rate, low, high) of a row of tables 5 and 8, by its label, which begins with the model and
    ends with the schedule. Raises ValueError for a label that names no schedule, more than MOST
    micro-batches, more stages than layers, or a model on p ranks whose times are not known.

    low, high: half a point to either side, which contains every published rate for m = 4p and
    above. With fewer micro-batches, ZB-2p can be as idle as ZB-H2.
    """
    schedule, model = schedule_of(label), label.split("-")[0]
    if schedule is None:
        raise ValueError(
            f"{label!r} names no schedule: it should end in one of {', '.join(SCHEDULES)}"
        )
    if m > MOST:
        raise ValueError(
            f"{m} micro-batches: the clock takes at most {MOST}; with more, rates go as 1 / m"
        )
    times, message = measured_times(model, p, m, micro_batch)
    if schedule == "1f1b-i":
        most = LAYERS[model] // p
        if (v or most) > most:
            raise ValueError(
                f"{v} stages on each of {p} ranks: {model} has {LAYERS[model]} layers, use at most "
                f"{most}"
            )
        rate = bubble_rate(schedule, p, m, times, message, v or most)  # as many stages as layers
    else:
        rate = bubble_rate(schedule, p, m, times, message)
    high = rate + WITHIN
    if schedule == "zb-2p" and m < 4 * p:
        high = max(high, bubble_rate("zb-h2", p, m, times, message))
    return rate, max(0.0, rate - WITHIN), high


def published_runs():
    """The rows of tables 4, 5 and 9 for 1F1B, interleaved 1F1B and ZB-H1, combined into dicts.

    model, p, m, v, schedule     "1F1B", "interleaved 1F1B" or "ZB-H1"
    times, message               {"F": ..., "I": ..., "W": ..., "B": ...} of a stage, and of a
                                 message, in milliseconds, profiled on the authors' GPUs
    computed                     the bubble rate that they computed from these times
    samples                      measured samples per second and GPU. Table 4 does not have ZB-H1,
                                 so its rows have the value of ZB-1p, which needs the same memory
                                 and has the same computed bubble rate
    micro_batch                  samples in one micro-batch
    """
    labels = {"1F1B": "1f1b", "interleaved 1F1B": "1f1b-i", "ZB-H1": "zb-1p"}
    measured = {
        row["row"]: row["value"]
        for row in table("rows")
        if row["source"] == "zerobubble-t4" and row["metric"] == "samples_per_gpu_s"
    }
    sizes = {(row["model"], row["p"]): row for row in reversed(table("zero_bubble_times"))}
    runs = []
    for row in table("zero_bubble"):
        v = row["v"]
        times = {k: row[f"t_{name}_ms"] / v for k, name in (("F", "f"), ("I", "b"), ("W", "w"))}
        runs.append(
            {key: row[key] for key in ("model", "p", "m", "v", "schedule")}
            | {
                "times": times | {"B": times["I"] + times["W"]},
                "message": row["t_comm_ms"],
                "computed": row["bubble_rate"],
                "samples": measured[f"{row['model']}-m{row['m']}-{labels[row['schedule']]}"],
                "micro_batch": sizes[row["model"], row["p"]]["micro_batch"],
            }
        )
    return runs
