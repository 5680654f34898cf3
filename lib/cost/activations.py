"""Bytes of activations: what the forward pass of the layers keeps for the backward pass.

    s b h (34 + 5 a s / h)    bytes per layer, 16-bit activations

s tokens per sequence, b sequences, h hidden size, a heads. The 34 s b h are the inputs of the
layer's matmuls, of its norms and of GeLU, and dropout masks. The 5 a s^2 b are the attention
scores, with 5 bytes for each head and pair of tokens, which a fused attention kernel does not keep.

Source: Korthikanti et al. 2022, equation 2, for no tensor parallelism and no recomputation.
Embedding and loss are left out.
"""


def activation_bytes(layers, hidden, heads, seq, batch=1):
    """Bytes that the activations of `layers` transformer layers take, for `batch` sequences
    of `seq` tokens."""
    return layers * seq * batch * hidden * (34 + 5 * heads * seq / hidden)
