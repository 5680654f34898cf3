"""Adds the names of parameters to the errors of torch's DistributedDataParallel, which gives only
their indices. torch writes the first of these lines, and we replace it with the second:

Parameter indices which did not receive grad for rank 1: 4 5
Parameters without a gradient on rank 1: experts.1.weight, experts.1.bias (indices 4 5). Try: ...
"""

import re
import traceback

from torch.nn.parallel import DistributedDataParallel

from lib.ledger.inside import parameter_names

WITHOUT = re.compile(r"Parameter indices which did not receive grad for rank (\d+): ([\d ]*\d)")
# what torch says about a parameter whose shape differs between the ranks
ONE = re.compile(r"params\[(\d+)\] in this process")
MORE = 8  # names at most in one message
TRY = (
    "Try: let every rank use every parameter in its loss, or give DistributedDataParallel "
    "find_unused_parameters=True"
)


def with_names(text: str, trace) -> str:
    """The message of an exception, `text`. If torch's DDP refers to parameters by number in it,
    their names are added. trace: the exception's traceback, in whose frames we look for the DDP
    module."""
    if not WITHOUT.search(text) and not ONE.search(text):
        return text
    held = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(trace))
    ddp = next((one for one in held if isinstance(one, DistributedDataParallel)), None)
    if ddp is None or not hasattr(ddp, "module"):
        return text
    names = dict(enumerate(parameter_names(ddp)))

    def without(found):
        numbers = [int(number) for number in found[2].split()]
        said = [names.get(number, f"number {number}") for number in numbers]
        more = f", ... {len(said) - MORE} more" if len(said) > MORE else ""
        listed = f"{', '.join(said[:MORE])}{more} (indices {found[2]})"
        return f"Parameters without a gradient on rank {found[1]}: {listed}"

    # what torch adds after its first sentence is advice on how to find the names, so we drop it
    if found := WITHOUT.search(text):
        return f"{text.partition('.')[0]}. {without(found)}. {TRY}"
    return ONE.sub(
        lambda found: f"params[{found[1]}], {names.get(int(found[1]), '?')}, in this process", text
    )
