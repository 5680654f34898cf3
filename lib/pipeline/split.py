"""Splits a model into stages: the GPT between its blocks, a list of layers between its layers.

    embedding | block 0 | block 1 | block 2 | block 3 | norm, head
    [--------- stage 0 ---------]  [stage 1]  [---- stage 2 -----]

    ranges    range(0, 2), range(2, 3), range(3, 4)

A stage takes one tensor and returns one. It holds the model's own parameters, not copies.

A parameter may be in two stages: GPT's token embedding, whose weight is also the head's (Press &
Wolf 2017).

    one process     embedding --> ... --> head      .grad = that of the embedding + that of the head
                        +---- w ----------+

    two ranks       w, .grad = the embedding's           w, .grad = the head's
                    rank 0 ------------ all-reduce ------------ rank p-1

On one rank autograd adds the gradients of both uses. On two ranks each has a copy. After the sum
over the two ranks each copy has the gradient that a single process would compute. Equal copies that
get equal updates stay equal.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from lib import collectives


def split_layers(layers, ranges):
    """Split `layers`, a list of modules, into stages: the layers of each range, one after the
    other.

    ranges: from `balance`, or your own: one per stage, together 0 ... len(layers)-1 in order.
    Returns nn.Sequentials. Raises ValueError for ranges that leave out, repeat or reorder layers.
    """
    _check(ranges, len(layers), "layers")
    return [nn.Sequential(*(layers[i] for i in part)) for part in ranges]


def split_gpt(model: Any, ranges: Sequence[Iterable[int]]) -> list[nn.Sequential]:
    """Split a `lib.training.model.GPT` into stages: the embedding is in the first, the norm and the
    head in the last.

    ranges: of blocks, one per stage, as in `split_layers`; a range may be empty. Stage 0 takes
    tokens (b, T) int64 and the others (b, T, D); the last returns logits (b, T, V). The head's
    weight is the embedding's. In two stages it is still one parameter, by which `Pipeline`
    recognises the tie.
    """
    _check(ranges, len(model.blocks), "blocks")
    parts = [[model.blocks[i] for i in part] for part in ranges]
    parts[0].insert(0, model.embedding)
    parts[-1] += [model.norm, model.head]
    return [nn.Sequential(*part) for part in parts]


def _check(ranges, n, what):
    said = [i for part in ranges for i in part]
    if not ranges or said != list(range(n)):
        raise ValueError(
            f"the stages' {what} are {[list(part) for part in ranges]}, in all not 0 to {n - 1} in "
            f"order"
        )


def tied(stages, links, stage_ranks):
    """This rank's trained parameters that a stage of another rank has too, in the order of the
    stages, which is the same on both ranks that share them.

    stages: the modules of all stages. stage_ranks: [rank of stage 0, 1, ...] in the pipeline.
    Raises ValueError for a tie between ranks that are not the first and the last.
    """
    p, ranks = len(links.ranks), {}  # parameter: {pipeline rank: its name there}
    for s, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            ranks.setdefault(parameter, {})[stage_ranks[s]] = f"stage {s}'s {name}"
    shared = {
        parameter: at for parameter, at in ranks.items() if len(at) > 1 and parameter.requires_grad
    }
    for at in shared.values():
        if at.keys() != {0, p - 1}:
            names = " and ".join(at.values())
            raise ValueError(
                f"{names} are one parameter on ranks {sorted(at)}: "
                f"only ranks 0 and {p - 1} may share one"
            )
    return [parameter for parameter, at in shared.items() if links.rank in at]


@contextlib.contextmanager
def summed_over_ends(parameters, links):
    """A context: what its block adds to `.grad` of these parameters is summed over the first and
    the last rank.

    Sends: one all-reduce per parameter between the two; nothing on the others, whose list is empty.
    """
    # an earlier run has summed these already
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    yield
    for parameter, grad in zip(parameters, before, strict=True):
        added = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        collectives.all_reduce(added, links.ends)
        parameter.grad = added if grad is None else grad.add_(added)
