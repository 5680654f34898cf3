"""Lab 1, section 2: until_all_done(batches, group), equally many turns on ranks with unequally many batches.

rank 0   batch  batch  batch  batch
rank 1   batch  None   None   None
rank 3   batch  batch  None   None
"""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0.cases import called, groups_of, in_step, seen
from lib.check.lab0.mistakes import hung
from lib.check.lab1.calls import noting_calls
from lib.check.lab1.cases import GROUPS_SAY, WORLD, Case, group_argument
from lib.check.lab1.wire import COLLECTIVES, numbers_all_reduced
from lib.data_parallel import uneven

# How many batches each rank has.
BATCHES = {
    Case("until_all_done", members, f"{', '.join(map(str, counts))} batches"): counts
    for members, counts in [
        ((0, 1, 2, 3), (2, 2, 2, 2)),
        ((0, 1, 2, 3), (4, 1, 0, 2)),
        ((0, 1, 2, 3), (0, 0, 0, 0)),
        ((0, 1, 2), (1, 5, 3)),
        ((1, 3), (0, 2)),
    ]
}
CASES = list(BATCHES)


class _Source:
    """An iterable like a DataLoader: it has no length, and no next of its own; taken: how many were asked for."""

    def __init__(self, rank, count):
        self.rank, self.count, self.taken = rank, count, 0

    def __iter__(self):
        for i in range(self.count):
            self.taken += 1
            yield torch.tensor([self.rank, i], device=backend.device())


def _measure(fn):
    def one(case, group):
        counts, rank = BATCHES[case], case.members.index(dist.get_rank())
        source = _Source(rank, counts[rank])
        with noting_calls(uneven.until_all_done) as calls:
            got, ahead = called(case, _drain, fn, source, group, 2 * max(counts) + 3)
        got = None if got is None else [_word(batch) for batch in got]
        ok = got == _wanted(case, rank) and not calls
        return {"ok": ok, "got": got, "ahead": ahead, "calls_lib": bool(calls)}

    return in_step(CASES, groups_of, one, dist.new_group())


def _drain(fn, source, group, most):
    """(what each turn yields, up to `most` turns; how many batches were taken before their turn, at worst)"""
    turns, ahead = fn(source, *group_argument(group)), 0
    if turns is None:
        return None, 0
    got = []
    for batch in turns:
        got.append(batch)
        ahead = max(ahead, source.taken - len(got))
        if len(got) == most:
            break
    return got, ahead


def _word(batch):
    if type(batch) is torch.Tensor and batch.shape == (2,):
        return f"batch {batch[1].item()}"
    return "None" if batch is None else f"a {type(batch).__name__}"


def _wanted(case, rank):
    """In words, what each turn yields."""
    own, most = BATCHES[case][rank], max(BATCHES[case])
    return [f"batch {i}" for i in range(own)] + ["None"] * (most - own)


def _turns(runs):
    for _, case, records in seen(runs, CASES):
        wrong = next((rank for rank, record in enumerate(records) if not record["ok"]), None)
        if wrong is not None:
            return _what_is_wrong(case, wrong, records)
    return None


def _what_is_wrong(case, rank, records):
    where, got, want = f"{case.where}: {case.rank(rank)}", records[rank]["got"], _wanted(case, rank)
    if records[rank]["calls_lib"]:
        return Problem("built-in", f"{where} called lib's until_all_done, which is what this exercise builds")
    if got is None:
        return Problem("nothing yielded", f"{where} got None, which is nothing to loop over")
    turns = [len(record["got"] or []) for record in records]
    facts = {"got": got, "want": want, "own": BATCHES[case][rank], "alone": turns == [*BATCHES[case]]}
    listed = lambda words: ", ".join(words[:8]) + (", ..." if len(words) > 8 else "") or "no turn"
    text = f"{where} was given {listed(got)}\nExpected {listed(want)}. Turns by rank: {turns}"
    return Problem("turns", text, {**facts, "together": len(set(turns)) == 1})


def _one_by_one(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if record["ahead"] > 1:
                words = f"took {record['ahead']} batches ahead of their turn, expected one at most"
                return Problem("ahead", f"{case.where}: {case.rank(rank)} {words}")
    return None


def _one_number(runs):
    for run, case, _ in seen(runs, CASES):
        problem = numbers_all_reduced(run, case, max(BATCHES[case]) + 1)
        if problem:
            return problem
    return None


def _turns_are(p, fits):
    return p.kind == "turns" and fits(p.facts)


EXERCISE = Exercise(
    name="until_all_done",
    reference=uneven.until_all_done,
    measure=_measure,
    worlds=(WORLD,),
    # Where lib's own generator is returned, no line of the student's is on the stack: `noting_calls` sees that.
    may_call=(*COLLECTIVES, "framework._measure_all"),
    claims=(
        Claim("as many turns on every rank", 4, f"{GROUPS_SAY}; 0 to 5 batches a rank, then None", _turns),
        Claim("one batch at a time", 1, "at most one taken ahead of its turn", _one_by_one),
        Claim("one number per turn", 1, "all-reduced, and once at the end", _one_number),
    ),
    hints=(
        Hint("called lib's", lambda p: p.kind == "built-in", "build it: fetch, all-reduce, yield, in a loop."),
        Hint(
            "a list in mind",
            lambda p: p.kind == "raised" and "TypeError" in p.text,
            "`batches` is any iterable, a DataLoader for example: it may have no length, no index, and no next. "
            "batches = iter(batches); next(batches, None).",
        ),
        Hint(
            "the truth of a batch",
            lambda p: p.kind == "raised" and "Boolean value of Tensor" in p.text,
            "a batch is a tensor, which is neither true nor false: ask `batch is None`.",
        ),
        Hint(
            "next at the end",
            lambda p: p.kind == "raised" and "StopIteration" in p.text,
            "next(batches) raises StopIteration when there are no more; next(batches, None) returns None.",
        ),
        Hint("nothing yielded", lambda p: p.kind == "nothing yielded", "the function must `yield` each turn's batch."),
        Hint(
            "stops by itself",
            lambda p: _turns_are(p, lambda f: f["alone"]),
            "a rank that has run out must go on taking part, with None, as long as any rank has a batch.",
        ),
        Hint(
            "stops with the first",
            lambda p: _turns_are(p, lambda f: f["together"] and f["got"] == f["want"][: len(f["got"])]),
            "you stop when one rank has run out, and the others' batches are lost. Go on while any rank has one: sum "
            "the ranks' 0 or 1, and stop at 0.",
        ),
        Hint(
            "one turn too many",
            lambda p: _turns_are(p, lambda f: f["got"][: len(f["want"])] == f["want"]),
            "once no rank has a batch left the loop ends, before it yields.",
        ),
        Hint(
            "not None",
            lambda p: _turns_are(p, lambda f: f["together"] and f["got"][: f["own"]] == f["want"][: f["own"]]),
            "a rank that has run out yields None, so that the caller knows; an old batch would be trained on twice.",
        ),
        Hint(
            "batches lost",
            lambda p: p.kind == "turns",
            "every batch is yielded once, in order: each one that you fetch must also be yielded.",
        ),
        Hint(
            "not all take part",
            lambda p: hung(p) or p.kind in ("mismatch", "died", "timeout"),
            "in every turn all ranks of the group call the all-reduce, with `group`, also those that have run out, "
            "until its sum is 0.",
        ),
        Hint(
            "all fetched first",
            lambda p: p.kind == "ahead",
            "the whole of a rank's data may not fit in memory. Fetch the next batch when its turn comes.",
        ),
        Hint(
            "more than one number",
            lambda p: p.kind == "wire",
            "a single all-reduce per turn is enough, of one number: 1 if this rank has a batch, else 0.",
        ),
    ),
)
