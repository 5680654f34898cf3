"""Ranks whose variables stay: what a cell sees, what an error leaves, and how a session ends."""

import os
import re
import signal
import time

import own_processes
import pytest
import torch

from lib import launch, linux
from lib.launch import sessions, warm

TRIAL = "x = torch.ones(2) * (rank + 1)\nx"


@pytest.fixture(scope="module")
def four():
    """One session for the tests that leave it as it was but for variables."""
    ranks = launch.session(4)
    yield ranks
    ranks.end()


@pytest.fixture
def own():
    """A session that the test may end."""
    made = []

    def start(nproc=2, **settings):
        made.append(launch.session(nproc, **settings))
        return made[-1]

    yield start
    for ranks in made:
        ranks.end()


def pids(ranks):
    """Of all ranks. The agent knows them when it has started the last one, and the first may have
    run a cell by then."""
    deadline = time.monotonic() + 20
    while not ranks._ranks.agent.pids() and time.monotonic() < deadline:
        time.sleep(0.01)
    return ranks._ranks.agent.pids()


def refused(ranks, source, chosen=None):
    with pytest.raises(launch.RankError) as raised:
        ranks.cell(source, chosen)
    return str(raised.value)


def test_variables_stay_and_the_last_expression_is_shown_by_rank(four, capsys):
    four.cell(TRIAL)
    assert "[rank 3] tensor([4., 4.])" in capsys.readouterr().out
    four.cell("dist.all_reduce(x)\ntotal = x[0].item()\nprint('on', rank)")
    assert "[rank 2] on 2\n" in capsys.readouterr().out
    assert four["total"] == [10.0] * 4
    assert all(x.tolist() == [10.0, 10.0] for x in four["x"])
    assert {"x", "total"} <= set(four.names) and "torch" not in four.names
    assert four.ledger is not None


def test_what_a_cell_sent_is_in_the_ledger(four):
    four.cell("dist.all_reduce(torch.ones(8)); dist.barrier()")
    assert [e.op for e in four.ledger.of(1)] == ["all_reduce", "barrier"]


def test_a_cell_on_some_ranks(four, capsys):
    four.cell("only = rank", [0, 2])
    four.cell("'only' in globals()")
    shown = capsys.readouterr().out
    assert [line.split()[-1] for line in shown.splitlines()] == ["True", "False", "True", "False"]
    with pytest.raises(KeyError, match="have no variable 'only'; only ranks 0 and 2 have one"):
        four["only"]
    with pytest.raises(ValueError, match="no rank 5, only ranks 0, 1, 2 and 3"):
        four.cell("1", [5])


def test_no_cell_leaves_a_file_behind(four):
    four.cell("x = 1")
    before = sorted(os.listdir(four._ranks.folder))
    for _ in range(3):
        four.cell("x += 1")
        refused(four, "1 / 0")
    assert sorted(os.listdir(four._ranks.folder)) == before


def test_a_name_that_is_nearly_there_is_named(four):
    four.cell("velocity = 1")
    with pytest.raises(KeyError, match="Did you mean 'velocity'"):
        four["velocty"]


def test_a_value_goes_to_all_ranks_and_a_function_runs_there(four):
    four["given"] = torch.arange(3)
    assert [g.tolist() for g in four["given"]] == [[0, 1, 2]] * 4
    assert four.run(lambda x: x * 2, 21) == [42] * 4
    with pytest.raises(TypeError, match="cannot be called with"):
        four.run(lambda x: x)


def test_random_numbers_go_on_from_cell_to_cell_and_are_the_same_in_every_session(own):
    drawn = []
    for _ in range(2):
        ranks = own(2, seed=3)
        ranks.cell("a = torch.rand(1).item()")
        ranks.cell("b = torch.rand(1).item()")
        drawn.append(ranks["a"] + ranks["b"])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 4


@pytest.mark.parametrize("source", ["x = (", "!ls", "%timeit 1", "def f(:\n  pass"])
def test_a_cell_that_is_no_python_is_refused_before_any_rank_runs(four, source):
    runs = four._ranks.runs
    with pytest.raises(ValueError, match="line 1 of this cell is not valid Python") as raised:
        four.cell(source)
    assert ("are commands of the notebook" in str(raised.value)) == source.startswith(("!", "%"))
    assert four._ranks.runs == runs


def test_a_check_does_not_run_on_ranks(four):
    with pytest.raises(ValueError, match=r"check\.send_recv grades a function that is defined"):
        four.cell("check.send_recv(send_recv)")


def test_where_one_rank_raises_the_others_finish_and_all_variables_stay(four, capsys):
    four.cell("kept = rank * 2")
    text = refused(
        four,
        "import time\nif rank == 1:\n    undefined\ntime.sleep(0.5)\nlate = rank\nprint('done')",
    )
    assert "rank 1 raised NameError" in text and "line 3: undefined" in text
    assert text.endswith("The session continues, and its variables are kept.")
    assert capsys.readouterr().out.count("done") == 3
    assert four["kept"] == [0, 2, 4, 6]
    assert "late" in four.names


def test_ranks_that_wait_for_one_that_raised_are_told_and_go_on(four):
    four.cell(TRIAL)
    text = refused(four, "if rank == 1:\n    1 / 0\ndist.all_reduce(torch.ones(1))")
    assert "rank 1 raised ZeroDivisionError" in text
    assert "meanwhile ranks 0, 2 and 3 were waiting for rank 1 in all_reduce" in text
    assert "The ranks have formed a new process group" in text
    four.cell("dist.all_reduce(x)")
    assert [x.tolist() for x in four["x"]] == [[10.0, 10.0]] * 4


@pytest.mark.parametrize(
    ("source", "chosen", "says"),
    [
        ("dist.recv(torch.ones(1), (rank + 1) % 4)", None, "a cycle: rank 0 -> rank 1"),
        ("if rank: dist.irecv(torch.ones(1), 0).wait()", None, "rank 0 returned while others"),
        ("dist.all_reduce(torch.ones(1))", [0], "Only rank 0 ran this cell"),
        ("if rank == 0: dist.send(torch.ones(1), 1)", None, "rank 0 waits in send to rank 1"),
        ("dist.all_reduce(torch.ones(1 + rank))", None, ""),
        ("g = dist.new_group([0, 1])\nif rank == 0: dist.barrier(g)", None, ""),
    ],
    ids=["cycle", "receives", "alone", "not received", "sizes", "group"],
)  # fmt: skip
def test_a_hang_has_its_verdict_and_the_session_goes_on(four, source, chosen, says):
    four.cell(TRIAL)
    text = refused(four, source, chosen)
    assert says in text and "The session continues, and its variables are kept." in text
    four.cell("dist.all_reduce(x)")
    assert [x.tolist() for x in four["x"]] == [[10.0, 10.0]] * 4


def test_a_typing_error_leaves_groups_and_models_usable(four):
    four.cell(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "pair = dist.new_group([0, 1])\nmodel = DDP(torch.nn.Linear(2, 2))"
    )
    text = refused(four, "modle(torch.ones(1, 2))")
    assert "all 4 ranks raised NameError" in text and "formed a new process group" not in text
    four.cell("model(torch.ones(1, 2)).sum().backward()\nif rank < 2: dist.barrier(pair)")


def test_a_cell_that_is_too_slow_is_interrupted(own):
    ranks = own(2, timeout=1)
    ranks.cell("n = 0")
    text = refused(ranks, "while True:\n    n += 1")
    assert "timeout after 1 s" in text and "line 2: n += 1" in text
    assert text.endswith("its variables are kept.") and all(n > 0 for n in ranks["n"])


def test_sys_exit_ends_the_cell_alone(own):
    ranks = own(2)
    ranks.cell("a = 1")
    assert "called sys.exit" in refused(ranks, "import sys\nsys.exit(3)")
    assert ranks["a"] == [1, 1]


def test_where_a_rank_dies_the_session_ends_and_names_what_is_lost(own):
    ranks = own(2)
    ranks.cell("import os\nmodel = rank\nloss = 0.5")
    family = own_processes.known(pids(ranks))
    text = refused(ranks, "if rank == 1:\n    os._exit(3)\ndist.barrier()")
    assert "rank 1 left with exit code 3" in text
    assert "its variables" not in text and "Its variables loss and model are lost" in text
    assert "ranks = launch.session(2)" in text
    with pytest.raises(RuntimeError, match="Its variables loss and model are lost"):
        ranks.cell("1")
    assert repr(ranks) == "a session on 2 ranks that has ended"
    assert not own_processes.any_is_running(family)


def test_a_rank_that_was_killed_between_two_cells_is_told(own):
    ranks = own(2)
    ranks.cell("a = 1")
    os.kill(pids(ranks)[1], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while ranks._ranks.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match=r"ranks died between two cells\. Its variable a is"):
        ranks["a"]


def test_a_rank_that_cannot_be_interrupted_ends_the_session(own, monkeypatch):
    monkeypatch.setattr(sessions, "LEAVE", 0.5)
    ranks = own(2, timeout=0.5)
    ranks.cell("a = 1")
    text = refused(
        ranks, "import signal, time\nsignal.signal(signal.SIGUSR2, signal.SIG_IGN)\n"
        "while rank: time.sleep(1)"
    )  # fmt: skip
    assert "rank 1 did not respond to the interrupt" in text and "Its variable a is" in text


def test_another_session_on_as_many_ranks_ends_the_first_one(own, capsys):
    first = own(2)
    first.cell("a = 1")
    second, third = own(2), own(3)
    told = capsys.readouterr().out
    assert "This ends the earlier session on 2 ranks. Its variable a is lost." in told
    with pytest.raises(RuntimeError, match="you started another session on 2 ranks"):
        first.cell("1")
    second.cell("b = rank")
    third.cell("b = rank")
    assert (second["b"], third["b"]) == ([0, 1], [0, 1, 2])
    assert launch.run(lambda: 7, nproc=2) == [7, 7]
    assert second["b"] == [0, 1]


def test_a_session_that_rests_too_long_ends(own):
    ranks = own(2)
    ranks.cell("a = 1")
    family = own_processes.known(pids(ranks))
    with warm.one_at_a_time:
        ranks._ranks.used -= warm.IDLE
        warm._keeper.look()
    with pytest.raises(RuntimeError, match=r"no cell ran on it for 30 minutes\. Its variable a is"):
        ranks.cell("a")
    assert not own_processes.any_is_running(family)


def test_without_room_no_session_is_made(monkeypatch, keeper_waits):
    monkeypatch.setattr(linux, "free", lambda: 100 << 20)
    with pytest.raises(MemoryError, match=r"a session of 3 ranks needs about 0\.31 GB"):
        launch.session(3)


def test_the_second_server_does_not_take_the_ranks_of_a_session_along(own):
    ranks = own(2)
    ranks.cell("a = 1")
    with warm.one_at_a_time:
        warm._servers.append(warm.Server([*warm.servers.PRELOAD]))
        warm._servers[-1].start()
        warm._take_over(warm._servers[-1])
    assert launch.run(lambda: 1, nproc=2) == [1, 1]
    assert ranks["a"] == [1, 1]
    ranks.end()
    with warm.one_at_a_time:
        warm._keeper.look()
        assert all(any(r.server is s for r in warm._kept) for s in warm._retired)


@pytest.mark.parametrize("nproc", [0, 2.0, True, "2"])
def test_a_number_of_ranks_that_is_none_is_refused(nproc):
    with pytest.raises((TypeError, ValueError), match="nproc="):
        launch.session(nproc)


def test_no_rank_makes_a_session(four):
    text = refused(four, "from lib import launch\nlaunch.session(2)")
    assert "called inside rank" in text


def test_an_interrupt_leaves_the_next_cell_alone(own):
    ranks = own(2)
    for number in range(3):
        ranks.timeout = 0.3
        refused(ranks, "while True:\n    pass")
        ranks.timeout = 60
        ranks.cell(f"import time\ntime.sleep(0.4)\na = {number}")
        assert ranks["a"] == [number, number]


def test_a_warning_of_the_ledger_is_printed(own, capsys):
    ranks = own(2)
    ranks.cell("work = dist.all_reduce(torch.ones(1), async_op=True)")
    shown = capsys.readouterr().out
    assert re.search("warning: .*wait", shown), shown
    ranks.cell("work.wait()")
