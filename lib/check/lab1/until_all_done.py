"""Lab 1, section 2: until_all_done(batches, group, all_reduce), which gives every rank the same
number of turns, although the ranks have different numbers of batches.

rank 0   batch  batch  batch  batch
rank 1   batch  None   None   None
rank 2   None   None   None   None
rank 3   batch  batch  None   None
"""

import torch

from lib import backend
from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.explain import kind_of
from lib.check.lab1.means import ALONE, GROUPS_SAY, WORLD
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.data_parallel import sampler

ITERATOR, EMPTY = ", an iterator", ", each of length 0"
TWO = ", and as many once more, turn by turn"
BATCHES = {  # case: the number of batches of each rank
    Setting(members, what=f"{', '.join(map(str, counts))} batches{what}"): counts
    for members, counts, what in [
        ((0, 1, 2, 3), (4, 1, 0, 2), ITERATOR),
        ((0, 1, 2, 3), (2, 2, 2, 2), ""),
        ((0, 1, 2, 3), (0, 0, 0, 0), ""),
        ((0, 1, 2), (1, 5, 3), ""),
        ((1, 3), (0, 2), ""),
        (ALONE, (3,), ""),
        ((0, 1, 2), (1, 3, 2), EMPTY),
        ((0, 1, 2), (2, 0, 1), TWO),
    ]
}
CASES = tuple(BATCHES)
OVER, STOPPED = "over", "a StopIteration"


class Source:
    """An iterable that, like a DataLoader, is not an iterator itself. It has no length. taken: how
    many batches have been fetched from it."""

    def __init__(self, count, rows):
        self.count, self.rows, self.taken = count, rows, 0

    def __iter__(self):
        for i in range(self.count):
            self.taken += 1
            yield torch.zeros(self.rows, 1 + i, dtype=torch.int64, device=backend.device())


def script(make, case, group, show):
    own, most = BATCHES[case][show.place], max(BATCHES[case])
    rows = 0 if case.what.endswith(EMPTY) else 2
    sources = [Source(own, rows) for _ in range(1 + case.what.endswith(TWO))]
    given = [] if group is None else [group]

    def loop(source):
        batches = iter(source) if case.what.endswith(ITERATOR) else source
        return make(batches, *given, all_reduce=show.all_reduce)

    turns, ahead = show.run(in_turn, loop, sources, 2 * most + 3)
    show("to loop over", "" if turns is not None else "got nothing to loop over")
    for words in turns or ():
        show("the turns", ", ".join(words) or "no turn")
    show("ahead", ahead and f"fetched {ahead} batches before their turn, expected none")
    show("calls", ", ".join(f"{one.op} of {one.elements}" for one in show.all_calls))


def in_turn(loop, sources, most):
    """Run the loops turn by turn, for at most `most` turns.

    Returns (a list of words for the turns of each loop, or None if there is nothing to loop over;
    how many batches were fetched before their turn, or "" if none was).
    """
    loops = [loop(source) for source in sources]
    if not all(hasattr(one, "__iter__") for one in loops):
        return None, ""
    running, turns, ahead = dict(enumerate(map(iter, loops))), [[] for _ in loops], 0
    for _ in range(most):
        for i, turn in list(running.items()):
            word = _next(turn)
            turns[i] += [word] * (word != OVER)
            if word in (OVER, STOPPED):
                del running[i]
            ahead = max(ahead, sources[i].taken - len(turns[i]))
    return turns, ahead or ""


def _next(turn):
    """What the next turn yields, in words."""
    try:
        batch = next(turn, OVER)
    except RuntimeError as error:
        if not isinstance(error.__cause__, StopIteration):
            raise
        return STOPPED
    if type(batch) is torch.Tensor and batch.dim() == 2:
        return f"batch {batch.shape[1] - 1}"
    if batch is None or batch is OVER:
        return str(batch)
    return kind_of(batch)


MEASURE = SideBySide(
    script, sampler.until_all_done, CASES,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "a batch is whatever it is")
    | {"two at once": "two loops run turn by turn in a case of their own"},
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("as many turns on every rank", 4,
     f"1 rank, {GROUPS_SAY}; 0 to 5 batches a rank, then None", "to loop over", "the turns"),
    ("one batch at a time", 1, "none is fetched before its turn", "ahead"),
    ("one number per turn", 1, "all-reduced, and once at the end",
     calls(MEASURE, nothing_else=False), "calls"),
    hints=hints("lab1", "given", "until_all_done"), worlds=(WORLD,), may_call=MAY_CALL,
    leaves_out={"precise": "it sends 0 or 1"},
)  # fmt: skip
