"""A parameter in two stages: GPT's token embedding, whose weight is also the head's (Press & Wolf 2017).

    one process     embedding --> ... --> head           .grad = that of the embedding + that of the head
                        +---- w ----------+

    two ranks       w, .grad = the embedding's           w, .grad = the head's
                    rank 0 ------------ all-reduce ------------ rank p-1

On one rank autograd adds both uses. On two ranks each has a copy; the sum over the two ranks makes the copies'
gradients one process's. Equal copies that get equal updates stay equal.
"""

import contextlib

import torch

from lib import collectives


def tied(stages, links):
    """This rank's parameters that a stage of another rank has too, in the order of the stages: both ends' is the same.

    stages: the modules of all stages, stage s on rank s mod p. Raises ValueError for a tie between other ranks.
    """
    p, ranks = len(links.ranks), {}  # parameter: the places where it is
    for s, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            ranks.setdefault(parameter, {})[s % p] = f"stage {s}'s {name}"
    shared = {parameter: at for parameter, at in ranks.items() if len(at) > 1 and parameter.requires_grad}
    for at in shared.values():
        if at.keys() != {0, p - 1}:
            names = " and ".join(at.values())
            raise ValueError(f"{names} are one parameter on ranks {sorted(at)}: only ranks 0 and {p - 1} may share one")
    return [parameter for parameter, at in shared.items() if links.rank in at]


@contextlib.contextmanager
def summed_over_ends(parameters, links):
    """What the block adds to `.grad` of these parameters is summed over the first and the last rank.

    Sends: one all-reduce per parameter between the two; nothing on the others, whose list is empty.
    """
    before = [parameter.grad for parameter in parameters]  # has been summed already, in an earlier run
    for parameter in parameters:
        parameter.grad = None
    yield
    for parameter, grad in zip(parameters, before, strict=True):
        added = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        collectives.all_reduce(added, links.ends)
        parameter.grad = added if grad is None else grad.add_(added)
