"""Dumps of a Flight Recorder as plain data: {situation: {rank: its records}}."""

BROADCAST, REDUCE, HALF = ("broadcast", 1000), ("all_reduce", 1000), ("all_reduce", 500)
GATHER, SCATTER, BARRIER = ("all_gather", 250), ("reduce_scatter", 1000), ("barrier", 0)


def calls(*kinds, waiting=0, first=1, group="0", members=(0, 1, 2, 3), state="scheduled"):
    """The records of one rank in one group; the last `waiting` of them are not completed."""
    numbers = range(first, first + len(kinds))
    done = first + len(kinds) - waiting
    return [
        {
            "group": group, "members": members, "nth": nth, "op": op, "elements": elements,
            "state": "completed" if nth < done else state,
        }
        for nth, (op, elements) in zip(numbers, kinds, strict=True)
    ]  # fmt: skip


def _four(usual, **others):
    """Dumps of 4 ranks. Each rank has the records `usual`, unless others are given as rank0=,
    rank1=, ..."""
    return {rank: others.get(f"rank{rank}", usual) for rank in range(4)}


EIGHT, PAIR = tuple(range(8)), {"group": "2", "members": (2, 3)}
STEPS = (REDUCE, REDUCE, SCATTER, GATHER, REDUCE, BARRIER)

NEVER = {
    "4 ranks, 1 is missing": _four(
        calls(BROADCAST, REDUCE, REDUCE, REDUCE, waiting=1), rank2=calls(BROADCAST, REDUCE, REDUCE)
    ),
    "8 ranks, 2 are missing, the others have started": (
        {r: calls(BROADCAST, GATHER, waiting=1, members=EIGHT, state="started") for r in EIGHT}
        | {r: calls(BROADCAST, members=EIGHT) for r in (1, 6)}
    ),
    "rank 2 is missing in a broadcast that rank 0 has completed": _four(
        calls(REDUCE, BROADCAST, waiting=1), rank0=calls(REDUCE, BROADCAST), rank2=calls(REDUCE)
    ),
    "a rank without a record": _four(calls(REDUCE, waiting=1), rank0=[]),
}
NOBODY = {
    "all completed": _four(calls(BROADCAST, REDUCE, BARRIER)),
    "rank 1 has yet to receive a broadcast that has left": _four(
        calls(REDUCE, REDUCE, BROADCAST), rank1=calls(REDUCE, REDUCE)
    ),
}
FIRST = {
    "ranks that call ahead without waiting": _four(
        calls(*STEPS, waiting=4), rank2=calls(*STEPS[:2]), rank3=calls(*STEPS[:5], waiting=3)
    ),
    "recorders that keep 3 calls": _four(
        calls(REDUCE, REDUCE, REDUCE, first=501, waiting=3),
        rank0=calls(("reduce", 1000), REDUCE, REDUCE, first=500, waiting=3, state="started"),
        rank3=calls(REDUCE, ("reduce", 1000), REDUCE, first=499, waiting=1),
    ),
    "a recorder that keeps later calls than others": _four(
        calls(REDUCE, REDUCE, REDUCE, first=502, waiting=3),
        rank0=calls(REDUCE, REDUCE, REDUCE, first=504, waiting=3),
        rank3=calls(REDUCE, REDUCE, REDUCE, first=499),
    ),
}
ANOTHER = {
    "another op": _four(
        calls(BROADCAST, REDUCE, REDUCE, waiting=1),
        rank0=calls(BROADCAST, REDUCE, BARRIER, waiting=1),
    ),
    "another size, and all completed": _four(
        calls(BROADCAST, REDUCE, REDUCE), rank1=calls(BROADCAST, HALF, REDUCE)
    ),
    "another op, and a rank missing": _four(
        calls(BARRIER, REDUCE, waiting=1), rank2=calls(BARRIER),
        rank3=calls(BARRIER, BROADCAST, waiting=1),
    ),
    "2 ranks, 2 ops": {
        1: calls(GATHER, waiting=1, members=(0, 1)),
        0: calls(SCATTER, waiting=1, members=(0, 1)),
    },
}  # fmt: skip
GROUPS = {
    "all ranks and pairs": {
        0: [*calls(REDUCE), *calls(GATHER, group="1", members=(0, 1)),
            *calls(REDUCE, first=2, waiting=1)],
        1: [*calls(REDUCE), *calls(GATHER, group="1", members=(0, 1)),
            *calls(REDUCE, first=2, waiting=1)],
        2: [*calls(REDUCE), *calls(GATHER, GATHER, waiting=1, **PAIR)],
        3: [*calls(REDUCE), *calls(GATHER, **PAIR)],
    },
    "a group of ranks 1 and 3": _four(
        calls(REDUCE),
        rank1=[*calls(REDUCE), *calls(REDUCE, waiting=1, group="1", members=(1, 3))],
    ),
}  # fmt: skip
CASES = NEVER | NOBODY | FIRST | ANOTHER | GROUPS
