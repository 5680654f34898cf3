"""Operations of a training run, and how long they take.

    forward     2 per parameter and token  one multiplication and one addition for each weight
    backward    4                          the same again for the gradient of the inputs,
                                           and for that of the weights
    recompute  +2                          the forward pass once more,
                                           if activations were not kept

In all, P parameters and T tokens take 6 P T operations, or 8 P T with recomputation. The attention
scores are left out: for sequences of s tokens and hidden size h they add about s / (6h), which is
3 % for GPT-3.

Sources: Kaplan et al. 2020, section 2.1, for 6 P per token; Narayanan et al. 2021, section 5.1, for
8 P T and the run below: GPT-3 (175 billion parameters) on 300 billion tokens and 1024 A100 at 140
TFLOP/s each, 34 days.
"""

SECONDS_PER_DAY = 24 * 60 * 60


# exercise: lab0.training_days
def training_days(parameters, tokens, gpus, flops_per_gpu, recompute):
    """Days to train a model of `parameters` parameters on `tokens` tokens.

    flops_per_gpu: floating-point operations per second that one GPU achieves, not its peak.
    recompute: whether activations are recomputed in backward.
    """
    operations = (8 if recompute else 6) * parameters * tokens
    return operations / (gpus * flops_per_gpu) / SECONDS_PER_DAY
