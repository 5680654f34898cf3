"""What a placement costs: the order of a plan's mesh axes decides what is sent across nodes.

    Example: 2 nodes of 4 ranks, pp = dp = tp = 2; axes of the mesh with the slowest one first

    axes      node 0               sent across nodes
    pp dp tp  stage 0              stages: an activation of each micro-batch, and its gradient
    dp pp tp  data rank 0          data ranks: gradients, once per step
    tp pp dp  half of every layer  tensor ranks: 4 all-reduces of an activation in every layer

    S_F, S_B  L/p (forward / tp + 2 R), L/p (backward / tp + 2 R), with R an all-reduce of an
              activation over tp; R once more after the embedding in forward, and before the head in
              backward; the loss all-reduces one number per token, and then two
    clock     lib.pipeline.simulate of 1F1B with S_F, S_B and messages of an activation over pp
    card      the seconds that a node's NIC needs for all all-reduces over tp in a step
    pipeline  max(clock, card)
    step      pipeline + tied embedding, over pp + gradients, over dp      one after the other
    compute   of a layer, from a step in one node: (m + p - 1) L/p (forward + backward) / tp

A node has one NIC. Ranks that send at the same time share it: if k ranks of a node send, each needs
k beta per byte.

    R           k = 1     groups compute at different times, so they soon send at different times
    message     k = tp    all tensor ranks of a stage send their copy, and it waits for the last one
    tied, dp    k = all   groups that cross nodes, because no rank has anything else to do
    card        k = all   the NIC is no faster than beta allows, however the messages alternate

Letters: L layers, p = pp, activation = the b T D elements of one micro-batch; a link is (alpha,
beta), seconds per message and per byte; an all-reduce over N ranks is log2 N exchanges of all its
bytes. Nothing is hidden and nothing is fitted: every collective runs between computations, as in
lib.hybrid.Hybrid. All of a step in one node counts as compute, including its messages and the
optimizer, so the prediction is that step plus what the slow link adds to it. Averaging the loss,
which is one number, is left out.

Source: Narayanan et al. 2021, sections 3 and 5.4: tensor parallelism inside a node, pipelines
across.
"""

from typing import NamedTuple

from lib.cost.volume import cut_of_layer, whole_of_layer
from lib.pipeline import one_f_one_b, simulate

ITEM = 4  # bytes of an element


class Link(NamedTuple):
    """The link over which the groups along one axis send."""

    alpha: float
    beta: float
    k: int  # groups that share a node's NIC; 1 if they do not leave the node

    def of(self, together):
        """(alpha, beta) of a group if this many groups, itself included, share the NIC."""
        return self.alpha, self.beta * min(together, self.k)


def links_of(sizes, ranks_per_node, inside, across):
    """{axis: Link}: the link over which a group along each axis sends.

    sizes: {axis: size}, the slowest first, as for `lib.hybrid.mesh.Mesh`. ranks_per_node:
    consecutive ranks that share a node. inside: (alpha, beta) of a rank within its node; across:
    those of a node's NIC.
    """
    links, stride = {}, 1
    for axis, n in reversed(sizes.items()):  # a group's ranks are `stride` apart
        together = max(1, min(n, ranks_per_node // stride))  # of a group, in one node
        links[axis] = (
            Link(*inside, 1) if together == n else Link(*across, ranks_per_node // together)
        )
        stride *= n
    return links


def compute_of(step, layers, sizes, m):
    """(forward, backward): seconds of one layer for one micro-batch on a single rank, as
    `placed_step` needs them.

    step: seconds of a step within one node, on a mesh of these sizes with m micro-batches. Backward
    is assumed to take twice as long as forward.
    """
    p, tp = sizes["pp"], sizes["tp"]
    forward = step * tp * p / ((m + p - 1) * layers * 3)  # step = (m + p - 1) L/p 3 forward / tp
    return forward, 2 * forward


def placed_seconds(shape, sizes, ranks_per_node, m, b, one_node, across):
    """Seconds of a step in a placement, predicted from `one_node`, the seconds of a step inside one
    node.

    sizes, ranks_per_node, across: as for `links_of`; shape, m, b: as for `placed_step`.
    """
    compute, links = (
        compute_of(one_node, shape.n_layers, sizes, m),
        links_of(sizes, ranks_per_node, (0, 0), across),
    )
    return sum(placed_step(shape, sizes, m, b, compute, links).values())


def largest_errors(seconds, predicted):
    """[the largest relative error of a prediction in each round].

    seconds: {name: (rounds,) seconds of a step}, with "one node" among the names. predicted(name,
    one_node): seconds of a step in this placement, from those of a step in one node.
    """
    return [
        max(abs(took / predicted(name, each["one node"]) - 1) for name, took in each.items())
        for each in (
            dict(zip(seconds, values, strict=True))
            for values in zip(*seconds.values(), strict=True)
        )
    ]


def placed_step(shape, sizes, m, b, compute, links):
    """{"pipeline", "tensor", "tied", "gradients"}: seconds of a step; their sum is the step.

    shape: as `lib.training.model.Shape`, of a GPT whose sequences are seq_len long. sizes: those of
    pp, dp and tp; other axes have size 1. m, b: micro-batches of each pipeline, and rows of one.
    compute: (forward, backward), seconds of one layer for one micro-batch on a single rank. links:
    those of `links_of`. "pipeline" is the clock without the all-reduces over tp, and "tensor" is
    what these add: max(clock, card) minus "pipeline".
    """
    p, tp, dp = sizes["pp"], sizes["tp"], sizes["dp"]
    activation = ITEM * b * shape.seq_len * shape.hidden
    over = lambda n_bytes, axis, n, k: (
        doubling_time(n_bytes, n, links[axis].of(k)) if n > 1 else 0.0
    )
    alpha, beta = links["pp"].of(tp)
    message = alpha + activation * beta
    clock = lambda R, loss: _clock(
        shape.n_layers, p, m, [each / tp for each in compute], R, loss, message
    )
    _, shared = links["tp"].of(links["tp"].k)
    card = (
        m * (4 * shape.n_layers + 2) / p * doubling_time(activation, tp, (0.0, shared))
        if tp > 1
        else 0.0
    )
    alone, everyone = clock(0.0, 0.0), p * dp * tp
    # first the maximum; then the sum and the target's logit
    loss = sum(over(ITEM * n * b * shape.seq_len, "tp", tp, 1) for n in (1, 2))
    return {
        "pipeline": alone,
        "tensor": max(clock(over(activation, "tp", tp, 1), loss), card) - alone,
        "tied": over(ITEM * shape.vocab_size * shape.hidden / tp, "pp", 2, everyone)
        if p > 1
        else 0.0,
        "gradients": sum(
            over(ITEM * n, "dp", dp, everyone) for n in gradient_messages(shape, p, tp)
        ),
    }


def doubling_time(n_bytes, N, link):
    """Seconds of an all-reduce over N ranks, a power of two, by recursive doubling: log2 N
    (alpha + n beta)."""
    alpha, beta = link
    return (N - 1).bit_length() * (alpha + n_bytes * beta)


def _clock(layers, p, m, compute, R, loss, message):
    """Seconds of 1F1B. compute: forward and backward of a layer on its tp ranks."""
    # S = L/p (compute / tp + 2 R)
    forward, backward = ([layers / p * (each + 2 * R)] * p for each in compute)
    forward[0] += R  # after the embedding
    forward[-1] += loss
    backward[-1] += R  # before the head
    return simulate(one_f_one_b(p, m), {"F": forward, "B": backward}, message).makespan


def gradient_messages(shape, p, tp):
    """[elements of each all-reduce over dp] of the first stage: parameters that tp shards, those
    that it replicates, and the tied embedding. On a single stage, the embedding is part of the
    first."""
    layers, D = shape.n_layers / p, shape.hidden
    cut = layers * cut_of_layer(shape) / tp
    whole = layers * whole_of_layer(shape) + shape.seq_len * D  # and the positions
    tied = shape.vocab_size * D / tp
    return [cut, whole, tied] if p > 1 else [cut + tied, whole + 2 * D]
