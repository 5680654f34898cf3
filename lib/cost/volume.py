"""What one step on a mesh sends along each axis: numbers, over all ranks together.

    tp    activations            (tp-1) BT ((8L + 4) D + 6)      whatever pp, dp and cp are
          sequence parallel      the same, and 2 (tp-1) N W      gradients of what no rank has cut
    pp    activations, and back  2 (vp-1) BTD tp                 each tp rank has and sends all
          sequence parallel      2 (vp-1) BTD                    each sends its own tokens
          tied embedding         2 VDN                           between the ends, if p > 1
    cp    keys, values, and back 6 (cp-1) BT L K d
    data  gradients              2 (N-1) psi                     ZeRO-1 too: a reduce-scatter and an
                                                                 all-gather
    each  loss and norm          2 (n-1) per number, axis of n ranks, and group along it

    cut  VD + L (2D^2 + 2DKd + 2DF + D + 2Kd + F)  what tp divides: q k v, out, up, down, and the
                                                   embedding
    W    TmaxD + L 6D + 2D                         what every tp rank has:
                                                   norms, biases of rows, positions
    psi  cut + tp W (+ VD if p > 1)                what the ranks of one data coordinate
                                                   have together

B rows of T tokens, D hidden, F MLP width, K key/value heads of d numbers, V vocabulary, L layers,
Tmax positions; p ranks with v stages each; N = dp x ep x cp data ranks. Left out: recomputation,
shape inference, what experts send.

An all-reduce of n numbers over N ranks counts 2 (N-1) n, all ranks together: rings, trees and
halving-doubling send that, and a star. The layers' terms are Narayanan et al. 2021, section 3, in
numbers instead of bytes per rank.
"""

from typing import NamedTuple


class Volume(NamedTuple):
    """Numbers sent in a step, over all ranks."""

    tp: int
    pp: int
    cp: int  # the ring alone; gradients over context ranks are in `data`
    data: int  # along dp, ep and cp together


def cut_parameters(shape):
    """Numbers that tp divides, the tied embedding counted once. shape: as
    `lib.training.model.Shape`.
    """
    return shape.vocab_size * shape.hidden + shape.n_layers * cut_of_layer(shape)


def cut_of_layer(shape):
    """Those of one layer: weights, and the biases of what is split by columns."""
    D, F, kv = shape.hidden, shape.mlp_hidden, shape.n_kv_heads * (shape.hidden // shape.n_heads)
    return 2 * D * D + 2 * D * kv + 2 * D * F + D + 2 * kv + F


def whole_parameters(shape):
    """Numbers that every tp rank has: W. The positions, the layers', the last norm."""
    return shape.hidden * (shape.seq_len + 2) + shape.n_layers * whole_of_layer(shape)


def whole_of_layer(shape):
    """Those of one layer: two norms, and the biases of what is split by rows."""
    return 6 * shape.hidden


def held_parameters(shape, pp=1, tp=1):
    """psi: numbers that the pp x tp ranks of one data coordinate hold together."""
    again = shape.vocab_size * shape.hidden if pp > 1 else 0
    return cut_parameters(shape) + tp * whole_parameters(shape) + again


def step_volume(
    shape, rows, length, pp=1, dp=1, ep=1, cp=1, tp=1, v=1, sequence_parallel=False, sharded=False,
    padding=0
):  # fmt: skip
    """The Volume of one step with clipping: of a GPT of `shape`, on `rows` rows of `length` tokens
    in all.

    sharded: the optimizer is, over the data ranks (ZeRO-1). padding: how many numbers that adds to
    psi.
    """
    N, tokens, D, L = dp * ep * cp, rows * length, shape.hidden, shape.n_layers
    kv = shape.n_kv_heads * (D // shape.n_heads)
    # an all-reduce in each of so many groups
    reduced = lambda n, numbers, groups: 2 * (n - 1) * numbers * groups
    loss_and_norm = {
        "tp": reduced(tp, 1, pp * N),  # norm of what is cut
        "pp": reduced(pp, 4, N * tp),  # loss; norm of what is cut, of what is whole, of experts
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
