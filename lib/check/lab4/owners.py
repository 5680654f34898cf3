"""Lab 4, section 14: owners(costs, N), the rank that owns each matrix.

An assignment is right if its busiest rank has at most 5 % more load than the busiest rank of lib's
assignment, which has the lowest possible load in all of these cases.
"""

from lib.check.cases import form_of
from lib.check.causes import hints
from lib.check.explain import cut
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.zero import muon

# the cost of a square matrix; a matrix that is four times as long costs three times as much
D = 6


def _gpt(layers, kv=D):
    return (D, kv, kv, D, 3 * D, 3 * D) * layers


SIZES = {  # what it is: (costs in the order of the model, ranks)
    "4 layers, 4 ranks": (_gpt(4), 4),
    "4 layers, 3 ranks": (_gpt(4), 3),
    "3 layers, 2 ranks": (_gpt(3), 2),
    "12 layers, 16 ranks": (_gpt(12), 16),
    "small keys and values, 8 layers, 4 ranks": (_gpt(8, 1), 4),
    "small keys and values, 2 layers, 5 ranks": (_gpt(2, 1), 5),
    "a large matrix last": ((10, 20, 30, 10, 20, 90), 2),
    "more ranks than matrices": ((4, 9, 2), 5),
    "one rank": ((3, 1, 2), 1),
    "no matrices": ((), 3),
}
FORM = A_LIST, ONE_EACH, RANKS = "a list of ranks", "one for each", "ranks that there are"
LOAD = "the load of the busiest rank, within 5 %"


def script(make, case, show):
    costs, N = SIZES[case.what]

    def asked():
        show.run(make, [10**6], N)  # the next call must not depend on this one
        return show.run(make, [*costs], N)

    owner, then = asked(), asked()
    if show.said(FORM, _misread(owner, costs, N)):
        return
    another = f"called twice with the same costs, it returned {cut(owner, 40)} and {cut(then, 40)}"
    alike = not _misread(then, costs, N) and [*then] == [*owner]
    show("another list", "" if alike else another)
    if show.wrong("another list"):
        return
    load = [sum(c for c, o in zip(costs, owner, strict=True) if o == rank) for rank in range(N)]
    show(LOAD, max(load), at_most=True, tolerance=0.05, beside=f"By rank: {load}")


def _misread(owner, costs, N):
    """{which of FORM is wrong: in words}, or {}."""
    if not isinstance(owner, (list, tuple)):
        return {A_LIST: f"got {form_of(owner)}, expected a list of ranks"}
    if len(owner) != len(costs):
        return {ONE_EACH: f"{len(owner)} ranks for {len(costs)} matrices: {cut(owner)}"}
    for rank in owner:
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            return {A_LIST: f"{cut(rank, 60)} in the list is no rank"}
        if not 0 <= rank < N:
            return {RANKS: f"rank {rank} owns a matrix; there are ranks 0 to {N - 1}"}
    return {}


MEASURE = SideBySide(script, muon.owners, here(*SIZES), groups=None, excused=NO_TENSORS)
OWNERS = MEASURE.exercise(
    ("one owner each", 1, "as many as matrices, ranks 0 to N-1", *FORM),
    ("within 5 % of the best", 2, "sizes of GPTs on 1 to 16 ranks", LOAD),
    ("the same on every rank", 1, "called again, the same; arguments left alone"),
    hints=hints("lab4", "owners"), bonus=True, leaves_out=LEAVES_OUT,
)  # fmt: skip
