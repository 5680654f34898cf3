"""Lab 1, section 2: until_all_done(batches, group, all_reduce), equally many turns, unequally many
batches.

rank 0   batch  batch  batch  batch
rank 1   batch  None   None   None
rank 3   batch  batch  None   None
"""

import torch

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Setting
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise
from lib.check.lab1.means import ALONE, GROUPS_SAY, WORLD
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.data_parallel import sampler

ITERATOR, EMPTY, TWO = (
    ", an iterator",
    ", each of length 0",
    ", and as many once more, turn by turn",
)
BATCHES = {  # how many each rank has
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
TURNS, NONE, OVER, STOPPED = "the turns", "no turn", "over", "a StopIteration"


class Source:
    """An iterable like a DataLoader: it has no length, and no next of its own. taken: how many
    batches were asked for."""

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
        show(TURNS, ", ".join(words) or NONE)
    show("ahead", ahead and f"fetched {ahead} batches before their turn, expected none")
    show("calls", ", ".join(f"{one.op} of {one.elements}" for one in show.all_calls))


def in_turn(loop, sources, most):
    """(the words of each loop's turns, None if there is nothing to loop over; how many batches were
    fetched before their turn). At most so many turns."""
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
    """What the turn gives, in words."""
    try:
        batch = next(turn, OVER)
    except RuntimeError as error:
        if not isinstance(error.__cause__, StopIteration):
            raise
        return STOPPED
    if batch is OVER:
        return OVER
    if type(batch) is torch.Tensor and batch.dim() == 2:
        return f"batch {batch.shape[1] - 1}"
    return "None" if batch is None else f"a {type(batch).__name__}"


def _turns(fits):
    """fits(the turns that it gave, those of lib's, how many of these have a batch)?"""

    def of(p):
        said = [p.fact(key, "") for key in ("got", "want")]
        got, want = ([] if one == NONE else str(one).split(", ") for one in said)
        return p.fact("name") == TURNS and fits(got, want, sum("batch" in one for one in want))

    return of


def _of_case(ending):
    return s.in_case(CASES, lambda case: case.what.endswith(ending))


MEASURE = SideBySide(
    script, sampler.until_all_done, CASES,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "a batch is whatever it is")
    | {"two at once": "two loops run turn by turn in a case of their own"},
)  # fmt: skip
EXERCISE = Exercise(
    name="until_all_done", reference=sampler.until_all_done, measure=MEASURE,
    worlds=(WORLD,), may_call=MAY_CALL,
    leaves_out={"precise": "it sends 0 or 1"},
    claims=claims(
        MEASURE,
        ("as many turns on every rank", 4,
         f"1 rank, {GROUPS_SAY}; 0 to 5 batches a rank, then None", "to loop over", TURNS),
        ("one batch at a time", 1, "none is fetched before its turn", "ahead"),
        ("one number per turn", 1, "all-reduced, and once at the end",
         calls(MEASURE, nothing_else=False), "calls"),
    ),
    hints=hints(
        "lab1", "given", "until_all_done",
        the_truth_of_a_batch=s.either(
            s.refused("truth"), s.both(of_name(TURNS), _of_case(EMPTY))),
        next_at_the_end=_turns(lambda got, want, own: STOPPED in got),
        one_iterator_for_all_loops=s.both(s.kind("number", "clash"), _of_case(TWO)),
        stops_with_the_first=_turns(
            lambda got, want, own: len(got) < own and got == want[: len(got)]),
        stops_by_itself=_turns(lambda got, want, own: got == want[: len(got)]),
        one_turn_too_many=_turns(lambda got, want, own: got[: len(want)] == want),
        not_None=_turns(lambda got, want, own: got[:own] == want[:own] and len(got) == len(want)),
    ),
)  # fmt: skip
