"""Bytes of model state: what training with Adam stores for every parameter, whatever the batch
size.

                          weight  gradient  master  momentum  variance    bytes per parameter
    fp32                     4        4        -        4         4               16
    mixed                    2        2        4        4         4               16
    mixed, fp32 gradients    2        4        4        4         4               18
    bf16                     2        2        -        2         2                8

Mixed precision (Micikevicius et al. 2018) computes with 16-bit weights and gradients, while the
optimizer updates a master copy in fp32. It needs this copy because a bf16 number does not change if
less than 1/512 of its value is added to it (fp16: 1/4096). Mixed precision therefore saves time,
and memory for activations, but no memory for model state. Plain bf16 saves model state, but loses
such small updates. With gradients in fp32, those of many micro-batches can be summed without that
loss.

Sources: ZeRO (Rajbhandari et al. 2020, section 3.1) for 2 + 2 + 12; Megatron-LM's documentation of
its distributed optimizer for the 18.
"""

from typing import NamedTuple


class ModelState(NamedTuple):
    """Bytes of each part of the model state: per parameter in RECIPES, and on a rank in
    lib.cost.zero."""

    weight: int
    gradient: int
    master: int  # the optimizer's own fp32 copy of the weight
    momentum: int  # Adam's running mean of the gradient
    variance: int  # Adam's running mean of its square

    @property
    def total(self):
        return sum(self)


RECIPES = {
    "fp32": ModelState(weight=4, gradient=4, master=0, momentum=4, variance=4),
    "mixed": ModelState(weight=2, gradient=2, master=4, momentum=4, variance=4),
    "mixed, fp32 gradients": ModelState(weight=2, gradient=4, master=4, momentum=4, variance=4),
    "bf16": ModelState(weight=2, gradient=2, master=0, momentum=2, variance=2),
}


# exercise: lab0.model_state_bytes
def model_state_bytes(parameters, precision):
    """Total bytes of model state for `parameters` parameters that are trained with Adam.

    precision: a key of RECIPES. Activations are not included, because they grow with the batch.
    Raises ValueError for a precision that is not in RECIPES.
    """
    if precision not in RECIPES:
        raise ValueError(
            f"precision {precision!r} is not known: use one of {', '.join(map(repr, RECIPES))}"
        )
    return parameters * RECIPES[precision].total
