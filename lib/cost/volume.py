"""How many elements one step on a mesh sends along each axis, all ranks together.

    tp    activations            (tp-1) BT ((8L + 4) D + 6)      whatever pp, dp and cp are
          sequence parallel      the same, and 2 (tp-1) N W      gradients of what is replicated
    pp    activations, and back  2 (vp-1) BTD tp                 each tp rank sends all of them
          sequence parallel      2 (vp-1) BTD                    each sends its own tokens
          tied embedding         2 VDN                           between the ends, if p > 1
    cp    keys, values, and back 6 (cp-1) BT L K d
    data  gradients              2 (N-1) psi                     ZeRO-1 too: a reduce-scatter and an
                                                                 all-gather
    each  loss and norm          2 (n-1) for each number, in each group of an axis of n ranks

    cut  VD + L (2D^2 + 2DKd + 2DF + D + 2Kd + F)  sharded over tp: q k v, out, up, down, and the
                                                   embedding
    W    TmaxD + L 6D + 2D                         replicated on every tp rank: norms,
                                                   biases of row-parallel layers, positions
    psi  cut + tp W (+ VD if p > 1)                all that the ranks of one data coordinate
                                                   store together

B rows of T tokens, D hidden, F MLP width, K key/value heads of size d, V vocabulary, L layers, Tmax
positions; p ranks with v stages each; N = dp x ep x cp data ranks. Recomputation, shape inference
and what experts send are not counted.

An all-reduce of n elements over N ranks counts 2 (N-1) n for all ranks together, which is what
rings, trees, halving-doubling and a star send. The terms of the layers are those of Narayanan et
al. 2021, section 3, in elements of all ranks instead of bytes per rank.
"""

from typing import NamedTuple


class Volume(NamedTuple):
    """Elements sent in a step, all ranks together."""

    tp: int
    pp: int
    cp: int  # only the ring; gradients over context ranks are in `data`
    data: int  # along dp, ep and cp together


def cut_parameters(shape):
    """Elements of parameters that tp shards; the tied embedding counts once. shape: as
    `lib.training.model.Shape`.
    """
    return shape.vocab_size * shape.hidden + shape.n_layers * cut_of_layer(shape)


def cut_of_layer(shape):
    """Those of one layer: weights, and the biases of column-parallel layers."""
    D, F, kv = shape.hidden, shape.mlp_hidden, shape.n_kv_heads * (shape.hidden // shape.n_heads)
    return 2 * D * D + 2 * D * kv + 2 * D * F + D + 2 * kv + F


def whole_parameters(shape):
    """W: elements that are replicated on every tp rank: positions, those of all layers, last
    norm."""
    return shape.hidden * (shape.seq_len + 2) + shape.n_layers * whole_of_layer(shape)


def whole_of_layer(shape):
    """Those of one layer: two norms, and the biases of row-parallel layers."""
    return 6 * shape.hidden


def held_parameters(shape, pp=1, tp=1):
    """psi: elements of parameters that the pp x tp ranks of one data coordinate store together."""
    again = shape.vocab_size * shape.hidden if pp > 1 else 0
    return cut_parameters(shape) + tp * whole_parameters(shape) + again


def step_volume(
    shape, rows, length, pp=1, dp=1, ep=1, cp=1, tp=1, v=1, sequence_parallel=False, sharded=False,
    padding=0
):  # fmt: skip
    """The Volume of one step of a GPT of `shape`, with gradient clipping, if all ranks together
    have `rows` rows of `length` tokens each.

    sharded: whether the optimizer is sharded over the data ranks (ZeRO-1). padding: the number of
    elements that padding then adds to psi.
    """
    N, tokens, D, L = dp * ep * cp, rows * length, shape.hidden, shape.n_layers
    kv = shape.n_kv_heads * (D // shape.n_heads)
    # an all-reduce in each of this many groups
    reduced = lambda n, numbers, groups: 2 * (n - 1) * numbers * groups
    loss_and_norm = {
        "tp": reduced(tp, 1, pp * N),  # norm of what is sharded
        "pp": reduced(pp, 4, N * tp),  # loss; norm of what is sharded, replicated, of experts
        "data": reduced(N, 3 if sharded else 1, pp * tp),  # loss; both norms, of shards
    }
    activations = (tp - 1) * tokens * ((8 * L + 4) * D + 6)
    shared = reduced(tp, whole_parameters(shape), N) if sequence_parallel else 0
    copies = 1 if sequence_parallel else tp
    stages = 2 * (v * pp - 1) * tokens * D * copies + 2 * shape.vocab_size * D * N if pp > 1 else 0
    return Volume(
        tp=activations + shared + loss_and_norm["tp"],
        pp=stages + loss_and_norm["pp"],
        cp=6 * (cp - 1) * tokens * L * kv,
        data=reduced(N, held_parameters(shape, pp, tp) + padding, 1) + loss_and_norm["data"],
    )
