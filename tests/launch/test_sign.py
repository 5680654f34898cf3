"""The sign of life: what the ranks do, in a line, for a person who waits."""

from types import SimpleNamespace

from lib import frontend
from lib.launch import sign
from lib.ledger.log import RETURNED, RUNNING

CELL = "/tmp/ipykernel_7/1.py"


def head(state):
    return SimpleNamespace(state=state, pid=0)


def waiting(op, line, file=CELL):
    return SimpleNamespace(entry=SimpleNamespace(op=op, file=file, line=line, function="f"))


def test_ranks_that_do_the_same_are_told_together():
    heads = [head(RUNNING)] * 3 + [head(RETURNED)]
    found = {0: [("/x/torch/a.py", 9, "g"), (CELL, 6, "f")], 1: [(CELL, 6, "f")]}
    told = sign.doing(heads, {2: waiting("recv", 4)}, found)
    assert told == (
        "ranks 0 and 1 compute at line 6; rank 2 waits in recv at line 4; rank 3 has returned; "
        "stop shows who waits for whom"
    )


def test_a_line_that_is_not_in_the_notebook_is_not_named():
    told = sign.doing([head(RUNNING)], {}, {0: [("/lib/ring.py", 9, "g")]})
    assert told == "rank 0 computes; stop shows where"
    told = sign.doing([head(RUNNING)], {0: waiting("recv", 7, "/lib/ring.py")}, {})
    assert told == "rank 0 waits in recv; stop shows who waits for whom"


def test_ranks_that_are_being_started_are_counted():
    told = sign.doing([head(RUNNING), head(0)], {}, {})
    assert told == "1 of 2 ranks have begun, and the others are being started"


def test_where_nobody_looks_no_rank_is_asked_and_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(frontend, "_publish", None)
    with sign.Sign("/nowhere", None, True) as line:
        line.began -= 100
        line.look()
    assert line.line.text == ""
