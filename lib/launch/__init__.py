"""Runs a function on N ranks, from a notebook, a script or a test.

launch.run(fn, *args, nproc=4)   ->   [fn(*args) on rank 0, fn(*args) on rank 1, ...]
ranks = launch.session(4)        ->   ranks that keep their variables; %%ranks cells run on them

Each rank is a process of its own. The process that calls launch.run, here called the parent, sends
the function to the ranks, watches them, and returns their results or raises one error that explains
what went wrong. If the run ended well, the ranks stay alive for the next one, because starting them
takes seconds.

run.py        the entry point: sends the function and returns the results
sessions.py   provides ranks that keep their variables from cell to cell
cells.py      runs such a cell on a rank, and lets it be interrupted
magic.py      defines %%ranks for notebooks
debugger.py   makes breakpoint() work on a rank, with its commands typed in the notebook
packing.py    packs functions, arguments and results as bytes
worker.py     the main program of a rank: executes one run after another
watch.py      watches a run from the parent: has it finished, is it stuck, has a rank died?
errors.py     turns any failure into one error that names rank, line and values
expected.py   shows a run that is meant to fail, and lets the notebook continue
parameters.py adds the names of parameters to errors of torch's DDP, which gives only their numbers
ways_out.py   recognises habits from other launchers, and says what to write instead
copies.py     warns if a rank has changed its copy of a variable, which the notebook does not see
output.py     collects and shows what the ranks print
sign.py       shows in one line what the ranks are doing while a person waits
stopped.py    shows what the ranks were doing when a person stopped a run
stacks.py     reads the call stack of a rank from outside, to see at which line it is
cpu_time.py   measures how much processor time the ranks want and get
warm.py       keeps sets of ranks alive between runs, and decides when they end
ranks.py      manages one such set, and finds out whether it can be used again
alone.py      keeps the ranks of other programs from running during a measurement
leftovers.py  restores what a run has changed in its rank, or detects that it cannot be restored
groups.py     decides which process groups of a rank are kept for its next run
agent.py      starts the processes with torch's elastic agent
server.py     runs processes that have imported torch, from which ranks are forked
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
