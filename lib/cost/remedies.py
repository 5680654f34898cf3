"""What would make a plan fit: changes to a request that no plan can meet, each of them tested.

    the plan     drop one of the settings that were requested: tp, pp, micro-batch, ZeRO,
                 recomputation ...
    the cluster  2, 4, 8 ... times the GPUs; a GPU of data/machines.csv with more memory
    the job      half, a quarter or an eighth of the sequence length; a batch that the data ranks
                 divide, which is not tested further

A plan fits if its fullest GPU stays below 83 % of the memory (memory.FITS).
"""

from dataclasses import replace

from lib.cost.hardware import GIB, gpus
from lib.cost.memory import FITS
from lib.cost.search import depths, powers, search, smallest

GROWTH = 12  # the cluster is doubled at most 11 times


def freed(model, device, count, batch, precision, fixed):
    """["micro_batch other than 4: tp8 pp8 ..., 12.00 s", ...]: the fastest plan that fits if one of
    `fixed` is dropped."""
    found = []
    for key in fixed:
        rest = {name: value for name, value in fixed.items() if name != key}
        best = next(
            iter(search(model, device, count, batch, precision=precision, fixed=rest)), None
        )
        if best:
            found.append(f"{key} other than {fixed[key]}: {best.plan}, {best.seconds:.2f} s")
    return found


def impossible(model, device, count, batch, precision="bf16", fixed=None):
    """A text that says why no plan fits, and what would make one fit.

    count: GPUs; batch: sequences per step; fixed: {field of Plan: value} that was requested.
    """
    if fixed:
        asked = ", ".join(f"{key} {value}" for key, value in fixed.items())
        found = freed(model, device, count, batch, precision, fixed)
        if found:
            return f"no plan with {asked} fits; these would:\n  " + "\n  ".join(found)
        best = next(iter(search(model, device, count, batch, precision=precision)), None)
        if best:
            return (
                f"no plan with {asked} fits, nor with one of these let go; {best.plan} does: "
                f"{best.seconds:.2f} s"
            )
    least = smallest(model, device, count, batch, precision=precision)
    if least is None:
        return not_divisible(model, count, batch)
    room = FITS * device.memory
    text = (
        f"nothing fits: the plan that needs least, {least.plan}, takes {least.memory / GIB:.0f} "
        f"GiB on its fullest GPU, and {room / GIB:.0f} of {device.memory / GIB:.0f} GiB are usable "
        f"({least.memory / room:.1f} times too much)."
    )
    fits = lambda model, device, n: (
        (c := smallest(model, device, n, batch, precision=precision))
        and (c.memory <= FITS * device.memory)
    )
    more = next(
        (n for n in (count * 2**i for i in range(1, GROWTH)) if fits(model, device, n)), None
    )
    larger = [
        other.name
        for other in gpus().values()
        if other.memory > device.memory and fits(model, other, count)
    ]
    shorter = next(
        (
            s
            for s in (model.seq >> i for i in (1, 2, 3))
            if s and fits(replace(model, seq=s), device, count)
        ),
        0,
    )
    ways = [f"Use {more} GPUs" if more else "More GPUs do not help"]
    ways.append(
        f"GPUs with more memory: {', '.join(larger)}"
        if larger
        else f"GPUs with {least.memory / FITS / GIB:.0f} GiB"
    )
    ways += [f"sequences of {shorter} tokens"] if shorter else []
    return f"{text}\n{'; or '.join(ways)}."


def not_divisible(model, count, batch):
    """A text that says why no plan divides the batch, and which batches near it can be divided."""
    whole = [tp for tp in powers(8) if count % tp == 0 and model.heads % tp == 0]
    least_dp = min(count // (tp * pp) for tp in whole for pp in depths(model.layers, count // tp))
    near = [str(n * least_dp) for n in (batch // least_dp, -(-batch // least_dp)) if n]
    return (
        f"global batch {batch} is not divisible: {count} GPUs leave at least dp {least_dp} (tp up "
        f"to 8, pp up to {model.layers} layers), and dp must divide the batch: use "
        f"{' or '.join(near)}"
    )
