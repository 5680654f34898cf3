"""A model into stages: the GPT between its blocks, any row of layers between its layers.

    embedding | block 0 | block 1 | block 2 | block 3 | norm, head
    [------ stage 0 ------][---- stage 1 ----][----- stage 2 -----]     range(0, 2), range(2, 3), range(3, 4)

A stage takes one tensor and gives one. It holds the model's own parameters, not copies.
"""

from torch import nn


def split_layers(layers, ranges):
    """`layers`, a list of modules, into stages: the layers of each range, one after the other.

    ranges: from `balance`, or your own: one per stage, together 0 ... len(layers)-1 in order. Returns nn.Sequentials.
    Raises ValueError for ranges that leave out, repeat or reorder layers.
    """
    _check(ranges, len(layers), "layers")
    return [nn.Sequential(*(layers[i] for i in part)) for part in ranges]


def split_gpt(model, ranges):
    """A `lib.model.GPT` into stages: the embedding goes with the first, the norm and the head with the last.

    ranges: of blocks, one per stage, as in `split_layers`; a range may be empty. Stage 0 takes tokens (b, T) int64 and
    the others (b, T, D); the last gives logits (b, T, V). The head's weight is the embedding's. In two stages it is
    still one parameter, and `Pipeline` sees that both have it.
    """
    _check(ranges, len(model.blocks), "blocks")
    parts = [[model.blocks[i] for i in part] for part in ranges]
    parts[0].insert(0, model.embedding)
    parts[-1] += [model.norm, model.head]
    return [nn.Sequential(*part) for part in parts]


def _check(ranges, n, what):
    said = [i for part in ranges for i in part]
    if not ranges or said != list(range(n)):
        raise ValueError(f"the stages' {what} are {[list(part) for part in ranges]}, in all not 0 to {n - 1} in order")
