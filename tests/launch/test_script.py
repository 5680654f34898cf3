"""A function of a notebook as a file for torchrun."""

import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch

from lib import launch
from lib.launch import script


def test_the_import_lines_that_every_script_has_import_what_they_name():
    for name, (thing, line) in script.NEEDED.items():
        names = {}
        exec(line, names)
        assert names[name] is thing, line


@pytest.mark.slow
def test_a_function_becomes_a_script_that_torchrun_runs(tmp_path):
    body = f"""
        import torch
        import torch.distributed as dist
        from lib import launch
        FACTOR = 3
        def scaled(x):
            return x * FACTOR
        def draw():
            return torch.rand(1).item()
        def total(n):
            x = scaled(torch.ones(n))
            dist.all_reduce(x)
            return x.sum().item()
        print(launch.as_script(total, r"{tmp_path}/total.py", 5, nproc=2))
        print(launch.as_script(draw, r"{tmp_path}/draw.py", nproc=2, seed=7))
        print(*launch.capture(draw, nproc=2, backend="gloo", seed=7))
    """
    path = tmp_path / "cell.py"
    path.write_text(textwrap.dedent(body))
    said = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    command, command_to_draw, drawn = (line.split() for line in said[-3:])
    assert command[:4] == ["torchrun", "--standalone", "--nproc-per-node", "2"]
    logs = tmp_path / "logs"
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command[1:]], capture_output=True,
        text=True, timeout=120,
        env={**os.environ, "LEDGER_DIR": str(logs), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert sorted(re.findall(r"\[rank \d\] 30\.0", ran.stdout)) == [
        "[rank 0] 30.0",
        "[rank 1] 30.0",
    ]
    judged = subprocess.run(
        [sys.executable, "-m", "lib.ledger", logs], capture_output=True, text=True
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "the logs agree" in judged.stdout
    again = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command_to_draw[1:]], capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert sorted(again.stdout.split("\n"))[-2:] == [f"[rank {r}] {drawn[r]}" for r in range(2)]


CELLS = [
    "import contextlib\nimport torch\nimport torch.distributed as dist\nfrom torch import nn\nfrom "
    "lib import launch",
    """
WIDTH = 3
def check(n=WIDTH):
    return n
class Base(nn.Module):
    def __init__(self, module, width=WIDTH):
        super().__init__()
        self.module, self.width = module, width
    @contextlib.contextmanager
    def doubled(self):
        yield 2 * check()
class Wrapper(Base):
    @torch.no_grad()
    def forward(self, x):
        with self.doubled() as two:
            return self.module(x) * 0 + two
Chosen = Wrapper
requires_grad = torch.ones(1)  # also the name of an attribute that total() reads
""",
    """
def total():
    x = Chosen(nn.Linear(1, 1))(torch.ones(1))
    dist.all_reduce(x)
    return 0 if x.requires_grad else x.item()
""",
    "print(launch.as_script(total, 'total.py', nproc=1))",
]


@pytest.mark.slow
def test_the_classes_of_a_notebook_go_into_the_script(tmp_path):
    """`inspect` finds no class that was typed into a cell; bases, decorators, super() and
    aliases need care."""
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\nshell = "
        "InteractiveShell.instance()\n"
    )
    script += "import sys\nsys.modules['__main__'] = shell.user_module\n"
    script += "".join(
        f"shell.run_cell({cell!r}, store_history=True).raise_error()\n" for cell in CELLS
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "total.py").read_text()
    assert (
        text.index("class Base")
        < text.index("class Wrapper")
        < text.index("Chosen = Wrapper")
        < text.index("def to")
    )
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *done.stdout.split()[1:]],
        capture_output=True, text=True,
        cwd=tmp_path, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "[rank 0] 6.0" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_breakpoint_under_torchrun_raises_a_sentence_and_waits_for_no_one(tmp_path):
    body = f"""
        from lib import launch
        def main():
            breakpoint()
        launch.as_script(main, r"{tmp_path}/train.py", nproc=2)
    """
    (tmp_path / "cell.py").write_text(textwrap.dedent(body))
    subprocess.run([sys.executable, tmp_path / "cell.py"], capture_output=True, check=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ran = subprocess.run(
        [*command, tmp_path / "train.py"], stdin=subprocess.PIPE, capture_output=True, text=True,
        timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 1
    assert "breakpoint() needs someone at the keyboard" in ran.stderr


@pytest.mark.slow
def test_torchrun_reports_the_traceback_of_the_rank_that_raised(tmp_path):
    """And the ledger still sees who raised and who left, though @record makes an ordinary end of
    `sys.exit(0)`."""
    body = f"""
        import os, sys, time
        import psutil
        import torch.distributed as dist
        from lib import launch
        def main(bad, reason):
            pids = [None] * dist.get_world_size()
            dist.all_gather_object(pids, os.getpid())
            if dist.get_rank() != bad:
                sys.exit(0)
            while psutil.pid_exists(pids[1 - bad]):
                time.sleep(0.01)
            raise ValueError(reason)
        print(launch.as_script(main, r"{tmp_path}/train.py", 1, "no such luck", nproc=2))
    """
    (tmp_path / "cell.py").write_text(textwrap.dedent(body))
    command = subprocess.run(
        [sys.executable, tmp_path / "cell.py"], capture_output=True, text=True, check=True
    ).stdout
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()[1:]], capture_output=True,
        text=True,
        timeout=300, env={**os.environ, "LEDGER_DIR": str(tmp_path / "logs"),
                                        "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 1
    report = ran.stderr.split("Root Cause (first observed failure):")[1]
    assert re.search(r"rank +: 1 \(local_rank: 1\)", report), report
    assert re.search(
        r"traceback : Traceback .*train\.py\", line .* raise ValueError\(reason\)",
        report,
        re.DOTALL,
    ), report
    assert "ValueError: no such luck" in report
    judged = subprocess.run(
        [sys.executable, "-m", "lib.ledger", tmp_path / "logs"], capture_output=True, text=True
    )
    assert re.findall(r"^ +(\d) +(left|raised) ", judged.stdout, re.MULTILINE) == [
        ("0", "left"),
        ("1", "raised"),
    ]


backend = "nccl"


def names_a_backend():
    return backend


def record():
    return 1


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (
            names_a_backend,
            "backend is a str of yours, .* `from lib import backend, .*ledger`: give yours another "
            "name",
        ),
        (
            record,
            r"record is a function of yours, .* `from torch\..* import record`: give yours another "
            "name",
        ),
    ],
)
def test_a_name_that_the_script_needs_itself_is_refused(fn, says, tmp_path):
    with pytest.raises(TypeError, match=says):
        launch.as_script(fn, tmp_path / "x.py")


def print_it(x):
    print(x)


def test_a_value_that_cannot_be_written_into_a_script_is_named(tmp_path):
    with pytest.raises(TypeError, match="argument 0 of print_it is a Tensor"):
        launch.as_script(print_it, tmp_path / "x.py", torch.ones(2))
