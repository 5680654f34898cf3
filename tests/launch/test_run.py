"""launch.run: values come back, prints come out, and nothing outlives it, whatever happens
to the kernel."""

import io
import os
import random
import re
import signal
import sys
import time
from importlib import import_module

import cloudpickle
import numpy as np
import own_processes
import psutil
import pytest
import torch
import torch.distributed as dist
from programs import eventually, finish

from lib import backend, launch


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 8])
def test_results_come_back_in_rank_order(nproc, request):
    backend = request.config.getoption("--backend")

    def who(offset):
        return offset + dist.get_rank(), dist.get_world_size()

    if backend.startswith("nccl") and nproc > torch.cuda.device_count() * (
        2 if backend == "nccl-shared" else 1
    ):
        pytest.skip(f"{nproc} ranks need more GPUs than there are")
    assert launch.capture(who, 10, nproc=nproc, backend=backend) == [
        (10 + rank, nproc) for rank in range(nproc)
    ]


def test_tensors_lambdas_and_closures_travel_both_ways():
    scale = torch.tensor(3.0)

    def fn(x, f):
        return {"scaled": f(x) * scale, "rank": dist.get_rank(), "back": lambda y: y + 1}

    results = launch.capture(fn, torch.arange(3.0), lambda x: x + 1, nproc=2)
    assert torch.equal(results[1]["scaled"], torch.tensor([3.0, 6.0, 9.0]))
    assert results[1]["rank"] == 1 and results[0]["back"](1) == 2


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * gradient


def gradient_of_twice():
    x = torch.ones(3, requires_grad=True)
    Twice.apply(x).sum().backward()
    return x.grad.tolist()


def test_an_autograd_function_that_is_differentiable_once_travels():
    assert launch.capture(gradient_of_twice, nproc=1) == [[2.0, 2.0, 2.0]]


def test_a_large_result_comes_back():
    results = launch.capture(lambda: torch.ones(5_000_000), nproc=2)
    assert [r.sum().item() for r in results] == [5e6, 5e6]


def test_prints_are_shown_in_rank_order_with_the_rank(capsys):
    def fn():
        print(f"hello from {dist.get_rank()}")
        sys.stderr.write("to stderr\n")

    launch.run(fn, nproc=3)
    out, err = capsys.readouterr()
    lines = [line for line in out.splitlines() if line.startswith("[rank")]
    assert lines == [f"[rank {r}] hello from {r}" for r in range(3)]
    assert err.splitlines() == [f"[rank {r}] to stderr" for r in range(3)]


def test_what_the_ranks_run_on_is_said_once_and_so_is_that_cells_differ(monkeypatch, capsys):
    """Four GPUs: a cell with 4 ranks is on them, one with 8 is not, and so on."""
    module = import_module("lib.launch.run")
    monkeypatch.setattr(module, "_said", set())
    for nproc in (4, 8, 4, 2, 8):
        module.say_once(backend.choose("auto", nproc, gpus=4))
    assert capsys.readouterr().out.splitlines() == [
        "4 ranks: nccl, one GPU each (4 x GPU)",
        "8 ranks: gloo, on the CPU (4 GPUs for 8 ranks)",
        "(Other cells ran elsewhere: do not compare their times, nor random numbers without a "
        "seed.)",
    ]


def test_without_a_ledger_there_is_none():
    assert launch.capture(lambda: 1, nproc=2, ledger=False).ledger is None


def test_a_rank_runs_on_one_thread():
    assert launch.capture(torch.get_num_threads, nproc=2) == [1, 1]


def drawn():
    first = (
        torch.rand(1).item(),
        torch.rand(1, device=backend.device()).item(),
        np.random.rand(),
        random.random(),
    )
    weights = torch.nn.Linear(2, 1).weight.tolist()
    order = list(torch.utils.data.RandomSampler(range(50)))
    dropped = torch.nn.Dropout()(torch.ones(50)).tolist()
    mixed = list(range(50)), np.random.permutation(50).tolist(), torch.randperm(50).tolist()
    random.shuffle(mixed[0])
    torch.manual_seed(3)
    return *first, *map(str, (weights, order, dropped, *mixed)), torch.rand(1).item()


def test_random_numbers_differ_by_rank_and_repeat_from_run_to_run():
    """As under torchrun; and a number that all ranks seed with gives all of them the same."""
    runs = [
        launch.capture(drawn, nproc=nproc, fresh=fresh)
        for nproc, fresh in ((3, False), (3, False), (2, True))
    ]
    assert runs[0] == runs[1] and runs[0][:2] == runs[2]
    by_kind = [
        set(values)
        for values in zip(*runs[0], *launch.capture(drawn, nproc=3, seed=1), strict=True)
    ]
    # the next base seed's ranks differ, too
    assert [len(values) for values in by_kind] == [6] * 10 + [1]


def trains_without_a_broadcast():
    """No seed, no broadcast: replicas begin apart, and an averaged gradient keeps them apart."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 2)).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.tolist()


def test_a_forgotten_broadcast_is_seen():
    one, other = launch.capture(trains_without_a_broadcast, nproc=2, backend="gloo")
    assert one != other


def test_prints_stream_while_ranks_run(tmp_path, monkeypatch):
    """A rank goes on when its line has been seen here."""

    def fn():
        for i in range(4):
            print("tick", i)
            while not os.path.exists(f"{tmp_path}/[rank {dist.get_rank()}] tick {i}"):
                time.sleep(0.01)

    class Screen(io.StringIO):
        def write(self, text):
            if "tick" in text:
                (tmp_path / text).touch()
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Screen())
    launch.run(fn, nproc=2, backend="gloo")
    assert sys.stdout.getvalue().count("tick") == 8


@pytest.mark.slow
def test_a_script_without_a_main_guard_launches_once_and_an_edit_to_lib_is_seen_by_the_next_launch(
    program,
):
    """The forkserver holds torch and nothing of lib: no module of lib may be in a rank before its
    first import.

    In a program of its own, for the tests' own ranks start with some of lib (tests/conftest.py).
    """
    process = program("""
        import sys
        import torch.distributed as dist
        from lib import launch
        print("top of the script")
        print(launch.run(lambda: dist.get_rank(), nproc=2))
        launch.capture(lambda: sorted(m for m in sys.modules if m.startswith("lib")), nproc=2)
        print(launch.capture(lambda: "lib.collectives" in sys.modules or \
"lib.training.model" in sys.modules, nproc=2))
    """)
    code, out, err = finish(process)
    assert code == 0, err
    assert (
        out.count("top of the script") == 1 and "[0, 1]" in out and out.endswith("[False, False]\n")
    )
    assert err == ""


LOOP = """
    import os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  \
# a shell may have started the tests with it ignored
    import torch.distributed as dist
    from lib import launch
    def fn():
        open(f"{folder}/pid{dist.get_rank()}", "w").write(str(os.getpid()))
        while True:
            time.sleep(0.01)
    def blocked():
        import torch
        open(f"{folder}/pid{dist.get_rank()}", "w").write(str(os.getpid()))
        time.sleep(0.5)
        if dist.get_rank() == 0:
            time.sleep(1000)
        dist.recv(torch.empty(1), 0)
    folder = os.environ["FOLDER"]
"""


def rank_pids(folder, nproc):
    assert eventually(
        lambda: all(
            (folder / f"pid{r}").exists() and (folder / f"pid{r}").read_text() for r in range(nproc)
        ),
        300,
    )
    return [int((folder / f"pid{r}").read_text()) for r in range(nproc)]


def test_the_stop_button_ends_the_ranks_and_the_next_launch_works(program, tmp_path):
    """Ranks that loop, then ranks that are blocked, in one program."""
    process = program(
        LOOP
        + """
    for f in (fn, blocked):
        folder = os.path.join(os.environ["FOLDER"], f.__name__)
        try:
            launch.run(f, nproc=3)
        except KeyboardInterrupt:
            print("stopped", flush=True)
        print("again", launch.run(lambda: dist.get_rank(), nproc=2), flush=True)
    """,
        FOLDER=str(tmp_path),
    )
    for name in ("fn", "blocked"):
        (tmp_path / name).mkdir()
    for name in ("fn", "blocked"):
        ranks = own_processes.known(rank_pids(tmp_path / name, 3))
        time.sleep(0.6)
        os.killpg(process.pid, signal.SIGINT)  # Jupyter interrupts the whole process group
        assert eventually(lambda ranks=ranks: not own_processes.any_is_running(ranks))
    code, out, err = finish(process)
    assert code == 0, err
    assert re.findall("^stopped$|again .*", out, re.MULTILINE) == ["stopped", "again [0, 1]"] * 2
    assert len(re.findall(r"^stopped after \d+ s: no rank waited for another$", out, re.M)) == 1
    assert len(re.findall(r"^stopped after \d+ s: not every rank had finished$", out, re.M)) == 1
    assert len(re.findall(r"^  rank \d waits in recv from rank ", out, re.M)) >= 1


@pytest.mark.slow
def test_stop_during_the_first_launch_prints_no_traceback_of_the_forkserver(program):
    process = program(
        LOOP
        + """
    import threading
    def stop():
        time.sleep(0.3)                      # the forkserver is importing torch now
        os.killpg(0, signal.SIGINT)
    threading.Thread(target=stop).start()
    try:
        launch.run(fn, nproc=2)
    except KeyboardInterrupt:
        print("stopped")
    print("again", launch.run(lambda: dist.get_rank(), nproc=2))
    """,
        FOLDER="",
    )
    code, out, err = finish(process)
    assert code == 0, err
    assert "stopped" in out and "again [0, 1]" in out
    assert err == ""


AT_ANY_MOMENT = """
    import random, threading
    def short():
        time.sleep(0.2)
        dist.barrier()
    for k in range(int(os.environ["STOPS"])):
        after = random.Random(k).random() * (4 if k < 2 else 0.4)
        timer = threading.Timer(after, os.kill, [os.getpid(), signal.SIGINT])
        said, through = "", False
        try:
            timer.start()
            try:
                launch.run(short, nproc=2)
                through = True
            except KeyboardInterrupt as stop:
                said = "".join(getattr(stop, "_render_traceback_", lambda: [])())
            timer.join()
            time.sleep(0.05)
        except KeyboardInterrupt:  # it came after the run
            through = True
        assert through or said == "KeyboardInterrupt: stopped, and the ranks have been ended", \
(k, said)
    print("again", launch.run(lambda: dist.get_rank(), nproc=2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("stops", ["4", "20"])
def test_a_stop_at_any_moment_is_told_in_a_line(program, stops):
    code, out, err = finish(program(LOOP + AT_ANY_MOMENT, FOLDER="", STOPS=stops))
    assert (code, err) == (0, "") and "again [0, 1]" in out, err


def test_a_killed_kernel_leaves_no_rank_and_no_forkserver(program, tmp_path):
    process = program(LOOP + "\n    launch.run(fn, nproc=3)\n", FOLDER=str(tmp_path))
    pids = rank_pids(tmp_path, 3)
    family = psutil.Process(process.pid).children(recursive=True)
    assert set(pids) <= {p.pid for p in family}
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert eventually(lambda: not own_processes.any_is_running(family)), family


@pytest.mark.slow
def test_two_kernels_launch_at_once(program):
    body = """
        import torch, torch.distributed as dist
        from lib import launch
        def fn(k):
            x = torch.full((1000,), float(k))
            for _ in range(20):
                dist.all_reduce(x)
                x /= dist.get_world_size()
            return x[0].item()
        for i in range(3):
            print(launch.run(fn, K, nproc=3))
    """
    processes = [program(body.replace("K,", f"{k},")) for k in (1, 2)]
    for k, process in zip((1, 2), processes, strict=True):
        code, out, err = finish(process)
        assert code == 0, err
        assert out.count(f"[{float(k)}, {float(k)}, {float(k)}]") == 3


def test_results_survive_pickling_by_the_user():
    results = launch.capture(lambda: dist.get_rank(), nproc=2)
    assert list(cloudpickle.loads(cloudpickle.dumps(list(results)))) == [0, 1]
