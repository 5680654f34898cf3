"""The jobs for which choose_plan is called: a cluster, a model's layers and heads, and functions
for the memory and the seconds of a plan.

    seconds  10 + 3 |log2 tp/tp'| + 2 |log2 pp/pp'| + |log2 b/b'|  tp' pp' b' would be fastest; the
                                                                   last term x 1.1 if b > b'
    memory   state (4 + 12/d) / (16 tp pp) + kept b / t            d = dp with ZeRO-1, else 1
                                                                   t = tp with sequence
                                                                       parallelism, else 1

In most of JOBS the plan that would be fastest is not allowed or does not fit, so an answer that
forgets a rule chooses it. The last of JOBS is a real one, Llama 2 70B on 64 A100 GPUs, with costs
from the formulas of lib/cost/by_hand.py.
"""

from collections import namedtuple
from collections.abc import Callable
from math import log2
from typing import Any, NamedTuple

from lib.cost import by_hand
from lib.cost.hardware import gpu
from lib.cost.plan import Plan
from lib.cost.shapes import load

GB = 1e9
# what choose_plan needs to know of a model, and of a GPU: its bytes, and how many share a node
Model, Device = namedtuple("Model", "layers heads"), namedtuple("Device", "memory per_node")


class Job(NamedTuple):
    """The arguments of choose_plan."""

    model: Any
    gpu: Any
    gpus: int
    batch: int
    memory: Callable
    seconds: Callable

    def __str__(self):
        nodes = f"{self.gpus} GPU{'s'[: self.gpus > 1]}, {self.gpu.per_node} in a node"
        return f"{nodes}; {self.model.layers} layers, {self.model.heads} heads, batch {self.batch}"


def _seconds(tp, pp, b):
    """A function seconds(plan) for which this plan would be fastest. A micro-batch above b is a
    little worse than one below it, so that no two plans tie."""

    def seconds(plan):
        more = log2(plan.micro_batch / b)
        away = 3 * abs(log2(plan.tp / tp)) + 2 * abs(log2(plan.pp / pp))
        return 10 + away + max(-more, 1.1 * more)

    return seconds


def _memory(state, kept):
    """A function memory(plan) of a model with `state` bytes of state that keeps `kept` bytes for
    each row of a micro-batch."""

    def memory(plan):
        d, t = plan.dp if plan.zero == 1 else 1, plan.tp if plan.sequence_parallel else 1
        return state * (4 + 12 / d) / (16 * plan.tp * plan.pp) + kept * plan.micro_batch / t

    return memory


def _job(layers, heads, per_node, gpus, batch, fastest, state=GB, kept=0.1 * GB, room=1000 * GB):
    costs = _memory(state, kept), _seconds(*fastest)
    return Job(Model(layers, heads), Device(room, per_node), gpus, batch, *costs)


def _real(name, device, gpus, batch):
    model, gpu_ = load(name), gpu(device)

    def seconds(plan):
        # GPUs compute at half of their peak
        compute = 6 * model.parameters * model.seq * batch / (gpus * gpu_.bf16 / 2)
        sent = by_hand.plan_messages(model, plan)
        messages = sent["tp"] / gpu_.link + (sent["pp"] + sent["dp"]) / gpu_.nic
        return (compute + messages) / (1 - by_hand.plan_bubble(plan))

    return Job(model, gpu_, gpus, batch, lambda plan: by_hand.plan_memory(model, plan), seconds)


EDGE = _memory(100 * GB, 4 * GB)(Plan(64, 4, tp=4, pp=2, dp=2, zero=1, sequence_parallel=True))
# the comments are about the plan that would be fastest
JOBS = [
    _job(12, 12, 6, 36, 72, (3, 12, 2)),  # it is allowed, and fits
    _job(12, 8, 4, 12, 36, (2, 2, 12)),  # dp is 3, and b 12
    _job(32, 12, 4, 24, 24, (3, 2, 1)),  # tp = 3 divides the heads, but not the node
    _job(16, 10, 8, 16, 32, (4, 2, 2)),  # tp = 4 does not divide the heads
    _job(10, 8, 8, 16, 32, (2, 4, 2)),  # pp = 4 does not divide the layers
    _job(12, 12, 4, 12, 20, (1, 4, 5)),  # dp = 3 does not divide the batch
    _job(8, 8, 8, 8, 20, (2, 1, 2)),  # dp = 4 divides the batch, but dp b = 8 does not
    _job(4, 4, 8, 1, 1, (1, 1, 1)),  # it is the only plan
    _job(24, 16, 8, 16, 64, (1, 1, 8), 400 * GB, 2 * GB, 60 * GB),  # it does not fit
    _job(24, 16, 8, 16, 64, (4, 2, 4), 100 * GB, 4 * GB, EDGE),  # it fits to the last byte
    _real("llama2-70b", "A100-80GB", 64, 512),
]


def _equally_fast(memory):
    """A job in which a plan's seconds depend only on its micro-batch, not on its degrees."""
    seconds = lambda plan: 5 + log2(plan.micro_batch)
    return Job(Model(8, 8), Device(1000 * GB, 8), 8, 16, memory, seconds)


TIES = [
    _equally_fast(lambda plan: GB * (1 + abs(log2(plan.tp / 2)) + abs(log2(plan.pp / 2)))),
    _equally_fast(_memory(100 * GB, 0)),  # tp pp = 8 is best, and four plans have it
]
REFUSED = [
    _job(12, 12, 4, 24, 48, (2, 3, 2), room=0.01 * GB),
    # dp = 7 does not divide the batch, and no other axis can have 7 ranks
    _job(12, 8, 8, 7, 12, (1, 1, 1)),
]
