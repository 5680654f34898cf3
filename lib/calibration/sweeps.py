"""How much slower would training have been with the plan that the cost model chooses? Published
sweeps answer this: one model on one cluster, with one batch and one stack, under several plans.

    regret       measured time of the plan that the model predicts to be fastest / best measured
                 time - 1
    noise floor  2.3 s: a regret below it may be chance, and is no evidence against a choice

s is how much measured times scatter. It is estimated without the cost model, from runs that differ
only in b, the sequences of a micro-batch, because the times of such runs should be on a straight
line:

    T = (m + (p-1)/v) (c + a b)  a pipeline's step has m + (p-1)/v slots, and each slot takes a
                                 fixed time c and a time a per sequence
    s                            relative scatter of T about these lines, with a c and an a for each
                                 set of degrees

The measured times of two plans that are equally fast differ by more than 1.64 sqrt(2) s = 2.3 s in
one of ten cases. Repeated runs also count as points of a line. If no line of a sweep has more
points than are needed to fit it, s cannot be estimated from that sweep, and we use the s of all
sweeps of the same publication.

The half of vTrain's plans that is in data/sweeps.csv is in no fit, and all other runs are.
"""

from typing import NamedTuple

import numpy as np

from lib.calibration import fit
from lib.cost.parameters import parameters

SOURCES = ("vtrain-multi", "bigscience-176b")
LEAST = 4  # plans
TWO_RUNS = 1.645 * 2**0.5  # the noise floor, in units of s


class Sweep(NamedTuple):
    """The outcome of one sweep. A regret of 0 means that the model chose the fastest plan."""

    name: str
    plans: int
    regret: float  # of the chosen plan
    noise: float  # the noise floor
    predicted: float  # predicted time of the chosen plan, over the best measured time
    spread: float  # slowest measured time over the fastest


def sweeps(k=None, cases=None):
    """[Sweep] for every model, cluster, batch and stack of SOURCES that has LEAST plans or more. k:
    Parameters, those of data/parameters.csv if not given."""
    cases = cases or [*fit.cases(), *fit.cases("sweeps")]
    cases = [case for case in cases if case.source in SOURCES]
    groups, scatters = {}, {}
    for case, predicted in zip(cases, fit.seconds(k or parameters(), cases), strict=True):
        model, plan, _, stack = case.job
        cluster = f"{plan.gpus} GPUs, batch {plan.global_batch}, {stack.name}"
        name = f"{model.name}, {model.layers} layers, {model.heads} heads, {cluster}"
        groups.setdefault((case.source, name), []).append((plan, float(predicted), case.seconds))
    groups = {
        key: runs for key, runs in groups.items() if len({plan for plan, *_ in runs}) >= LEAST
    }
    for (source, _), runs in groups.items():
        total, freedom = scatters.get(source, (0.0, 0))
        more, dof = scatter([(plan, measured) for plan, _, measured in runs])
        scatters[source] = total + more, freedom + dof
    found = []
    for (source, name), runs in groups.items():
        squares, dof = scatter([(plan, measured) for plan, _, measured in runs])
        squares, dof = (squares, dof) if dof else scatters[source]
        plans = {}
        for plan, predicted, measured in runs:
            plans.setdefault(plan, (predicted, []))[1].append(measured)
        chosen, repeats = min(plans.values(), key=lambda each: each[0])
        times = [float(np.mean(each)) for _, each in plans.values()]
        best, floor = min(times), TWO_RUNS * (squares / dof) ** 0.5
        found.append(
            Sweep(
                name,
                len(plans),
                np.mean(repeats) / best - 1,
                floor,
                chosen / best,
                max(times) / best,
            )
        )
    return found


def scatter(runs):
    """(sum of squares, degrees of freedom) of the relative deviations of measured times from the
    straight lines above. runs: [(Plan, seconds)]."""
    lines, squares, freedom = {}, 0.0, 0
    for plan, seconds in runs:
        key = plan.tp, plan.pp, plan.dp, plan.v, plan.zero, plan.recompute
        slots = plan.micro_batches + (plan.pp - 1) / plan.v
        lines.setdefault(key, []).append((plan.micro_batch, seconds / slots))
    for points in lines.values():
        b, slot = np.array(points, dtype=float).T
        free = len(b) - min(2, len(set(b.tolist())))
        if free > 0:
            terms = np.stack([np.ones_like(b), b], axis=1) / slot[:, None]
            line, *_ = np.linalg.lstsq(terms, np.ones_like(b), rcond=None)
            squares, freedom = squares + float(((terms @ line - 1) ** 2).sum()), freedom + free
    return squares, freedom


def show(found):
    """Print [Sweep] as a table."""
    print("\nPublished sweeps: the plan that the model would choose")
    print(f"{'sweep':80} plans  regret  noise floor  predicted / best  slowest / best")
    for s in found:
        print(
            f"{s.name:80} {s.plans:5} {s.regret:7.1%} {s.noise:12.1%} {s.predicted:17.3f} "
            f"{s.spread:15.2f}"
        )
    print(f"mean regret {np.mean([s.regret for s in found]):.2%}")
