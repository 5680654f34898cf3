"""The explorer of Lab 2: a pipeline schedule, for ranks, micro-batches and times of your choice.

Times are those of one rank's layers on one micro-batch, in any unit. The backward pass has two
parts, the gradient of the input (I) and that of the weights (W). ZB-H1 and ZB-V run them
separately, DualPipeV does so for some micro-batches, and the other schedules run them together, as
B = I + W. With v stages on a rank, each stage takes one v-th of the rank's time; ZB-V and DualPipeV
have two stages on each rank.
"""

from lib import plots
from lib.explore.show import explore
from lib.pipeline import dualpipe_v, gpipe, interleaved, one_f_one_b, relay, simulate, zb_h1, zb_v

SCHEDULES = {
    "relay": lambda p, m, v: relay(p, m),
    "GPipe": lambda p, m, v: gpipe(p, m),
    "1F1B": lambda p, m, v: one_f_one_b(p, m),
    "interleaved": interleaved,
    "ZB-H1": lambda p, m, v: zb_h1(p, m),
    "ZB-V": lambda p, m, v: zb_v(p, m),
    "DualPipeV": lambda p, m, v: dualpipe_v(p, m),
}
TIMES = {f"{t:g}": t for t in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)}


def pipeline():
    """The Gantt chart of a schedule, its bubble next to the formula's, and what each rank keeps."""
    explore(  # at most 1,152 boxes, so that a new drawing takes less than half a second
        draw_pipeline,
        schedule=list(SCHEDULES),
        p=[1, 2, 3, 4, 6, 8],
        m=[1, 2, 3, 4, 6, 8, 12, 16, 24],
        v=[1, 2, 3],
        forward=TIMES,
        backward_input=TIMES,
        backward_weights=TIMES,
        message={"0": 0.0, **TIMES},
    )


def draw_pipeline(
    schedule="1F1B",
    p=4,
    m=8,
    v=2,
    forward=1.0,
    backward_input=1.0,
    backward_weights=1.0,
    message=0.0,
):
    """The figure of `pipeline`. p: ranks. m: micro-batches. v: stages on a rank, for the
    interleaved schedule only. message: the time of a message from one rank to the next.

    If the schedule cannot run with these numbers, the reason takes the place of the figure.
    """
    try:
        actions = SCHEDULES[schedule](p, m, v)
    except (
        ValueError
    ) as refusal:  # too few micro-batches, or a number that does not form equal groups
        return plots.told(f"{schedule} cannot run this", f"{refusal}.")
    share = {"interleaved": v, "ZB-V": 2, "DualPipeV": 2}.get(schedule, 1)
    times = {
        "F": forward / share, "B": (backward_input + backward_weights) / share,
        "I": backward_input / share, "W": backward_weights / share,
    }  # fmt: skip
    formula = bubble_formula(schedule, p, m, v, forward, backward_input, backward_weights)
    beside = "no formula here" if formula is None else f"formula {formula:.1%}"
    simulation = simulate(actions, times, message)
    sizes = f"p = {p}, m = {m}" + f", v = {v}" * (schedule == "interleaved")
    return plots.gantt(
        simulation,
        title=f"{schedule}: bubble {simulation.bubble:.1%} "
        f"({beside}{', without messages' * (message > 0)})",
        note=f"{sizes}; F {forward:g}, I {backward_input:g}, W {backward_weights:g}, message "
        f"{message:g}.",
    )


def bubble_formula(schedule, p, m, v, F, I, W):
    """The bubble of `schedule` if messages take no time, which is idle / (idle + work) of a rank;
    None if no formula is known. F, I and W are the times of a rank, and work is m (F+I+W).

    idle:  relay        (p-1) m (F+I+W)
           GPipe, 1F1B  (p-1) (F+I+W)
           interleaved  (p-1) (F+I+W) / v, if m >= p
           ZB-H1        (p-1) (F+I-W), or (p-1) max(F, I) if W is not the shortest; if m >= p
           ZB-V         (p-1) max(I, 2(I-W)) / 2, if I >= F >= W and m >= 2p-1
           DualPipeV    (p-1) max(F+I-W, 2(F-W)) / 2, if F >= I >= W; the schedule needs m >= 2p
    """
    work = m * (F + I + W)
    fewest = {"ZB-H1": p, "interleaved": p, "ZB-V": 2 * p - 1}.get(schedule, 1)
    in_order = {"ZB-V": I >= F >= W, "DualPipeV": F >= I >= W}.get(schedule, True)
    if m < fewest or not in_order:
        return None
    idle = (p - 1) * {
        "relay": m * (F + I + W),
        "GPipe": F + I + W,
        "1F1B": F + I + W,
        "interleaved": (F + I + W) / v,
        "ZB-H1": F + I - W if min(F, I) >= W else max(F, I),
        "ZB-V": max(I, 2 * (I - W)) / 2,
        "DualPipeV": max(F + I - W, 2 * (F - W)) / 2,
    }[schedule]
    return idle / (idle + work)
