"""Parameter groups: weights that decay and biases that do not stay apart when they become lines.

    groups       {"params": [w0, w1, w2], "weight_decay": 0.1}      {"params": [b0, b1, b2], "weight_decay": 0.0}
    flats        [w2 w1][w0]                                        [b2 b1 b0]
    shards       {"params": [.., ..],     "weight_decay": 0.1}      {"params": [..],         "weight_decay": 0.0}

An optimizer treats a shard as one tensor, so a flat may hold parameters of one group only.
"""


def parameter_groups(parameters):
    """[{"params": [...], and the group's settings}, ...] of what torch's optimizers take: parameters, or such dicts.

    Frozen parameters are left out, a tied one is taken once. A pure function.
    Raises ValueError for a parameter in two groups, or where there is none to train.
    """
    parameters = list(parameters)
    given = parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
    groups = [{**g, "params": [p for p in dict.fromkeys(g["params"]) if p.requires_grad]} for g in given]
    seen = [p for g in groups for p in g["params"]]
    if not seen:
        raise ValueError("no parameter requires a gradient: there is nothing to shard, give the model's parameters")
    if len(set(seen)) < len(seen):
        twice = next(p for i, p in enumerate(seen) if p in set(seen[:i]))
        raise ValueError(f"a {tuple(twice.shape)} parameter is in two groups: put it in one of them")
    return groups


def with_params(groups, tensors):
    """The groups with other tensors in place of their params: `tensors` holds as many, in the same order."""
    tensors = iter(tensors)
    return [{**group, "params": [next(tensors) for _ in group["params"]]} for group in groups]


def params_of(groups):
    """All tensors of all groups, in order."""
    return [tensor for group in groups for tensor in group["params"]]
