"""The hunt: jobs that run, lose no message, and train wrongly. What is wrong is found from what the
ranks hold, and when.

    seed --> ten jobs: --> 4 ranks train five steps, --> evidence: what each rank held,
             a mesh,       one process trains beside     step by step, and what it
             a model,                                    should have held
             rules

file          what it is
------------  ----------------------------------------------------------------------------
rules.py      along which axes a step does what; the eight mistakes, and what a finding says
training.py   a step on ranks that follows such rules, and notes what it holds
alone.py      the same steps in one process, sharded as on the ranks
evidence.py   what a job leaves behind, as plain data: tables, differences, messages
draw.py       which jobs a seed draws: no release shows it
detective.py  findings from the evidence alone: no release shows it
"""

from lib.hybrid.hunt.detective import findings
from lib.hybrid.hunt.evidence import Evidence, alike, example, job
from lib.hybrid.hunt.rules import HEALTHY, JOBS, KINDS, MISTAKES, STEPS, Finding

__all__ = [
    "HEALTHY", "JOBS", "KINDS", "MISTAKES", "STEPS", "Evidence", "Finding", "alike", "example",
    "findings", "job",
]  # fmt: skip
