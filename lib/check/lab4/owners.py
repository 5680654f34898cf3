"""Lab 4, section 14: owners(costs, N), the rank that owns each matrix.

Right is any assignment whose busiest rank has at most 5 % more than lib's, which has the best
possible in all of these cases.
"""

from lib.check import symptoms as s
from lib.check.causes import hints, of_name
from lib.check.exercise import Exercise
from lib.check.left_out import NO_TENSORS
from lib.check.pure import LEAVES_OUT, iterator
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.zero import muon

# what a square matrix of a layer costs; one that is four times as long costs three times as much
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
FORM = ("something", "a list of ranks", "to go through again")
EACH_ONCE = ("as many as matrices", "ranks from 1", "no such rank")
LOAD = "the load of the busiest rank, within 5 %"


def script(make, case, show):
    costs, N = SIZES[case.what]
    owner = show.run(make, [*costs], N)
    wrong = _misread(owner) or _misplaced(owner, costs, N)
    for name in (*FORM, *EACH_ONCE):
        show(name, wrong.get(name, ""))
    if wrong:
        return
    load = [sum(c for c, o in zip(costs, owner, strict=True) if o == rank) for rank in range(N)]
    show(LOAD, max(load), at_most=True, tolerance=0.05, beside=f"By rank: {load}")
    then = show.run(make, [*costs], N)
    another = f"called twice with the same costs, it returned {owner!r:.40} and {then!r:.40}"
    alike = type(then) is type(owner) and list(then) == list(owner)
    show("another list", "" if alike else another)


def _misread(owner):
    """{one of FORM: what is wrong}, or {}."""
    if owner is None:
        return {"something": "got None, expected a list of ranks"}
    if found := iterator(owner, "matrix {} has"):
        return {"to go through again": found.text}
    if not isinstance(owner, (list, tuple)):
        return {"a list of ranks": f"got {owner!r:.60}, expected a list of ranks"}
    for x in owner:
        if isinstance(x, bool) or not hasattr(x, "__index__"):
            return {"a list of ranks": f"{x!r:.60} in the list is no rank"}
    return {}


def _misplaced(owner, costs, N):
    """{one of EACH_ONCE: what is wrong}, or {}."""
    if len(owner) != len(costs):
        text = f"{len(owner)} ranks for {len(costs)} matrices: {owner!r:.80}"
        return {"as many as matrices": text}
    beyond = next((rank for rank in owner if not 0 <= rank < N), None)
    if beyond is None:
        return {}
    text = f"rank {beyond} owns a matrix; there are ranks 0 to {N - 1}"
    return {"ranks from 1" if beyond == N else "no such rank": text}


MEASURE = SideBySide(script, muon.owners, here(*SIZES), groups=None, excused=NO_TENSORS)
OWNERS = Exercise(
    name="owners", reference=muon.owners, measure=MEASURE, worlds=(), bonus=True,
    leaves_out=LEAVES_OUT,
    claims=claims(
        MEASURE,
        ("one owner each", 1, "as many as matrices, ranks 0 to N-1", *FORM, *EACH_ONCE),
        ("within 5 % of the best", 2, "sizes of GPTs on 1 to 16 ranks", LOAD),
        ("the same on every rank", 1, "called again, the same; arguments left alone"),
    ),
    hints=hints(
        "lab4", "owners",
        nothing_returned=of_name("something"),
        gone_through_once=of_name("to go through again"),
        not_a_list_of_ranks=of_name("a list of ranks"),
        not_one_for_each=of_name("as many as matrices"),
        ranks_from_1=of_name("ranks from 1"),
        no_such_rank=of_name("no such rank"),
        nothing_there=s.raised("IndexError", "ValueError", "ZeroDivisionError"),
        not_balanced=of_name(LOAD),
        another_list_on_each_rank=of_name("another list"),
    ),
)  # fmt: skip
