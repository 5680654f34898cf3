"""A checkpoint of one process cut for tp ranks, and put together again: every tensor that has a parameter's name.

    whole["blocks.0.mlp.up.weight"]     (F, D)    ->  rank r  (F/tp, D)     cut on dim 0
    whole["blocks.0.mlp.down.weight"]   (D, F)    ->  rank r  (D, F/tp)     cut on dim 1
    whole["blocks.0.norm1.weight"]      (D,)      ->  rank r  (D,)          the same on every rank

Names are those of `lib.model.GPT`, on one process and on ranks: the parallel modules keep them. What has a parameter's
shape is cut like it: weights, gradients, Adam's averages. From tp=2 to tp=4: merge, then split.
"""

import torch

from lib.tensor_parallel.shards import divide

SPLIT = {  # name ends in: dim
    "embedding.token.weight": 0,
    "head.weight": 0,
    "attention.q.weight": 0, "attention.q.bias": 0,
    "attention.k.weight": 0, "attention.k.bias": 0,
    "attention.v.weight": 0, "attention.v.bias": 0,
    "attention.out.weight": 1,
    "mlp.up.weight": 0, "mlp.up.bias": 0,
    "mlp.down.weight": 1,
}  # fmt: skip


def split_dim(name):
    """The dim on which the parameter `name` is cut; None if every rank has all of it."""
    return next((dim for ending, dim in SPLIT.items() if name.endswith(ending)), None)


# exercise: lab3.split_state_dict
def split_state_dict(state, rank, tp):
    """Rank `rank`'s {name: tensor} of tp, copies, from the whole model's. Pure: no ranks needed.

    Raises ValueError for a size that tp does not divide. It knows columns, not heads: `ParallelAttention` does.
    """
    part = {}
    for name, tensor in state.items():
        dim = split_dim(name)
        if dim is not None:
            divide(tensor.shape[dim], tp, f"dim {dim} of {name}")
            tensor = tensor.chunk(tp, dim)[rank]
        part[name] = tensor.detach().clone()
    return part


def merge_state_dicts(parts):
    """The whole model's {name: tensor} from those of all ranks, [rank 0's, rank 1's, ...]. Pure: no ranks needed.

    Raises ValueError where ranks differ in what should be alike: their copies of a norm, say, or their names.
    """
    first, *others = parts
    for rank, other in enumerate(others, 1):
        if other.keys() != first.keys():
            raise ValueError(f"ranks 0 and {rank} differ in their names: {sorted(other.keys() ^ first.keys())}")
    state = {}
    for name, tensor in first.items():
        dim = split_dim(name)
        if dim is None:
            _check_alike(name, [part[name] for part in parts])
            state[name] = tensor.detach().clone()
        else:
            state[name] = torch.cat([part[name] for part in parts], dim)
    return state


def _check_alike(name, copies):
    for rank, other in enumerate(copies):
        if not torch.equal(other, copies[0]):
            raise ValueError(
                f"{name} is not cut, but rank {rank}'s copy differs from rank 0's: the ranks have gone apart. "
                "Different gradients (in sequence parallel: sum_gradients() after backward), seeds or data?"
            )
