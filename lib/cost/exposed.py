"""Exposed communication: the seconds of messages that no compute hides and that lengthen a step.

    compute     [=======]  [===============]            [==]
    messages         [===========]     [========][====]
    exposed              ##                 ###########

On a GPU, compute are the kernels on its streams, and messages NCCL's kernels, which also wait for
slower ranks.
"""


# exercise: lab1.exposed_seconds
def exposed_seconds(compute, messages):
    """Seconds in which a message is under way and nothing computes: the union of `messages` without
    that of `compute`.

    compute, messages: of one rank, lists of (start, end), start <= end, of one unit, which the
    result has, too; in any order; they may overlap, touch, lie in each other, or be none.
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
