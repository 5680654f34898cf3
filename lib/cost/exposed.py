"""Exposed communication: the seconds of messages that no computation hides, which lengthen a step.

    compute     [=======]  [===============]            [==]
    messages         [===========]     [========][====]
    exposed              ##                 ###########

On a GPU, `compute` is the time of its compute kernels, and `messages` that of NCCL's kernels, which
includes their waiting for slower ranks.
"""


# exercise: lab1.exposed_seconds
def exposed_seconds(compute, messages):
    """Seconds in which a message is in flight while nothing computes: the length of the union of
    `messages` outside the union of `compute`.

    compute, messages: lists of (start, end) of one rank, with start <= end, all in the same unit,
    which is also that of the result. The intervals may be in any order, overlap, touch or contain
    each other, and a list may be empty.
    """
    edges = [
        (time, what, by)
        for what, intervals in enumerate((compute, messages))
        for start, end in intervals
        for time, by in ((start, 1), (end, -1))
    ]
    under_way, exposed, before = [0, 0], 0.0, 0.0
    for time, what, by in sorted(edges):
        if under_way[1] and not under_way[0]:
            exposed += time - before
        under_way[what] += by
        before = time
    return exposed
