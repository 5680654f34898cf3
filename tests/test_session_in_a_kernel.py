"""%%ranks and breakpoint() as a person meets them: a real kernel, its stop button, its prompt."""

import re

import own_processes
import pytest
from own_kernel import Kernel, printed, red, signs

SETUP = "import os, time, torch, torch.distributed as dist\nfrom lib import check, launch"
FUNCTION = """
def f(a):
    b = a + dist.get_rank()
    breakpoint()
    dist.barrier()
    return b
"""


@pytest.fixture(scope="module")
def kernel():
    made = Kernel()
    made.run(SETUP)
    made.run(FUNCTION)
    yield made
    made.close()


def prompts(messages):
    return [one["prompt"] for one in messages if one["kind"] == "prompt"]


def test_without_a_session_the_magic_says_how_to_make_one(kernel):
    told = red(kernel.run("%%ranks\n1"))
    assert "ranks = launch.session(4)` in a cell of its own first" in told


def test_a_cell_runs_on_the_ranks_and_its_lines_are_those_of_the_cell(kernel):
    assert "a session on 2 ranks" in str(kernel.run("ranks = launch.session(2)\nranks"))
    assert "[rank 1] 3\n" in printed(kernel.run("%%ranks\nx = rank + 2\nx"))
    assert "[2, 3]" in printed(kernel.run("print(ranks['x'])"))
    assert "line 3: undefined" in red(kernel.run("%%ranks\nx\nundefined"))
    assert "line 2 of this cell is not valid Python" in red(kernel.run("%%ranks\nx ="))
    assert "no rank 5" in red(kernel.run("%%ranks 5\nx"))
    assert "'o' is not a rank" in red(kernel.run("%%ranks 0,o\nx"))
    assert "no variable 'pair' holds a session" in red(kernel.run("%%ranks pair 0\nx"))
    assert printed(kernel.run("%%ranks ranks 1\nx")) == "[rank 1] 3\n"


def test_stop_keeps_the_variables_and_says_where_the_ranks_were(kernel):
    kernel.run("ranks = launch.session(2)")
    kernel.run("%%ranks\nx = rank + 2")
    told = kernel.run(
        "%%ranks\nif rank == 0: dist.recv(torch.ones(1), 1)\nwhile rank:\n    x = x",
        stop_at=lambda seen: len(signs(seen)) > 1,
    )
    assert re.search(r"rank 0 waits in recv from rank 1 .*line 2: if rank == 0", printed(told))
    assert re.search(r"rank 1 computes .*: line [34]: ", printed(told))
    assert any("image/png" in one.get("data", {}) for one in told) or "lib.plots" not in printed(
        told
    )
    assert "stopped. The session continues, and its variables are kept." in red(told)
    assert "[2, 3]" in printed(kernel.run("print(ranks['x'])"))
    assert "[rank 1] [2.0]" in printed(
        kernel.run("%%ranks\nt = torch.ones(1)\ndist.all_reduce(t)\nt.tolist()")
    )


def test_where_nobody_looks_it_works_the_same(kernel):
    kernel.run("ranks = launch.session(2)", attended=False)
    told = kernel.run("%%ranks\ny = rank\ny", attended=False)
    assert printed(told) == "[rank 0] 0\n[rank 1] 1\n"
    told = red(kernel.run("%%ranks\nbreakpoint()", attended=False))
    assert "breakpoint() needs someone at the keyboard" in told
    assert "[0, 1]" in printed(kernel.run("print(ranks['y'])", attended=False))


def test_a_graded_function_cannot_use_a_session(kernel):
    kernel.run("ranks = launch.session(2)")
    kernel.run(
        "from lib import check\n"
        "def model_state_bytes(parameters, precision):\n    return ranks.run(lambda: 1)[0]"
    )
    told = str(kernel.run("check.model_state_bytes(model_state_bytes)"))
    assert "a graded function cannot use a session" in told
    assert "check.send_recv grades a function that is defined in the notebook" in red(
        kernel.run("%%ranks\ncheck.send_recv(None)")
    )


def test_a_breakpoint_asks_one_rank_after_the_other(kernel):
    told = kernel.run(
        "launch.run(f, 3, nproc=2)",
        answers=["p b", "rank 1", "p b", "w", "rank 7", "c", "rank 1", "c"],
    )
    first = int(prompts(told)[0][6])
    assert prompts(told)[0] == f"(rank {first}) "
    text = printed(told)
    assert f"[rank {first}] > line 4 of f: dist.barrier()" in text
    assert "[rank 1] 4" in text and "there is no rank 7 among ranks 0 and 1" in text
    assert "worker" not in text and "lib" not in text
    assert any("[3, 4]" in str(one.get("data")) for one in told)


def test_a_rank_at_no_breakpoint_is_said_to_wait(kernel):
    kernel.run(
        "def g():\n    if dist.get_rank():\n        breakpoint()\n    dist.barrier()\n    return 5"
    )
    told = kernel.run("launch.run(g, nproc=2)", answers=["rank 0", "ll", "n", "n", "c"])
    assert set(prompts(told)) == {"(rank 1) "}
    assert "rank 0 is not at a breakpoint: it is waiting in barrier" in printed(told)
    assert "->\t    dist.barrier()" in printed(told)  # a cell's source, on the rank
    assert any("[5, 5]" in str(one.get("data")) for one in told)


def test_time_at_a_prompt_does_not_count(kernel):
    kernel.run("import lib.launch.debugger as d\nplain = d.Prompt._turn")
    kernel.run(
        "def slow(self, rank):\n    time.sleep(3)\n    plain(self, rank)\nd.Prompt._turn = slow"
    )
    told = kernel.run("launch.run(f, 3, nproc=2, timeout=2)", answers=["c", "c"])
    kernel.run("d.Prompt._turn = plain")
    assert any("[3, 4]" in str(one.get("data")) for one in told), red(told)


def test_q_leaves_a_run_and_ends_its_ranks(kernel):
    kernel.run("from lib.launch import warm")
    told = kernel.run("launch.run(f, 3, nproc=2)", answers=["q"])
    assert red(told) == (
        "KeyboardInterrupt: you quit the debugger with q, and the ranks have been ended"
    )
    assert "[7, 7]" in printed(kernel.run("print(launch.run(lambda: 7, nproc=2))"))


def test_q_leaves_a_cell_of_a_session_whose_variables_stay(kernel):
    kernel.run("ranks = launch.session(2)")
    told = kernel.run("%%ranks\ny = rank * 2\nbreakpoint()\nz = 3", answers=["p y", "y = 9", "q"])
    assert "> line 4: z = 3" in printed(told)
    assert "with q. The session continues, and its variables are kept." in red(told)
    assert sorted(eval(printed(kernel.run("print(ranks['y'])")))) in ([0, 9], [2, 9])
    assert "variables y" in printed(kernel.run("print(ranks)"))


def test_stop_at_a_prompt_is_a_stop(kernel):
    told = kernel.run("launch.run(f, 3, nproc=2)", stop_at=lambda seen: bool(prompts(seen)))
    assert "KeyboardInterrupt: stopped, and the ranks have been ended" in red(told)


def test_after_a_line_that_raises_nothing_of_lib_is_stepped_through(kernel):
    kernel.run("def wrong():\n    breakpoint()\n    1 / 0")
    told = kernel.run("launch.run(wrong, nproc=1)", answers=["n"] * 20)
    assert len(prompts(told)) < 6 and "rank 0 raised ZeroDivisionError" in red(told)
    assert all("line 3 of wrong" in line for line in printed(told).splitlines() if "] > " in line)


def test_torchs_own_breakpoint_stops_the_rank_that_it_names(kernel):
    kernel.run("def h():\n    dist.breakpoint(1)\n    dist.barrier()\n    return 6")
    told = kernel.run("launch.run(h, nproc=2)", answers=["c"])
    assert prompts(told) == ["(rank 1) "]
    assert any("[6, 6]" in str(one.get("data")) for one in told)


def test_a_breakpoint_in_a_checked_function_asks_too(kernel):
    kernel.run(
        "def send_recv(tensor, to, frm, group=None, out=None):\n    breakpoint()\n    return tensor"
    )
    told = kernel.run("check.send_recv(send_recv)", answers=["p tensor.dtype", "q"])
    assert "float" in printed(told) and prompts(told)
    assert "KeyboardInterrupt" in red(told)


def test_two_kernels_at_once_and_none_of_their_ranks_is_left(kernel):
    mark = own_processes.new_mark()
    second = Kernel(**{own_processes.MARK: mark})
    try:
        second.run(SETUP)
        second.run("ranks = launch.session(3)")
        kernel.run("ranks = launch.session(2)")
        second.run("%%ranks\nw = rank * 10")
        kernel.run("%%ranks\nw = rank")
        assert "[0, 10, 20]" in printed(second.run("print(ranks['w'])"))
        told = second.run(
            "%%ranks\nwhile True:\n    w += 1", stop_at=lambda seen: len(signs(seen)) > 0
        )
        assert "its variables are kept" in red(told)
        assert "[0, 1]" in printed(kernel.run("print(ranks['w'])"))
        assert own_processes.running(mark)
    finally:
        second.close()
    assert not own_processes.left(mark, seconds=30)
