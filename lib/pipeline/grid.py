"""A schedule as text, as the papers draw it: time steps are columns, ranks are rows.

rank 0  0F0 0F1  .   .   .  0B0 --- 0B1 ---        --- the action goes on
rank 1   .  1F0 1B0 --- 1F1 1B1 ---  .   .          .  the rank is idle
"""

from lib.pipeline.simulate import UNIT, simulate


def grid(schedule, times=UNIT, message=0):
    """`schedule` as text, one line per rank, one column per unit of time.

    times, message: as in `simulate`, but whole numbers; plots draws the others.
    Raises ValueError for times that are not whole, ScheduleError for a schedule that comes to a stand.
    """
    bars = simulate(schedule, times, message).bars
    torn = next((bar for bar in bars if bar.start != int(bar.start) or bar.end != int(bar.end)), None)
    if torn:
        raise ValueError(
            f"{torn.action} runs from {torn.start} to {torn.end}: columns are whole units, draw it instead"
        )
    width = max(len(str(bar.action)) for bar in bars)
    steps = int(max(bar.end for bar in bars))
    rows = [["."] * steps for _ in schedule]
    for rank, action, start, end in bars:
        rows[rank][int(start) : int(end)] = [str(action)] + ["-" * width] * int(end - start - 1)
    names = [f"rank {rank}" for rank in range(len(schedule))]
    lines = (
        " ".join([name.ljust(len(names[-1])), *(cell.center(width) for cell in row)])
        for name, row in zip(names, rows, strict=True)
    )
    return "\n".join(line.rstrip() for line in lines)
