"""Why the best plan wins, and why the runner-up loses, from the components of their step times.

    by component   best    runner-up
    matmul         12.1 s  12.0 s
    bubble          0.8 s   1.9 s       <- here the runner-up loses

The runner-up is the best plan with other degrees, because a comparison with a plan that differs
only in its ZeRO stage or micro-batch says little.
"""

from math import inf

from lib.cost.hardware import GIB, gpu
from lib.cost.ranges import around
from lib.cost.remedies import impossible
from lib.cost.search import search
from lib.cost.shapes import load
from lib.cost.stacks import DEFAULT_STACK, stacks
from lib.cost.step import step_seconds

WORDS = {
    "matmul": "matrix products",
    "attention": "attention scores",
    "elementwise": "elementwise kernels",
    "tensor": "tensor parallelism's collectives",
    "context": "context parallelism's messages",
    "expert": "experts' all-to-all",
    "launch": "waiting for the host",
    "message": "waiting for pipeline messages",
    "bubble": "pipeline bubble",
    "sharding": "exchange of gradients and weights",
    "optimizer": "optimizer",
    "offload": "activations to the host and back",
}


def compare(best, other):
    """Two pairs (component, seconds): the component in which `other` loses the most time against
    `best`, and the one in which it saves the most. A saving is negative.

    best, other: {component: seconds}, as lib.cost.step.step_seconds returns them.
    """
    more = {name: other[name] - best[name] for name in best}
    worst, saved = max(more, key=more.get), min(more, key=more.get)
    return (worst, more[worst]), (saved, more[saved])


def runner_up(found):
    """The best Choice with other degrees than found[0]; found[1] if all have the same degrees; None
    if there is only one Choice."""
    degrees = lambda plan: (plan.tp, plan.pp, plan.dp, plan.cp, plan.ep)
    others = [choice for choice in found[1:] if degrees(choice.plan) != degrees(found[0].plan)]
    return others[0] if others else (found[1] if len(found) > 1 else None)


def layouts(found):
    """The fastest Choice of each layout (its degrees) of `found`, fastest first."""
    fastest = {}
    for choice in found:
        plan = choice.plan
        fastest.setdefault((plan.tp, plan.pp, plan.dp, plan.cp, plan.ep), choice)
    return list(fastest.values())


def worth_showing(found):
    """`found` without the plans that are within 0.1 % of the time of an earlier one (among the last
    20 kept) and save less than 1 % of its memory."""
    shown = []
    for choice in found:
        near = [other for other in shown[-20:] if choice.seconds <= 1.001 * other.seconds]
        if not any(choice.memory > 0.99 * other.memory for other in near):
            shown.append(choice)
    return shown


def hours(seconds, gpus, tokens_per_step, tokens):
    """GPU-hours of training on `tokens` tokens."""
    return tokens / tokens_per_step * seconds * gpus / 3600


def report(name, device, gpus, batch, seq=None, precision="bf16", show=10, tokens=1e9, fixed=None):
    """The text of `python -m lib.cost plan`: what fits, fastest first, how sure that is, and why
    the best plan wins.

    name: a model's name, or a .json file; device: a GPU's name; gpus: how many; batch: sequences
    per step; seq: tokens in each; tokens: of the complete training; fixed: {field of Plan: value}
    that every plan must have.
    Raises ValueError for names that are not known, and for a request that cannot be met. The
    message then says what would make it possible. Raises OSError for a .json file that is not
    there.
    """
    model, device = load(name, seq), gpu(device)
    if gpus < 1 or batch < 1:
        raise ValueError(f"{gpus} GPUs and a batch of {batch}: both must be at least 1")
    if not 0 < tokens < inf or show < 1:
        raise ValueError(
            f"{tokens} tokens of training and {show} plans to show: both must be more than 0"
        )
    if why := device.lacks(precision):
        raise ValueError(why)
    found = search(model, device, gpus, batch, precision=precision, fixed=fixed)
    if not found:
        raise ValueError(impossible(model, device, gpus, batch, precision, fixed))
    stack = stacks()[DEFAULT_STACK]
    lines = [
        f"{model.name}: {model.parameters / 1e9:.1f}B parameters, {batch} sequences of {model.seq} "
        f"tokens, {gpus} {device.name}, {precision}, stack {stack.name}",
        f"{len(found)} plans fit; in brackets what 4 of 5 such runs take, on clusters and stacks "
        f"not measured before\n",
        f"{'step':>9}  {'(range)':>14}  {'memory':>9}  {'MFU':>5}  {'GPU-hours':>11}  plan",
    ]
    peak, per_step = gpus * device.peak(precision), batch * model.seq
    operations = model.flops_per_token() * per_step
    for choice in worth_showing(found)[:show]:
        low, high = around("time", choice.seconds, (model, choice.plan, device, stack))
        cells = (
            f"{choice.seconds:7.2f} s  {f'({low:.2f} - {high:.2f})':>14}  "
            f"{choice.memory / GIB:5.1f} GiB"
        )
        took = hours(choice.seconds, gpus, per_step, tokens)
        lines.append(
            f"{cells}  {operations / choice.seconds / peak:5.1%}  {took:11,.0f}  {choice.plan}"
        )
    fastest = found[0]
    best, task = (
        step_seconds(model, fastest.plan, device, stack),
        (model, fastest.plan, device, stack),
    )
    low, high = (hours(s, gpus, per_step, tokens) for s in around("time", fastest.seconds, task))
    days = f"{low / gpus / 24:.3g} to {high / gpus / 24:.3g} days"
    lines.append(f"\n{tokens:.3g} tokens take {low:,.0f} to {high:,.0f} GPU-hours, {days}.")
    low, high = around("memory", fastest.memory, task)
    lines.append(
        f"Memory of the best: {low / GIB:.0f} to {high / GIB:.0f} of {device.memory / GIB:.0f} GiB."
    )
    spent = sorted(best.items(), key=lambda item: -item[1])
    lines.append(
        "It spends " + ", ".join(f"{s:.2f} s on {WORDS[name]}" for name, s in spent[:4]) + "."
    )
    second = runner_up(found)
    if second:
        (worst, lost), (saved, gained) = compare(
            best, step_seconds(model, second.plan, device, stack)
        )
        lines.append(
            f"The best with other degrees, {second.plan}, takes "
            f"{second.seconds - fastest.seconds:.2f} s longer:"
        )
        saves = f" and saves {-gained:.2f} s on {WORDS[saved]}" if gained < -0.005 else ""
        lines.append(f"it loses {lost:.2f} s on {WORDS[worst]}{saves}.")
    return "\n".join(lines)
