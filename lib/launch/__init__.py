"""Runs a function on N ranks, from a notebook, a script or a test.

launch.run(fn, *args, nproc=4)   ->   [fn(*args) on rank 0, fn(*args) on rank 1, ...]
ranks = launch.session(4)        ->   ranks that keep their variables; %%ranks cells run on them

Each rank is a process of its own. The process that calls launch.run, here called the parent, sends
the function to the ranks, watches them, and returns their results or raises one error that explains
what went wrong. The ranks then stay alive for the next run, because starting them takes seconds.

run.py        the entry point: sends the function and returns the results
sessions.py   ranks that keep their variables from cell to cell
cells.py      runs such a cell on a rank, and lets it be interrupted
magic.py      %%ranks in a notebook
debugger.py   breakpoint() on a rank, with its commands typed in the notebook
packing.py    functions, arguments and results as bytes
worker.py     the main program of a rank: does one run after another
watch.py      the parent's watch over a run: has it finished, is it stuck, has a rank died?
errors.py     one error that names rank, line and values
expected.py   shows a run that is meant to fail, and lets the notebook continue
parameters.py adds the names of parameters to errors of torch's DDP, which only numbers them
ways_out.py   habits from other launchers, and what to write instead
copies.py     warns if a rank has changed its copy of a variable, which the notebook does not see
output.py     collects and shows what the ranks print
sign.py       one line that says what the ranks are doing while a person waits
stopped.py    what is shown when a person has stopped a run
stacks.py     reads the call stack of a rank from outside, to see at which line it is
cpu_time.py   how much processor time the ranks want and get
warm.py       keeps sets of ranks alive between runs, and decides when they end
ranks.py      one such set: its processes, and whether it can be used again
alone.py      keeps the ranks of other programs from running during a measurement
leftovers.py  restores what a run has changed in its rank, or detects that it cannot be restored
groups.py     which process groups of a rank are kept for its next run
agent.py      torch's elastic agent, which starts the processes
server.py     processes that have imported torch, from which ranks are forked
script.py     writes the same function as a file for torchrun
slurm.py      writes a Slurm job that runs such a file
generators.py seeds the random numbers of a rank
"""

from lib.launch import magic
from lib.launch.errors import RankError
from lib.launch.expected import expect_error
from lib.launch.run import Results, capture, run
from lib.launch.script import as_script
from lib.launch.sessions import session
from lib.launch.slurm import as_slurm

magic.register()

__all__ = [
    "RankError", "Results", "as_script", "as_slurm", "capture", "expect_error", "run",
    "session",
]  # fmt: skip
