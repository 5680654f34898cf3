"""The hunt: training jobs on a mesh that run to the end and raise no error, although most of them
train wrongly. You find the mistake from the values that the ranks held, and from the step in which
they first went wrong.

    seed --> ten jobs: --> 4 ranks train five steps, --> evidence: what each rank held,
             a mesh,       and one process trains        step by step, and what it
             a model,      the same without mistakes     should have held
             rules

file          what it is
------------  ----------------------------------------------------------------------------
rules.py      the axes along which a step sums, counts or averages; the eight mistakes; findings
training.py   a step on ranks that follows these rules and records what each rank holds
alone.py      the same steps in one process, and the part of them that a rank should hold
evidence.py   what a job leaves behind, as plain data: tables, differences, messages
draw.py       which jobs a seed draws; students do not get this code
detective.py  findings from the evidence alone; students do not get this code
"""

from lib.hybrid.hunt.detective import findings
from lib.hybrid.hunt.evidence import Evidence, alike, example, job
from lib.hybrid.hunt.rules import HEALTHY, JOBS, KINDS, MISTAKES, STEPS, Finding

__all__ = [
    "HEALTHY", "JOBS", "KINDS", "MISTAKES", "STEPS", "Evidence", "Finding", "alike", "example",
    "findings", "job",
]  # fmt: skip
