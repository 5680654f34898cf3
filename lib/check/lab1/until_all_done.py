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

ITERATOR, TWO = ", an iterator", ", and as many once more, turn by turn"
BATCHES = {  # how many each rank has
    Setting(members, what=f"{', '.join(map(str, counts))} batches{what}"): counts
    for members, counts, what in [
        ((0, 1, 2, 3), (4, 1, 0, 2), ITERATOR),
        ((0, 1, 2, 3), (2, 2, 2, 2), ""),
        ((0, 1, 2, 3), (0, 0, 0, 0), ""),
        ((0, 1, 2), (1, 5, 3), ""),
        ((1, 3), (0, 2), ""),
        (ALONE, (3,), ""),
        ((0, 1, 2), (2, 0, 1), TWO),
    ]
}
CASES = tuple(BATCHES)
TURNS = ("StopIteration", "too few", "stops alone", "too many", "not None", "other batches")
OVER, STOPPED = "over", "a StopIteration"


class Source:
    """An iterable like a DataLoader: it has no length, and no next of its own. taken: how many
    batches were asked for."""

    def __init__(self, rank, count):
        self.rank, self.count, self.taken = rank, count, 0

    def __iter__(self):
        for i in range(self.count):
            self.taken += 1
            yield torch.tensor([self.rank, i], device=backend.device())


def script(make, case, group, show):
    own, most = BATCHES[case][show.place], max(BATCHES[case])
    sources = [Source(show.place, own) for _ in range(1 + case.what.endswith(TWO))]
    given = [] if group is None else [group]

    def loop(source):
        batches = iter(source) if case.what.endswith(ITERATOR) else source
        return make(batches, *given, all_reduce=show.all_reduce)

    turns, ahead = show.run(in_turn, loop, sources, 2 * most + 3)
    show("to loop over", "" if turns is not None else "got nothing to loop over")
    wrong = {}
    for words in turns or ():
        wrong |= _wrong(words, own, most)
    for name in TURNS:
        show(name, wrong.get(name, ""))
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
    if type(batch) is torch.Tensor and batch.shape == (2,):
        return f"batch {batch[1].item()}"
    return "None" if batch is None else f"a {type(batch).__name__}"


def _wrong(got, own, most):
    """{one of TURNS: what is wrong with a loop's turns}, or {}"""
    want = [f"batch {i}" for i in range(own)] + ["None"] * (most - own)
    if got == want:
        return {}
    if STOPPED in got:
        name = "StopIteration"
    elif got == want[: len(got)]:
        name = "too few" if len(got) < own else "stops alone"
    elif got[:most] == want:
        name = "too many"
    else:
        name = "not None" if got[:own] == want[:own] and len(got) == most else "other batches"
    listed = lambda words: ", ".join(words[:8]) + ", ..." * (len(words) > 8) or "no turn"
    return {name: f"got {listed(got)}\nExpected {listed(want)}."}


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
         f"1 rank, {GROUPS_SAY}; 0 to 5 batches a rank, then None", "to loop over", *TURNS),
        ("one batch at a time", 1, "none is fetched before its turn", "ahead"),
        ("one number per turn", 1, "all-reduced, and once at the end",
         calls(MEASURE, nothing_else=False), "calls"),
    ),
    hints=hints(
        "lab1", "until_all_done",
        the_group_is_not_passed_on=s.kind("group"),
        the_truth_of_a_batch=s.refused("truth"),
        a_list_in_mind=s.raised("TypeError"),
        next_at_the_end=of_name("StopIteration"),
        nothing_yielded=of_name("to loop over"),
        one_iterator_for_all_loops=s.in_case(
            CASES, lambda case: case.what.endswith(TWO), "said", "clash"
        ),
        stops_by_itself=of_name("stops alone"),
        stops_with_the_first=of_name("too few"),
        one_turn_too_many=of_name("too many"),
        not_None=of_name("not None"),
        batches_lost=of_name("other batches"),
        not_all_take_part=s.either(s.hung, s.kind("clash", "mismatch", "died", "timeout")),
        fetched_too_early=of_name("ahead"),
        not_what_it_was_given=s.kind("another way"),
        more_than_one_number=of_name("calls"),
    ),
)  # fmt: skip
