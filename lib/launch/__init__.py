"""Run a function on N ranks, from a notebook, a script or a test.

launch.run(fn, *args, nproc=4)   ->   [fn(*args) on rank 0, fn(*args) on rank 1, ...]
ranks = launch.session(4)        ->   ranks whose variables stay: cells with %%ranks run there

run.py        the front door: what is sent, what comes back
sessions.py   ranks whose variables stay from cell to cell
cells.py      such a cell on a rank: its variables, its interrupt
magic.py      %%ranks in a notebook
debugger.py   breakpoint() on a rank, typed in the notebook
packing.py    what is sent to the ranks and back, as bytes
worker.py     what a rank does, run after run
watch.py      the parent's watch: is it done, is it stuck, has a rank died
errors.py     one error that names rank, line and values
expected.py   a run that is meant to fail: its verdict is printed
parameters.py names instead of the numbers of parameters, in what torch's DDP says
ways_out.py   what people bring along from other launchers, and what to write instead
copies.py     what a function changed on its rank, of which the notebook sees nothing
output.py     what the ranks print
sign.py       a line that says what the ranks do while a person waits for them
stopped.py    what a run that was stopped still says
stacks.py     where a rank is
cpu_time.py   how much of the machine the ranks get
warm.py       the ranks that stay from run to run: which there are, and when they end
ranks.py      one set of them: its processes, and whether it can be used again
alone.py      a measurement has the machine to itself
leftovers.py  what a run may leave in its rank: put back, or found
groups.py     the process groups of a rank, from run to run
agent.py      torch's elastic agent, which starts the processes
server.py     what they are forked from
script.py     the same function as a file for torchrun
slurm.py      and that file as a Slurm job
generators.py random numbers of a rank, from run to run
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
