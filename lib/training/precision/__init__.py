"""Mixed precision: compute in 16 bits without losing what training needs (Micikevicius et al.
2018). The table shows what is lost in each format, and on the right which class prevents it.

                               fp32    fp16    bf16
    exponent + fraction, bits  8 + 23  5 + 10  8 + 7
    spacing just above 1       2^-23   2^-10   2^-7    a smaller update vanishes:    MasterWeights
    smallest number above 0    2^-149  2^-24   2^-133  a smaller gradient vanishes:  LossScaler
    largest number             3.4e38  65504   3.4e38  a larger one becomes inf:     LossScaler

fp16 needs both. bf16 has the range of fp32 and therefore needs no scaling, but its spacing is even
wider, so it needs the masters all the more.

    master_weights.py    the optimizer steps on fp32 copies of 16-bit weights
    loss_scaler.py       scales the loss so that its gradients are within the range of fp16
"""

from lib.training.precision.loss_scaler import LossScaler
from lib.training.precision.master_weights import MasterWeights

__all__ = [
    "LossScaler", "MasterWeights",
]  # fmt: skip
