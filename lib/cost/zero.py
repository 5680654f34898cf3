"""What a rank stores and sends at each stage of ZeRO, by formulas (Rajbhandari et al. 2020).

    stage                  weights   gradients   optimizer  mixed precision, bytes per parameter
    0   data parallelism   full      full        full       2 + 2 + 12            = 16
    1   optimizer state    full      full        1/N        2 + 2 + 12/N          -> 4      4 x less
    2   and gradients      full      1/N         1/N        2 + 2/N + 12/N        -> 2      8 x less
    3   and weights        1/N       1/N         1/N        2/N + 2/N + 12/N      -> 0      N x less

N ranks, psi parameters. The 4x and the 8x are limits, which hold if 12/N and 14/N are small
compared with 4 and 2. On 4 ranks, for example, stage 1 stores 7 bytes, which is 2.3 x less, and
stage 2 stores 5.5, which is 2.9 x less. Stage 3 stores N x less for every N.

With k micro-batches, each rank sends in a step, in units of (N-1)/N psi:

    stage 0, 1  2      reduce-scatter the gradients, and all-gather the updated weights; stage 0's
                       all-reduce sends as much
    stage 2     k + 1  no rank keeps the full gradient, so that of each micro-batch is
                       reduce-scattered
    stage 3     3 k    all-gather the weights for forward, once more for backward, reduce-scatter
                       the gradients

A part of the model whose weights stay gathered from forward to backward (the root unit) is gathered
once: 2 k.
"""

from lib.cost.state import RECIPES, ModelState

# What is sharded at each stage, by the names in ModelState.
SHARDED = {
    0: (),
    1: ("master", "momentum", "variance"),
    2: ("gradient", "master", "momentum", "variance"),
    3: ("weight", "gradient", "master", "momentum", "variance"),
}


def rank_state(parameters, stage, N, precision="mixed"):
    """Bytes of each part of the model state on one of N ranks, at a stage from 0 to 3: a
    ModelState.

    parameters: psi, the number of parameters that are trained, without padding. precision: a key of
    `lib.cost.RECIPES`, or else KeyError is raised. Raises ValueError for any other stage, or if N
    is below 1.
    """
    if stage not in SHARDED or N < 1:
        raise ValueError(f"stage={stage}, N={N}: use stage 0, 1, 2 or 3, and 1 rank or more")
    return ModelState(
        *(
            parameters * each / (N if part in SHARDED[stage] else 1)
            for part, each in zip(ModelState._fields, RECIPES[precision], strict=True)
        )
    )


# exercise: lab4.rank_state_bytes
def rank_state_bytes(parameters, stage, N, precision="mixed"):
    """Bytes of model state on one of N ranks: `rank_state`, summed."""
    return rank_state(parameters, stage, N, precision).total


def sent_elements(elements, stage, N, microbatches=1, root=0):
    """Elements that one of N ranks sends in a step, by rings.

    elements: of all parameters, with each flat buffer padded to a multiple of N. root: how many of
    them belong to the root unit, whose weights stay gathered between forward and backward (stage 3
    only). Raises ValueError for any other stage, or for fewer than 1 micro-batch.
    """
    k = microbatches
    if stage not in SHARDED or k < 1:
        raise ValueError(
            f"stage={stage}, microbatches={k}: use stage 0, 1, 2 or 3, and 1 micro-batch or more"
        )
    passes = {
        0: 2 * elements,
        1: 2 * elements,
        2: (k + 1) * elements,
        3: 3 * k * elements - k * root,
    }
    return (N - 1) * passes[stage] / N
