"""The evidence of a job, as plain data: what every rank held in each step, what it should have held
according to a single process, and the messages.

    e = job(seed, 3)
    e.sizes, e.model                  # {"dp": 2, "tp": 2}, "dense"
    plots.evidence(e.all_off())       # a picture: what is off, and where
    print(e.table(2))                 # step 2: a line for each quantity, a column for each rank
    e.held(2, "gradient", "sharded")  # [number of rank 0, ...]; None where a rank has no such thing
    e.alone(2, "gradient", "sharded") # [what rank 0 should hold, ...], from the single process
    e.off(2, "gradient", "sharded")   # [do these two differ on rank 0, ...]
    e.sent(2)                         # {("dp",): elements sent along dp in step 2, ...}
    print(e.agreement(2, "gradient")) # which ranks agree along which axis, and which should
    alike(numbers, "tp", e.sizes)     # are ranks alike that differ along tp alone?
"""

import functools
import math
from dataclasses import dataclass

from lib import launch
from lib.hybrid import mesh_of
from lib.hybrid.hunt.alone import Alone
from lib.hybrid.hunt.draw import drawn
from lib.hybrid.hunt.rules import JOBS, STEPS, Setup, right
from lib.hybrid.hunt.training import Job
from lib.hybrid.mesh import coordinates, groups_along, sent_along
from lib.launch import Results

CLOSE = 1e-9


@dataclass(frozen=True)
class Evidence:
    """The evidence of one job. sizes: {axis: ranks}. model: "dense" (with sequence parallelism) or
    "mixture". ledger: that of the run.

    quantities: [(kind, what), ...], each kind one of KINDS, in the order in which a step produces
    them.
    """

    sizes: dict
    model: str
    quantities: tuple
    results: Results

    @property
    def ledger(self):
        """The ledger of all messages, with a section for each step: "step 0", "step 1", ..."""
        return self.results.ledger

    @property
    def steps(self):
        """How many steps the job has."""
        return len(self.results[0][1])

    def held(self, step, kind, what):
        """[the number of rank 0, ...]; None where a rank has no such thing."""
        return [seen[step][kind, what] for _, seen, _ in self.results]

    def alone(self, step, kind, what):
        """[what rank 0 should hold, ...]: the same quantity of the single process, of the part of
        the model and the batch that each rank has."""
        return [alone[step][kind, what] for _, _, alone in self.results]

    def off(self, step, kind, what):
        """[True if rank 0 held another number than it should, ...]"""
        pairs = zip(self.held(step, kind, what), self.alone(step, kind, what), strict=True)
        return [not close(held, alone) for held, alone in pairs]

    def all_off(self):
        """{(kind, what): [`off` of step 0, of step 1, ...]} for `plots.evidence`, with None for
        ranks that do not have the quantity."""
        mark = lambda step, *of: [
            None if held is None else off
            for held, off in zip(self.held(step, *of), self.off(step, *of), strict=True)
        ]
        some = [
            of for of in self.quantities if any(number is not None for number in self.held(0, *of))
        ]
        return {of: [mark(step, *of) for step in range(self.steps)] for of in some}

    def agreement(self, step, kind):
        """A text that says, for each quantity of this kind that is off in this step and for each
        axis, whether ranks that differ only along that axis have the same value, and whether they
        should."""
        same = {True: "the same", False: "different"}
        lines = []
        for what in [what for k, what in self.quantities if k == kind]:
            for axis in self.sizes if any(self.off(step, kind, what)) else ():
                held, alone = (
                    same[alike(of(step, kind, what), axis, self.sizes)]
                    for of in (self.held, self.alone)
                )
                held = f"{held},"
                lines.append(f"{what:<11} along {axis}: {held:<10} in a single process {alone}")
        return "\n".join(lines)

    def sent(self, step):
        """{axes: elements}: how many elements all ranks sent in a step, by the axes of the group in
        which they sent them."""
        return sent_along(self.ledger.section(f"step {step}").entries, self.sizes)

    def table(self, step):
        """A table of a step, as text, with a line for each quantity that some rank has. If ranks
        are off, a line below it has what these should hold."""
        ranks = range(math.prod(self.sizes.values()))
        where = [
            " ".join(f"{axis} {i}" for axis, i in coordinates(rank, self.sizes).items())
            for rank in ranks
        ]
        lines = [f"step {step:<19}" + "".join(f"{f'rank {rank}':>14}" for rank in ranks)]
        lines.append(" " * 24 + "".join(f"{one:>14}" for one in where))
        for kind, what in self.quantities:
            held, off = self.held(step, kind, what), self.off(step, kind, what)
            if any(number is not None for number in held):
                lines.append(
                    f"{f'{kind}: {what}':<24}" + "".join(f"{shown(number):>14}" for number in held)
                )
            if any(off):
                alone = [
                    shown(number) if o else ""
                    for number, o in zip(self.alone(step, kind, what), off, strict=True)
                ]
                lines.append(
                    f"{'    single process':<24}" + "".join(f"{number:>14}" for number in alone)
                )
        return "\n".join(lines)


def close(a, b):
    """Are two numbers equal up to the rounding errors of another summation order?"""
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-12)


def shown(number):
    """A number as the table prints it."""
    return "-" if number is None else f"{number:.8g}" if isinstance(number, float) else str(number)


def alike(numbers, axis, sizes):
    """Do ranks that differ only along `axis` have the same number? numbers: [of rank 0, ...], with
    None for a rank that has no such number, which is ignored."""
    groups = (
        [numbers[rank] for rank in ranks if numbers[rank] is not None]
        for ranks in groups_along([axis], sizes)
    )
    return all(close(group[0], one) for group in groups for one in group)


def job(seed, number):
    """The Evidence of one of the ten jobs of a seed. The call trains the job on 4 ranks, each of
    which also trains the single-process baseline. Results are cached.

    seed: a whole number. number: 0 to 9. Raises ValueError for anything else.
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"seed is {seed!r}: use a whole number, such as 17")
    if number not in range(JOBS):
        raise ValueError(f"job {number!r}: they are 0 to {JOBS - 1}")
    return _job(seed, number)


@functools.lru_cache(maxsize=4 * JOBS)
def _job(seed, number):
    return evidence(launch.capture(of_draw, seed, number, nproc=4, backend="gloo"))


def example():
    """The Evidence of a job that no seed draws: in step 2 and later, gradients are averaged along
    tp instead of dp."""
    setup = Setup({"dp": 2, "tp": 2}, mixture=False, seed=0)
    wrong = right(setup)._replace(mean=("tp",))
    rules = [right(setup) if step < 2 else wrong for step in range(STEPS)]
    return evidence(launch.capture(trained, setup, rules, nproc=4, backend="gloo"))


def evidence(results):
    """The Evidence from `results`, what `trained` returned on each rank."""
    setup, seen, _ = results[0]
    return Evidence(setup.sizes, "mixture" if setup.mixture else "dense", tuple(seen[0]), results)


def of_draw(seed, number):
    """Runs on each rank: train job `number` of this seed."""
    setup, rules, _ = drawn(seed)[number]
    return trained(setup, rules)


def trained(setup, rules):
    """Runs on each rank: train a job. Returns (setup, what the rank held, what it should have
    held); the last two are [{(kind, what): number} of step 0, ...]."""
    job = Job(setup, mesh_of(**setup.sizes))
    alone = Alone(job)
    seen = [job.step(step, each) for step, each in enumerate(rules)]
    return setup, seen, [alone.step(step) for step in range(len(rules))]
