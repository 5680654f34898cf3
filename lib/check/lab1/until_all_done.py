"""Lab 1, section 2: until_all_done(batches, group, all_reduce), equally many turns, unequally many
batches.

rank 0   batch  batch  batch  batch
rank 1   batch  None   None   None
rank 3   batch  batch  None   None
"""

import contextlib

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Setting, called, groups_and_control, in_step, seen
from lib.check.claims import claim, each
from lib.check.comm import MAY_CALL, Clash, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab1.means import ALONE, GROUPS_SAY, WORLD
from lib.check.pure import noting_calls
from lib.check.traffic import fitting, only_calls
from lib.data_parallel import sampler

BATCHES = {  # how many each rank has
    Setting(members, dtype=torch.int64, what=f"{', '.join(map(str, counts))} batches{what}"): counts
    for members, counts, what in [
        ((0, 1, 2, 3), (2, 2, 2, 2), ""),
        ((0, 1, 2, 3), (4, 1, 0, 2), ""),
        ((0, 1, 2, 3), (0, 0, 0, 0), ""),
        ((0, 1, 2), (1, 5, 3), ""),
        ((1, 3), (0, 2), ""),
        (ALONE, (3,), ", an iterator"),
        ((0, 1, 2), (2, 0, 1), ", and as many once more, turn by turn"),
    ]
}
CASES = tuple(BATCHES)


class Ambiguous(RuntimeError):
    """What torch raises where a tensor of several elements is asked whether it is true."""


class _Batch(torch.Tensor):
    def __bool__(self):
        raise Ambiguous("Boolean value of Tensor with more than one value is ambiguous")


class _Source:
    """An iterable like a DataLoader: it has no length, and no next of its own; taken: how
    many were asked for."""

    def __init__(self, rank, count):
        self.rank, self.count, self.taken = rank, count, 0

    def __iter__(self):
        for i in range(self.count):
            self.taken += 1
            yield torch.tensor([self.rank, i], device=backend.device()).as_subclass(_Batch)


class _Loops:
    """The answer's loops, turn by turn; got: what each gave, in words; ahead: batches taken
    before their turn."""

    def __init__(self, sources):
        self.sources, self.got, self.ahead, self.yields, self.stopped = (
            sources,
            [[] for _ in sources],
            0,
            True,
            False,
        )

    def run(self, loop, batches, most):
        """loop(batches) -> what to loop over. At most so many turns."""
        turns = [loop(one) for one in batches]
        self.yields = all(hasattr(one, "__iter__") for one in turns)
        running = dict(enumerate(map(iter, turns))) if self.yields else {}
        for _ in range(most):
            for i in list(running):
                self._turn(i, running)

    def _turn(self, i, running):
        try:
            self.got[i].append(_word(next(running[i])))
        except StopIteration:
            del running[i]
        except RuntimeError as error:
            self.stopped = isinstance(error.__cause__, StopIteration)
            if not self.stopped:
                raise
            del running[i]
        self.ahead = max(self.ahead, self.sources[i].taken - len(self.got[i]))


def _measure_turns(fn):
    def one(case, groups):
        group, control = groups
        counts, rank, recorder = (
            BATCHES[case],
            dist.get_rank(control),
            Recorder(control, [case.members]),
        )
        loops, args = (
            _Loops([_Source(rank, counts[rank]) for _ in _twice(case)]),
            [] if group is None else [group],
        )
        given = [iter(source) if case.members == ALONE else source for source in loops.sources]
        loop = lambda batches: fn(batches, *args, all_reduce=recorder.all_reduce)
        # a Clash is in the record
        with noting_calls(sampler.until_all_done) as calls, contextlib.suppress(Clash):
            called(case, loops.run, loop, given, 2 * max(counts) + 3)
        recorder.end()
        right = loops.yields and not calls and all(got == _wanted(case, rank) for got in loops.got)
        record = {"ok": right, "got": loops.got, "ahead": loops.ahead, "libs": bool(calls)}
        return record | recorder.record() | {"yields": loops.yields, "stopped": loops.stopped}

    return in_step(CASES, groups_and_control, one, dist.new_group())


def _twice(case):
    return range(2 if "turn by turn" in case.what else 1)


def _word(batch):
    if type(batch) is _Batch and batch.shape == (2,):
        return f"batch {batch[1].item()}"
    return "None" if batch is None else f"a {type(batch).__name__}"


def _wanted(case, rank):
    """In words, what each turn yields."""
    own, most = BATCHES[case][rank], max(BATCHES[case])
    return [f"batch {i}" for i in range(own)] + ["None"] * (most - own)


def _turns(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            where = f"{case.name}: {case.rank(rank)}"
            if record["libs"]:
                return Problem(
                    "built-in",
                    f"{where} called lib's until_all_done, which is what this exercise builds",
                )
            if not record["yields"]:
                return Problem("nothing yielded", f"{where} got nothing to loop over")
            if record["stopped"]:
                return Problem(
                    "stopped",
                    f"{where}: StopIteration was raised inside the loop, after its last batch",
                )
        if found := fitting(CASES)(runs):
            return found
        wrong = [
            (rank, i)
            for rank, r in enumerate(records)
            for i in _twice(case)
            if r["got"][i] != _wanted(case, rank)
        ]
        if wrong:
            return _wrong_turns(case, *wrong[0], records)
    return None


def _wrong_turns(case, rank, i, records):
    got, want, own = records[rank]["got"][i], _wanted(case, rank), BATCHES[case][rank]
    turns = [len(record["got"][i]) for record in records]
    together, longest = len(set(turns)) == 1, got[: len(want)] == want
    facts = {
        "case": case,
        "alone": turns == [*BATCHES[case]] and got == want[:own],
        "too few": together and got == want[: len(got)],
        "too many": longest,
        "not None": together and got[:own] == want[:own],
    }
    listed = lambda words: ", ".join(words[:8]) + (", ..." if len(words) > 8 else "") or "no turn"
    text = (
        f"{case.name}: {case.rank(rank)} was given {listed(got)}\nExpected {listed(want)}. Turns "
        f"by rank: {turns}"
    )
    return Problem("turns", text, facts)


def _one_by_one(case, rank, record):
    if record["ahead"] <= 1:
        return None
    words = f"took {record['ahead']} batches ahead of their turn, expected one at most"
    return Problem("ahead", f"{case.name}: {case.rank(rank)} {words}")


EXERCISE = Exercise(
    name="until_all_done", reference=sampler.until_all_done, measure=_measure_turns,
    worlds=(WORLD,), may_call=MAY_CALL,
    leaves_out={"precise": "it sends 0 or 1"},
    claims=(
        claim("as many turns on every rank", 4,
              f"1 rank, {GROUPS_SAY}; 0 to 5 batches a rank, then None", _turns),
        claim("one batch at a time", 1, "at most one taken ahead of its turn",
              each(CASES, _one_by_one)),
        claim("one number per turn", 1, "all-reduced, and once at the end",
              only_calls(CASES, lambda case, _: [("all_reduce", "",
                  1)] * len(_twice(case)) * (max(BATCHES[case]) + 1))),
    ),
    hints=(
        s.CALLED_LIB.saying("build it: fetch, all-reduce, yield, in a loop."),
        s.NO_GROUP,
        Hint("the truth of a batch", s.raised("Ambiguous"),
            "a batch is a tensor, which is neither true nor false: ask `batch is None`."),
        Hint("a list in mind", s.raised("TypeError"),
            "`batches` is any iterable, a DataLoader for example: it may have no length, no index, "
            "and no next. batches = iter(batches); next(batches, None)."),
        Hint("next at the end", s.kind("stopped"),
             "next(batches) raises StopIteration when there are no more; next(batches, None) "
             "returns None."),
        Hint("nothing yielded", s.kind("nothing yielded"),
             "the function must `yield` each turn's batch."),
        Hint("one iterator for all loops", s.in_case(CASES, lambda case: len(_twice(case)) > 1,
            "turns", "clash"),
             "two loops run at once here, turn by turn. What a loop needs is in variables of its "
             "own, not in a global, a default argument or on the function."),
        Hint("stops by itself", s.fact("alone"),
             "a rank that has run out must go on taking part, with None, as long as any rank has a "
             "batch."),
        Hint("stops with the first", s.fact("too few"),
            "you stop when one rank has run out, and the others' batches are lost. Go on while any "
            "rank has one: sum the ranks' 0 or 1, and stop at 0."),
        Hint("one turn too many", s.fact("too many"),
             "once no rank has a batch left the loop ends, before it yields."),
        Hint("not None", s.fact("not None"),
             "a rank that has run out yields None, so that the caller knows; an old batch would be "
             "trained on twice."),
        Hint("batches lost", s.kind("turns"),
            "every batch is yielded once, in order: each one that you fetch must also be yielded."),
        Hint("not all take part", s.either(s.hung, s.kind("clash", "mismatch", "died", "timeout")),
             "in every turn all ranks of the group call the all-reduce, with `group`, also those "
             "that have run out, until its sum is 0."),
        Hint("all fetched first", s.kind("ahead"),
             "the whole of a rank's data may not fit in memory. Fetch the next batch when its turn "
             "comes."),
        s.NOT_GIVEN,
        Hint("more than one number", s.kind("calls"),
             "a single all-reduce per turn is enough, of one number: 1 if this rank has a batch, "
             "else 0."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
