"""Divides the rows of a batch over ranks of unequal speed, in whole numbers, so that the step is as
short as possible.

There are B rows. Rank r gets b_r of them and computes v_r rows per second:

    T = max_r b_r / v_r           a step ends when the last rank does
    T >= B / sum_r v_r            ideal: all end together, which whole rows do not always allow

    B = 10, v = 3 2 1         ideal 10/6 s     5 3.3 1.7
    equal           4 3 3     T = 3            56 % of the ideal speed
    in proportion   6 3 1     T = 2            83 %, and no whole shares do better

We deal the rows one at a time, each to the rank that would finish it first:

    the next row goes to argmin_r (b_r + 1) / v_r

This is optimal, because in time T rank r can finish floor(T v_r) rows, and dealing gives out all of
these before any row that takes longer. So if B rows can be finished within T at all, the dealt
shares finish within T.
"""


# exercise: lab6.shares
def shares(B, speeds, most=None):
    """[rows of rank 0, of rank 1, ...], whole numbers whose sum is B, chosen so that the last rank
    to finish does so as early as possible.

    speeds: rows per second, or any numbers in proportion, above 0. A rank may get no row at all.
    most: how many rows each rank has memory for; left out: any number. Of two equally fast ranks,
    the first one gets the extra row. Raises ValueError for a speed that is not above 0, for lists
    of different lengths, or if B rows do not fit.
    """
    most = [B] * len(speeds) if most is None else most
    if not speeds or min(speeds) <= 0 or len(most) != len(speeds):
        raise ValueError(
            f"speeds {list(speeds)}, most {list(most)}: one speed above 0 and one number of rows "
            f"per rank"
        )
    if sum(most) < B:
        raise ValueError(
            f"{B} rows, but memory for {list(most)}, {sum(most)} in all: use {sum(most)} rows or "
            f"fewer"
        )
    b = [0] * len(speeds)
    for _ in range(B):
        # argmin_r (b_r + 1) / v_r
        _, r = min(((b[r] + 1) / speeds[r], r) for r in range(len(speeds)) if b[r] < most[r])
        b[r] += 1
    return b


def seconds_of_step(b, speeds):
    """T = max_r b_r / v_r: seconds until the last rank has computed its rows, without messages."""
    return max(rows / speed for rows, speed in zip(b, speeds, strict=True))
