"""Seconds of a matmul: about the longer of computing waves of tiles and moving the operands.

    Y = X A        (T, n) times (n, m): 2 T n m operations

    t = sqrt( arithmetic^2 + moved^2 )             the two overlap, so t is about the longer of
                                                   them, with a smooth transition
    arithmetic = 2 T n m / R  x  waves  x  (1 + ramp / n)
    moved      = 2 (T n + n m + T m) / M           16-bit elements

    R      operations per second of a large matmul: a share of the chip's peak
    M      bytes per second of memory: a share of its bandwidth
    waves  ceil(w) / w with w = T m / (128 x 256) / multiprocessors: the output is computed in
           tiles, one on each multiprocessor at a time, and the last wave seldom fills the chip. The
           kernel may also use tiles of half the size, which take 6 % longer per output
    ramp   time to start and write a tile, in steps of the inner dimension

    multiprocessors   [tile][tile][tile][tile]
                      [tile][tile][tile]              3.5 waves take the time of 4
                      [tile][tile][tile]

Thin slices therefore cost more per operation: tensor parallelism divides m or n, and small
micro-batches reduce T. Backward has two matmuls: X's gradient has T n outputs, and A's has n m. If
the kernel itself adds A's gradient to the sum over micro-batches, it moves more than 2 bytes for
each of these, because it reads and writes the sum.

Sources: NVIDIA's "Matrix Multiplication Background" guide for tiles and waves. R's and M's shares
and `ramp` are fitted (parameters.py).
"""

from math import ceil, hypot

TILE = 128 * 256  # outputs
SMALL = 1.06  # time of a tile of half the size, relative to half the time


def rate(gpu, precision, k):
    """Operations per second of a large matmul in `precision` on this GPU."""
    share = k.matmul[gpu.family]
    if precision == "fp8":
        share *= k.fp8[gpu.family]
    if precision == "fp4":
        share *= k.fp4
    return share * gpu.peak(precision)


def waves(outputs):
    """The factor by which a matmul takes longer than it would if its tiles always filled the chip.
    outputs: elements that each multiprocessor computes."""
    large, half = outputs / TILE, 2 * outputs / TILE
    return min(ceil(large) / large, SMALL * ceil(half) / half)


def products(matrices, tokens, tp, gpu, precision, k, written=2):
    """(forward, backward) seconds of multiplying (tokens, n) with each (n, m) of `matrices`.

    tp: ranks over which each matrix is split, along its longer side, which is that of the heads or
    of the hidden units; written: bytes that the matmul moves for each element of a weight's
    gradient.
    """
    flops, memory, sms = rate(gpu, precision, k), k.hbm * gpu.hbm, gpu.sms
    forward = backward = 0.0
    for n, m in matrices:
        n, m = (n, m / tp) if m >= n else (n / tp, m)
        arithmetic = 2 * tokens * n * m / flops
        passed = 2 * tokens * (n + m)  # bytes of X and Y, or of their gradients
        moved, added = (passed + 2 * n * m) / memory, (passed + written * n * m) / memory
        forward += hypot(arithmetic * waves(tokens * m / sms) * (1 + k.ramp / n), moved)
        backward += hypot(arithmetic * waves(tokens * n / sms) * (1 + k.ramp / m), moved)
        backward += hypot(arithmetic * waves(n * m / sms) * (1 + k.ramp / tokens), added)
    return forward, backward


def experts(matrices, tokens, local, gpu, precision, k, written=2):
    """(forward, backward) seconds of an expert layer: `tokens` divided among `local` experts of
    these matrices.

    The experts' matmuls run as one grouped kernel, whose rate is the share `grouped` of a large
    matmul's. Every expert's weights are read, however few tokens it gets. In 8 and 4 bits the
    operands of each expert are converted separately, which takes `convert` seconds in forward and
    twice that in backward. 4 bits are then no faster than 8 (Nemotron 3 Super, published in both).
    """
    narrow = precision in ("fp8", "fp4")
    flops, memory = rate(gpu, "fp8" if narrow else precision, k) * k.grouped, k.hbm * gpu.hbm
    if narrow:
        flops *= k.grouped_fp8
    forward = gradients = k.convert * local if narrow else 0.0
    for n, m in matrices:
        arithmetic, passed = 2 * tokens * n * m / flops, 2 * tokens * (n + m)
        forward += hypot(arithmetic, (passed + 2 * local * n * m) / memory)
        gradients += hypot(arithmetic, (passed + written * local * n * m) / memory)
    return forward, forward + gradients
