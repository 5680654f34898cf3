"""Lab 6, section 2: average_over_mesh(sets, mesh, ends, all_reduce), on 8 ranks.

In most cases the gradients are made by hand, so that the verdict can express a wrong one as a sum
of multiples of the ranks' gradients. In the last case they come from a real step of a GPT on
pp=2 dp=2 tp=2. An example of a wrong gradient in the list `sharded`, on rank 0 of pp=2 dp=2 tp=2:

    expected  1/2 of ranks 0 and 2        rank 2 has the same shard of the weight, and other rows
    got       1/2 of ranks 0, 1, 2 and 3  summed over tp too: rank 1 has another shard
"""

from functools import partial

import torch
import torch.distributed as dist

from lib import hybrid
from lib.check.cases import draw, form_of
from lib.check.explain import fraction, shares, who
from lib.check.lab6 import on_a_mesh as given
from lib.check.lab6.on_a_mesh import NAMES, REAL, TURNED, WORLD
from lib.check.shown import calls

CASES = given.cases()
LISTS = {name: f"sets.{name}" for name in NAMES}
LATER, SUMS = "the first gradients later", "what it sums"


def gradient(step, rank, name, i, shape):
    """Rank `rank`'s gradient of a parameter; in step 1 those of rank 1 are all zero."""
    seed = 1000 * step + 100 * NAMES.index(name) + 10 * i + rank
    return (step == 0 or rank != 1) * draw(seed, *shape)


def script(make, case, place, show):
    """Two calls on the same mesh, or one call for a real step."""
    (mesh, ends), show.allowed, show.part = place, None, case.rank(dist.get_rank())
    first = []
    for step in range(1 if case.what == REAL else 2):
        made_up = partial(gradient, step)
        dtype = torch.float32 if case.what == TURNED else torch.float64
        by_hand, nothing = partial(made_up, dist.get_rank()), lambda *args: None
        sets = given.sets_of(case, mesh, nothing, by_hand, dtype)
        everything = given.listed(sets)
        first = first or everything
        show.begin()
        show.run(make, sets, mesh, ends, show.all_reduce)
        show(SUMS, case.listed(given.sums(show.calls)))
        for name, i, p in everything:
            key, nth = f"[{i}].grad", show.times[LISTS[name]] + 1
            libs = show.lib and show.lib.shown[LISTS[name], nth].values[key]
            each = [made_up(rank, name, i, p.shape) for rank in range(WORLD)]
            told = "" if case.what == REAL else of_ranks(p.grad, libs, each)
            show(LISTS[name], {key: p.grad}, beside=told)
        if show.wrong(*LISTS.values()):
            return
    show(LATER, {f"sets.{name}[{i}].grad": p.grad for name, i, p in first})


def of_ranks(got, libs, parts):
    """`It is rank 0's; expected 1/2 of ranks 0 and 2's.`, for example; "" if it is right, or if one
    of the two is not a sum of multiples of the ranks' gradients."""
    if libs is None or form_of(got) != form_of(libs) or torch.equal(got, libs):
        return ""
    told = [_sum_in_words(shares(one, parts) or {}) for one in (got, libs)]
    given = ", as it was given" * torch.equal(got, parts[dist.get_rank()].to(got))
    return f"It is {told[0]}{given}; expected {told[1]}." if all(told) else ""


def _sum_in_words(found):
    said = {}
    for rank, share in found.items():
        said.setdefault(fraction(share), []).append(rank)
    of = lambda share: f"{share} of " * (share != "1")
    return " + ".join(f"{of(share)}{who(ranks)}'s" for share, ranks in said.items())


EXCUSED = {"once more": "two calls stand in each script"}
MEASURE = given.measure(script, hybrid.average_over_mesh, CASES, EXCUSED)
EXERCISE = given.exercise(
    MEASURE,
    ("the gradients of the mean loss", 8, "5 meshes of 8 ranks; pp, dp, tp of 1 to 4",
     ((*LISTS.values(), LATER), given.by_hand(MEASURE))),
    ("as in a single process", 3, "a GPT's backward on pp=2 dp=2 tp=2", *LISTS.values()),
    ("each set over its groups", 3,
     "elements: tied over ends, replicated over tp, all over dp",
     calls(MEASURE, nothing_else=False), SUMS),
    ("parameters left alone", 2, "only .grad changes; the lists stay as they were"),
    leaves_out={"returned": "it returns nothing", "memory": "gradients are summed where they are"},
)  # fmt: skip
