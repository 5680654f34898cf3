"""Why the best plan wins, and why the runner-up loses, from the components of their step times.

    by component   best    runner-up
    matmul         12.1 s  12.0 s
    bubble          0.8 s   1.9 s       <- here the runner-up loses

The runner-up is the best plan with other degrees: plans that differ only in ZeRO stage or micro-batch say little.
"""

from lib.cost.hardware import GIB, gpu
from lib.cost.predict import FITS
from lib.cost.search import DEFAULT_STACK, depths, powers, search, smallest
from lib.cost.shapes import load
from lib.cost.stacks import stacks
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
}


def compare(best, other):
    """(component, seconds) in which `other` spends most more than `best`, and in which it saves most.

    best, other: {component: seconds}, as of lib.cost.step.step_seconds.
    """
    more = {name: other[name] - best[name] for name in best}
    worst, saved = max(more, key=more.get), min(more, key=more.get)
    return (worst, more[worst]), (saved, more[saved])


def runner_up(found):
    """The best Choice with other degrees than found[0]; found[1] if all have the same; None if there is but one."""
    degrees = lambda plan: (plan.tp, plan.pp, plan.dp, plan.cp, plan.ep)
    others = [choice for choice in found[1:] if degrees(choice.plan) != degrees(found[0].plan)]
    return others[0] if others else (found[1] if len(found) > 1 else None)


def worth_showing(found):
    """`found` without plans that take as long as an earlier one, to a thousandth, and save less than 1 % of memory."""
    shown = []
    for choice in found:
        near = [other for other in shown[-20:] if choice.seconds <= 1.001 * other.seconds]
        if not any(choice.memory > 0.99 * other.memory for other in near):
            shown.append(choice)
    return shown


def impossible(model, device, gpus, batch):
    """What stands in the way if no plan fits, and what would make one possible."""
    least = smallest(model, device, gpus, batch)
    if least is None:
        whole = [tp for tp in powers(8) if gpus % tp == 0 and model.heads % tp == 0]
        least_dp = min(gpus // (tp * pp) for tp in whole for pp in depths(model.layers, gpus // tp))
        near = [str(n * least_dp) for n in (batch // least_dp, -(-batch // least_dp)) if n]
        return (
            f"global batch {batch} is not divisible: {gpus} GPUs leave at least dp {least_dp} (tp up to 8, pp up to "
            f"{model.layers} layers), and dp must divide the batch: use {' or '.join(near)}"
        )
    room = FITS * device.memory
    more = least.memory / room
    enough = next((n for n in (gpus * 2**i for i in range(1, 12)) if _fits(model, device, n, batch)), None)
    text = (
        f"nothing fits: the plan that needs least, {least.plan}, takes {least.memory / GIB:.0f} GiB on its fullest "
        f"GPU, and {room / GIB:.0f} of {device.memory / GIB:.0f} GiB are usable ({more:.1f} times too much).\n"
    )
    if enough:
        return text + f"Use {enough} GPUs, or GPUs with {least.memory / FITS / GIB:.0f} GiB, or shorter sequences."
    return text + f"Use GPUs with {least.memory / FITS / GIB:.0f} GiB, or shorter sequences: more GPUs do not help."


def _fits(model, device, gpus, batch):
    least = smallest(model, device, gpus, batch)
    return least is not None and least.memory <= FITS * device.memory


def report(name, device, gpus, batch, seq=None, precision="bf16", show=10):
    """The text of `python -m lib.cost plan`.

    name: of a model, or a .json file; device: of a GPU; gpus: how many; batch: sequences per step; seq: tokens in each.
    Raises ValueError for names that are not known, and for a request that cannot be met, with what would make it
    possible.
    """
    model, device = load(name, seq), gpu(device)
    if gpus < 1 or batch < 1:
        raise ValueError(f"{gpus} GPUs and a batch of {batch}: both must be at least 1")
    found = search(model, device, gpus, batch, precision=precision)
    if not found:
        raise ValueError(impossible(model, device, gpus, batch))
    stack = stacks()[DEFAULT_STACK]
    lines = [
        f"{model.name}: {model.parameters / 1e9:.1f}B parameters, {batch} sequences of {model.seq} tokens, "
        f"{gpus} {device.name}, {precision}, stack {stack.name}",
        f"{len(found)} plans fit\n",
        f"{'step':>9}  {'memory':>9}  {'MFU':>5}  plan",
    ]
    peak = gpus * device.peak(precision)
    operations = model.flops_per_token() * batch * model.seq
    for choice in worth_showing(found)[:show]:
        mfu = operations / choice.seconds / peak
        lines.append(f"{choice.seconds:7.2f} s  {choice.memory / GIB:5.1f} GiB  {mfu:5.1%}  {choice.plan}")
    best = step_seconds(model, found[0].plan, device, stack)
    spent = sorted(best.items(), key=lambda item: -item[1])
    lines.append("\nThe best spends " + ", ".join(f"{s:.2f} s on {WORDS[name]}" for name, s in spent[:4]) + ".")
    second = runner_up(found)
    if second:
        (worst, lost), (saved, gained) = compare(best, step_seconds(model, second.plan, device, stack))
        longer = second.seconds - found[0].seconds
        lines.append(f"The best with other degrees, {second.plan}, takes {longer:.2f} s longer:")
        saves = f" and saves {-gained:.2f} s on {WORDS[saved]}" if gained < -0.005 else ""
        lines.append(f"it loses {lost:.2f} s on {WORDS[worst]}{saves}.")
    return "\n".join(lines)
