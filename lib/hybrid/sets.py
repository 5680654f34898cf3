"""Over which axes of the mesh each parameter is sharded or replicated. This determines over which
ranks its gradient has to be averaged or summed, and how its squares are added up for the norm.

    set         parameters         sharded  replicated    a rank's gradient is of  so
                                   over     over
    sharded     q k v, out, up,    pp tp    data          its rows and tokens      mean
                down
    replicated  norms, positions,  pp       data tp       its rows and tokens      mean
                row biases         in sequence parallel:  its tokens alone         sum tp, mean
    tied        token embedding    tp       data, first   one of the two uses      sum of both, mean
                = head                      + last stage
    experts                        pp ep    dp cp tp      its ep ranks' tokens     mean dp cp, / ep

"Data" stands for dp, ep and cp together. Context ranks are data ranks that have different tokens of
the same rows; if all have equally many, the mean of their means is the batch's. Ep ranks are data
ranks that have different experts. Each computes its experts on tokens of all ep ranks, so their
gradients are already summed over these, and a mean over all data ranks needs another factor 1/ep.

For the norm, squares are added over the ranks that a set is sharded over, and a gradient that is
replicated on several ranks counts once:

    |g|^2 = sum over tp, pp of sharded^2
            + sum over pp of replicated^2
            + sum over tp of tied^2, on the first stage only
            + sum over ep, pp of experts^2

If the optimizer is sharded over the data ranks (ZeRO), each of them has a shard of these gradients,
so the squares are added over the data ranks as well.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from lib.hybrid.mesh import Mesh
from lib.tensor_parallel import split_dim
from lib.training.clip import squared_norm


class Sets(NamedTuple):
    """The trained parameters of a rank. Each is in exactly one of the lists."""

    sharded: list  # over tp; torch calls the placement Shard
    replicated: list  # on every tp rank; Replicate
    # also sharded over tp, and on two stages; empty without a pipeline, and on the stages between
    tied: list
    experts: list  # sharded over ep

    @property
    def dense(self) -> list[dict[str, list[nn.Parameter]]]:
        """Parameter groups for an optimizer, of all parameters but experts: one group for each set
        that is not empty.

        The sets are separate so that the tied parameter has buckets or flat buffers of its own on
        both stages. Equal flat buffers are sharded alike and summed in the same order, so both sums
        are the same to the last bit. In a flat buffer with other parameters, the two copies would
        slowly drift apart.
        """
        return [{"params": parameters} for parameters in self[:3] if parameters]


def sets_of(part: nn.Module, tied: Sequence[nn.Parameter]) -> Sets:
    """The Sets of `part`, this rank's part of the model under the full model's names. tied: the
    parameters that two stages share, as in `Pipeline`."""
    sets, ends = Sets([], [], list(tied), []), set(tied)
    for name, parameter in part.named_parameters():
        if parameter.requires_grad and parameter not in ends:
            set_of(name, sets).append(parameter)
    return sets


def set_of(name, sets):
    """The list of `sets` to which the parameter of this name belongs, unless it is tied."""
    if ".experts." in name:
        return sets.experts
    return sets.replicated if split_dim(name) is None else sets.sharded


def norm_sets(sets: Sets, update: Any, experts: Any, mesh: Mesh) -> list:
    """[(tensors, groups), ...]: the tensors whose gradients this rank adds to the norm, and the
    groups over which their squares have to be summed.

    update, experts: the updates (update.py) of the dense parameters and of the experts, whose
    `held` returns the tensors that have the gradients. experts is None on a rank without experts.
    """
    tp, ep, pp = mesh.group("tp"), mesh.group("ep"), mesh.group("pp")
    once = sets.sharded + (sets.tied if mesh.here["pp"] == 0 else [])
    counted = [
        (update.held(once), [tp, *update.shards_over, pp]),
        (update.held(sets.replicated), [*update.shards_over, pp]),
    ]
    # A stage without experts adds 0, because all stages have to join the all-reduce over pp.
    counted.append(
        (experts.held(sets.experts), [ep, *experts.shards_over, pp]) if experts else ([], [pp])
    )
    return counted


def global_norm(counted: list) -> Tensor:
    """|g| of the full model, () in float64, the same on every rank. counted: [(tensors, groups),
    ...].

    Sends: an all-reduce of one number for each group of each set.
    """
    return sum(squared_norm(tensors, groups) for tensors, groups in counted).sqrt()
