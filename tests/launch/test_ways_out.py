"""What people bring along from other launchers is recognised, and a sentence names the way out."""

import subprocess
import sys
import textwrap
import threading
from importlib import import_module

import brought_along as bring
import pytest
import torch
import torch.distributed as dist
from programs import no_rank_is_left

from lib import launch
from lib.launch import packing, ways_out

pytestmark = pytest.mark.usefixtures("on_gloo")
launcher = import_module("lib.launch.run")
RAISE = [(program, says) for says, programs in bring.RAISE.items() for program in programs]
RETURN = [(program, says) for says, programs in bring.RETURN.items() for program in programs]
LOST = [(program, name) for name, programs in bring.LOST.items() for program in programs]


def ids(rows):
    return [row[0].__name__ for row in rows]


def test_errors_of_habits_from_elsewhere_are_recognised_on_a_rank():
    """All in one run, those that end the group last; each in a run of its own below."""

    def recognised(programs):
        ways = []
        for program in programs:
            try:
                ways.append(f"it returned {program()}")
            except BaseException as error:
                ways.append(ways_out.of_error(str(error)) or str(error))
        return ways

    for (program, says), way in zip(
        RAISE, launch.capture(recognised, [p for p, _ in RAISE], nproc=1)[0], strict=True
    ):
        assert says in way, program.__name__


@pytest.mark.slow
@pytest.mark.parametrize(("program", "says"), RAISE, ids=ids(RAISE))
def test_an_error_of_a_habit_from_elsewhere_names_the_line_and_the_way_out(program, says):
    check_error(program, says)


@pytest.mark.parametrize(
    "program", [bring.init_process_group, bring.to_cuda, bring.types_its_breakpoint]
)
def test_of_three_habits_the_verdict_names_the_line_and_the_way_out(program):
    check_error(program, next(says for one, says in RAISE if one is program))


def check_error(program, says):
    with pytest.raises(launch.RankError) as caught:
        launch.capture(program, nproc=2, timeout=30)
    message = str(caught.value)
    assert says in message and "brought_along.py:" in message and caught.value.kind == "raised", (
        message
    )
    assert no_rank_is_left()


def test_what_exists_on_ranks_alone_is_recognised_when_it_would_be_sent_back():
    """All in one run; each in a run of its own below."""

    def recognised(programs):
        ways = []
        for program in programs:
            try:
                packing.dumps(program(), to_notebook=True)
                ways.append("it was sent")
            except packing.OnRanksAlone as error:
                ways.append(error.way)
        return ways

    around = (
        bring.a_model_around_ddp,
        bring.an_fsdp_block_of_a_model,
        bring.a_layer_of_tensor_parallelism,
    )
    rows = [(program, says) for program, says in RETURN if program not in around]
    for (program, says), way in zip(
        rows, launch.capture(recognised, [p for p, _ in rows], nproc=2)[0], strict=True
    ):
        assert says in f"{way[:1].upper()}{way[1:]}", program.__name__


@pytest.mark.slow
@pytest.mark.parametrize(("program", "says"), RETURN, ids=ids(RETURN))
def test_what_exists_on_ranks_alone_is_refused_with_what_to_return(program, says):
    check_return(program, says)


def test_a_model_in_ddp_is_refused_with_what_to_return():
    check_return(
        bring.a_ddp_model_in_a_tuple,
        "a tuple with a model in DistributedDataParallel, which exists on ranks",
    )
    check_return(bring.a_model_around_ddp, "Return model.state_dict()")


def check_return(program, says):
    with pytest.raises(launch.RankError) as caught:
        launch.capture(program, nproc=2, timeout=30)
    assert says in str(caught.value) and "the function returned " in str(caught.value)


@pytest.mark.parametrize(("program", "name"), LOST, ids=ids(LOST))
def test_what_a_rank_changed_in_its_copy_alone_is_told(program, name, capsys):
    (warning,) = launch.run(program, nproc=2).warnings
    assert warning.startswith(f"{name} was changed on ranks 0 and 1, but not here"), warning
    assert f"`return {name}`" in warning and f"warning: {warning}" in capsys.readouterr().out


def test_so_is_an_argument():
    (warning,) = launch.capture(bring.appends_to_an_argument, [], nproc=2).warnings
    assert warning.startswith("out was changed on ranks 0 and 1")


@pytest.mark.parametrize("program", bring.KEPT)
def test_what_is_returned_printed_or_used_up_on_the_rank_is_not_told(program):
    assert launch.capture(program, nproc=2).warnings == []


@pytest.mark.parametrize(("fn", "args", "instead"), bring.SPAWNED)
def test_a_function_for_mp_spawn_is_recognised(fn, args, instead):
    with pytest.raises(TypeError) as caught:
        launch.run(fn, *args)
    assert "passes the rank as first argument" in str(caught.value) and str(caught.value).endswith(
        f"write {instead}"
    )


def test_one_that_was_given_a_rank_is_told_that_all_have_this_one():
    (warning,) = launch.capture(bring.main, 0, 2, nproc=2).warnings
    assert (
        warning.startswith("main was given rank=0 on all 2 ranks")
        and "rank = dist.get_rank()" in warning
    )
    assert launch.capture(bring.main, 0, 1, nproc=1).warnings == []


@pytest.mark.parametrize(
    ("fn", "args", "says"),
    [
        (
            lambda loader: 1,
            (),
            r"<lambda>\(loader\) cannot be called with \(\): missing a required argument: 'loader'",
        ),
        (
            lambda: 1,
            (3,),
            r"<lambda>\(\) cannot be called with \(3\): too many positional arguments",
        ),
        (dist.get_world_size, (1, 2), "get_world_size.* too many positional"),
        (bring.Meter, (1,), r"Meter\(\) cannot be called with \(1\)"),
        (
            bring.Meter().__init__,
            (1, "x" * 99),
            r"__init__\(\) cannot be called with \(1, 'xxx.*\.\.\.\)",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_told_before_anything_is_launched(fn, args, says):
    with pytest.raises(TypeError, match=says):
        launch.run(fn, *args, nproc=2)


@pytest.mark.parametrize("fn", [max, torch.add, torch.nn.Linear(2, 2), print, bring.Meter])
def test_a_call_that_may_fit_is_let_through(fn):
    assert ways_out.of_call(fn, (1, 2) if fn in (max, torch.add) else ()) == ""


@pytest.mark.parametrize(
    "names", [{"args": (2,), "nprocs": 2}, {"lr": 0.1}, {"world_size": 4}, {"join": True}]
)
def test_unknown_names_are_told_how_arguments_are_passed(names):
    with pytest.raises(TypeError) as caught:
        launch.run(bring.main, **names)
    assert str(caught.value).startswith(
        f"launch.run has no {', '.join(f'{name}=' for name in names)}. The arguments"
    )


@pytest.mark.parametrize("result", [None, 3.0, torch.ones(2), [1.0], "train.py"])
def test_a_call_in_place_of_a_function_is_told(result):
    with pytest.raises(TypeError, match=r"Pass the function itself, without parentheses"):
        launch.run(result, nproc=2)


OUTSIDE = [
    dist.get_rank, dist.get_world_size, dist.barrier, lambda: dist.all_reduce(torch.ones(1)),
    lambda: bring.a_ddp_model(), lambda: dist.send(torch.ones(1), 0), bring.init_process_group,
    bring.init_nccl,
]  # fmt: skip


@pytest.mark.parametrize("called", OUTSIDE)
def test_a_function_for_ranks_called_in_the_notebook_says_so(called):
    with pytest.raises(
        ValueError, match=r"no rank\. Give launch\.run the function without parentheses"
    ):
        launch.run(called(), nproc=2)


@pytest.mark.parametrize("fn", bring.SHELL)
def test_a_shell_line_in_a_function_is_named(fn, monkeypatch):
    # as a shell, cannot be sent
    monkeypatch.setattr(bring, "get_ipython", threading.Lock().__enter__, raising=False)
    with pytest.raises(TypeError) as caught:
        launch.run(fn, nproc=2)
    assert caught.match(
        r"^brought_along.py:\d+: .*get_ipython\(\)[\s\S]*cell of its own before launch.run"
    )


SHORT = [
    (lambda: launch.run(None), "TypeError: launch.run runs a function, not None. Pass"),
    (lambda: launch.run(print, nproc=0), "ValueError: nproc=0: a run needs at least one rank"),
    (lambda: launch.run(print, backend="mpi"), "ValueError: backend='mpi' is not one of"),
    (
        lambda: launch.run(print, nproc=99, backend="nccl"),
        'RuntimeError: backend="nccl" needs one GPU per rank',
    ),
    (
        lambda: launch.run(len, (i for i in "ab")),
        "TypeError: argument 0 (generator) cannot be sent to the ranks",
    ),
    (lambda: launch.run(bring.main), "TypeError: main(rank, world_size) is written for"),
]


@pytest.mark.parametrize(("call", "says"), SHORT)
def test_a_notebook_shows_an_error_of_the_call_without_the_frames_of_lib(call, says):
    with pytest.raises(Exception) as caught:
        call()
    (shown,) = caught.value._render_traceback_()
    assert shown.startswith(says) and shown == f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("name", ["settings_line", "pack", "check_call", "say_once"])
def test_an_error_of_lib_itself_keeps_its_frames(monkeypatch, name):
    def broken(*_):
        raise TypeError("a bug")

    monkeypatch.setattr(launcher, name, broken)
    with pytest.raises(TypeError, match="a bug") as caught:
        launch.run(print, nproc=2)
    assert not hasattr(caught.value, "_render_traceback_")


@pytest.mark.slow
def test_in_a_notebook_a_magic_in_the_function_is_named_in_three_lines(tmp_path):
    cells = [
        "from lib import launch",
        "def listed():\n    x = 1\n    !ls\n    return x",
        "launch.run(listed, nproc=2)",
    ]
    body = (
        "from IPython.core.interactiveshell import InteractiveShell\nshell = "
        "InteractiveShell.instance()\n"
    )
    body += "import sys\nsys.modules['__main__'] = shell.user_module\n"
    body += "".join(f"shell.run_cell({cell!r}, store_history=True)\n" for cell in cells)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)], capture_output=True, text=True, cwd=tmp_path
    )
    said = done.stdout[done.stdout.index("TypeError") :].strip()
    assert (
        "get_ipython().system('ls')" in said
        and "cell of its own" in said
        and len(said.splitlines()) == 2
    ), said
    assert "sqlite3" not in said and "lib/launch" not in done.stdout
