"""How long a collective takes: latency, then bytes over bandwidth.

    all-reduce                    2 l(n) + 2 (n-1)/n S / B        S bytes on each of n ranks
    reduce-scatter, all-gather      l(n) +   (n-1)/n S / B        S bytes of the whole tensor
    all-to-all                      l(n) +   (n-1)/n S / B        S bytes that each rank holds
    point to point                  l(2) + S / B

    l(n)  =  (40 + 19 log2 n) / 2 microseconds            a launch, and hops that grow like a tree's

B is in bytes per second. Inside a node it is what nccl-tests measured on NVLink, `gpu.link`. Across
nodes a ring leaves each node once, and the g ranks of the group that share a node can use the NICs
of g GPUs for it:

    B = min( link, g nic )  g = ranks of the group in one node:
                            8 if their numbers are consecutive, 1 if they are 8 apart

l(n) fits the A100's measured all-reduce of 16 MB and more within 3 % of its time at n = 2 ... 8
(VIA-Research/vTrain trace/a100). Bandwidth terms: nccl-tests doc/PERFORMANCE.md. In this model a
link carries one collective at a time.
"""

from math import log2


def latency(n):
    """Seconds of one pass (reduce-scatter or all-gather) of zero bytes over n ranks."""
    return (40 + 19 * log2(n)) / 2 * 1e-6


def bandwidth(gpu, n, stride, network=1.0):
    """Bytes per second of a ring over n ranks whose numbers are `stride` apart. network: the share
    of the NICs' rate that is reached."""
    together = min(n, max(1, gpu.per_node // stride))
    return gpu.link if together == n else min(gpu.link, together * gpu.nic * network)


def one_pass(gpu, n, stride, size, network=1.0):
    """Seconds of a reduce-scatter, all-gather or all-to-all of `size` bytes over n ranks,
    `stride` apart."""
    if n == 1:
        return 0.0
    return latency(n) + (n - 1) / n * size / bandwidth(gpu, n, stride, network)


def all_reduce(gpu, n, stride, size, network=1.0):
    """Seconds of an all-reduce of `size` bytes: a reduce-scatter and an all-gather."""
    return 2 * one_pass(gpu, n, stride, size, network)


def all_to_all(gpu, n, copies, size, network=1.0):
    """Seconds in which a rank sends `size` bytes of tokens, each token to `copies` of n consecutive
    ranks, which are all equally likely.

    Inside a node every copy is sent. Between nodes a token is sent to a node only once, however
    many of its ranks need it: to (nodes - 1)(1 - (1 - 1/nodes)^copies) other nodes on average
    (DeepSeek-V3, section 3.2.2).
    """
    if n == 1:
        return 0.0
    nodes = max(1.0, n / gpu.per_node)
    outside = (nodes - 1) * (1 - (1 - 1 / nodes) ** copies) * size
    inside = (n - 1) / n * copies * size
    return latency(n) + max(inside / gpu.link, outside / (gpu.nic * network))


def send(gpu, stride, size, network=1.0):
    """Seconds of sending `size` bytes to the rank `stride` away."""
    inside = stride < gpu.per_node
    return latency(2) + size / (gpu.link if inside else gpu.nic * network)
