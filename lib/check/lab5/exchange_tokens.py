"""Lab 5, section 6: exchange_tokens(routed_tokens, send_counts, receive_counts, group, all_to_all),
which sends each routed token to its rank, and its gradient back.

In two cases a second exchange follows before backward begins. It sends either the same rows back to
the ranks that they came from, or other rows within a smaller group.
"""

from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.lab3 import groups as g
from lib.check.shown import calls
from lib.check.tensors import draw
from lib.moe import exchange as libs

D = 3
TO_ONE, HOME, NONE = "all to rank 0", "a second exchange, home", "no rows"
NO_GRADIENT = "rows that need no gradient"
# rows from rank i to rank j; a smaller group uses the upper left corner
UNEVEN = [[2, 3, 1, 2], [1, 4, 2, 0], [0, 0, 0, 0], [5, 1, 0, 3]]
COUNTS = {  # rank 2 has nothing to do in TO_ONE
    TO_ONE: [[3, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]],
    NONE: [[0] * g.WORLD] * g.WORLD,
}
CASES = tuple(Setting(m) for m in g.GROUPS) + tuple(
    Setting(g.ALL, what=what) for what in (TO_ONE, HOME, g.AT_ONCE, NONE, NO_GRADIENT)
)
CALLED, SENT = "all_to_all called for rows", "elements sent to other ranks"
LISTS = "arguments, the lists after backward"


def given(case, show, N, rank, of):
    """(a rank's routed tokens, [rows to each rank], [rows from each rank]). of: the suffix of the
    names in a second exchange. The rows of a pair of ranks have another width."""
    counts = COUNTS.get(case.what, UNEVEN)
    send, receive = counts[rank][:N], [counts[i][rank] for i in range(N)]
    x = draw(100 * N + 10 * rank + 5 * bool(of) + case.again, sum(send), D - of.endswith("pair"))
    return show.give(f"routed_tokens{of}", x, learns=case.what != NO_GRADIENT), send, receive


def script(make, case, groups, show):
    show.begin("forward")
    ys, lists = [], []
    for group, N, rank, of in g.calls(show, groups):
        x, send, receive = given(case, show, N, rank, of)
        lists += [send, receive]
        y = show.run(make, x, send, receive, group, show.all_to_all)
        show(f"what arrived{of}", y)
        if show.wrong(f"what arrived{of}"):
            return
        if case.what == HOME:
            y = show.run(make, y, [*receive], [*send], group, show.all_to_all)
            show("what came home", y)
            if show.wrong("what came home"):
                return
        ys.append(y)
    show_sent(show, "forward")
    yield
    show.begin("backward")
    show.backward(*ys)
    show_sent(show, "backward")
    show(LISTS, str(lists))  # after backward, which also uses them


def show_sent(show, way):
    """Show how many elements this rank has sent to other ranks, in any number of messages, and
    whether it called all_to_all for rows at all."""
    sent, called = {"of rows": 0, "of counts": 0}, False
    for call in (one for one in show.all_calls if one.phase == way):
        is_rows = call.dtype.is_floating_point
        called |= is_rows
        if call.elements:
            to, here = call.counts[: len(call.ranks)], call.ranks.index(show.rank)
            leaving = call.elements * (sum(to) - to[here]) // sum(to)
            sent["of rows" if is_rows else "of counts"] += leaving
    show(CALLED, called)
    show(SENT, sent)


EXCUSED = {"alive": "what backward keeps is free"}
MEASURE = g.measure(script, libs.exchange_tokens, CASES, excused=EXCUSED)
EXCHANGE_TOKENS = MEASURE.exercise(
    ("rows to their ranks", 3, f"{g.GROUPS_SAY}; uneven, none",
     "what arrived", "what came home", "what arrived, the pair"),
    ("gradients the same way back", 4, "also through two exchanges",
     "routed_tokens", "routed_tokens, the pair", "graph"),
    ("each row once, each way", 2, "elements, by the all_to_all it was given",
     calls(MEASURE, nothing_else=False), CALLED, SENT),
    ("rows and counts left alone", 1, ""),
    hints=hints("lab5", "exchange_tokens", "exchanges"), worlds=(g.WORLD,), may_call=MAY_CALL,
    leaves_out={
        "generators": "the counts are lists, as the notebook gives them",
        "memory": "it makes what it returns",
    },
)  # fmt: skip
