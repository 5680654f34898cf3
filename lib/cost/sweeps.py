"""Published sweeps: would the model have chosen the plan that turned out fastest?

A sweep is one model on one cluster with one batch and one stack, measured under several plans.

    chosen      the measured time of the plan that the model predicts to be fastest, over the best measured time
    predicted   the predicted time of that plan, over the best measured time
"""

from typing import NamedTuple

from lib.cost import fit
from lib.cost.parameters import parameters

SOURCES = ("vtrain-multi", "bigscience-176b")
LEAST = 4  # plans


class Sweep(NamedTuple):
    """One sweep's outcome; 1.0 is perfect."""

    name: str
    plans: int
    chosen: float
    predicted: float
    spread: float  # slowest measured over fastest


def sweeps(k=None, cases=None):
    """[Sweep] of every model, cluster, batch and stack of SOURCES with LEAST plans or more."""
    cases = [case for case in cases or fit.cases() if case.source in SOURCES]
    seconds = fit.seconds(k or parameters(), cases)
    groups = {}
    for case, predicted in zip(cases, seconds, strict=True):
        model, plan, _, stack = case.job
        cluster = f"{plan.gpus} GPUs, batch {plan.global_batch}, {stack.name}"
        name = f"{model.name}, {model.layers} layers, {model.heads} heads, {cluster}"
        groups.setdefault(name, {}).setdefault(plan, (float(predicted), case.seconds))
    found = []
    for name, plans in groups.items():
        if len(plans) >= LEAST:
            predicted, measured = min(plans.values())
            times = [time for _, time in plans.values()]
            best, worst = min(times), max(times)
            found.append(Sweep(name, len(plans), measured / best, predicted / best, worst / best))
    return found


def show(found):
    """Print sweeps as a table."""
    print("\nPublished sweeps: the plan that the model would choose")
    print(f"{'sweep':80} plans  chosen / best  predicted / best  slowest / best")
    for sweep in found:
        print(f"{sweep.name:80} {sweep.plans:5} {sweep.chosen:14.3f} {sweep.predicted:17.3f} {sweep.spread:15.2f}")
