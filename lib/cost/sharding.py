"""Seconds in which data ranks exchange gradients and weights while nothing else runs.

    ZeRO-0  gradients: reduce-scatter and all-gather (an all-reduce)
    ZeRO-1  gradients: reduce-scatter; the updated weights: all-gather
    ZeRO-2  the same; without a pipeline the gradients of each micro-batch are reduce-scattered, so
            that no rank keeps full gradients
    ZeRO-3  every layer, every micro-batch: gather, gather again for backward, reduce-scatter

    without overlap  all of it is exposed
    with overlap     what exceeds a share `hidden` of the layers' computation is exposed, but at
                     least the exchange of one layer
    ZeRO-3           without a pipeline it always overlaps, and each layer hides its own exchange

With a pipeline, ZeRO-3's weights stay gathered from the first micro-batch to the last, and its
gradients stay unsharded, as with FSDP under torch's pipelining. ZeRO-2 and 3 then send what ZeRO-1
does, once a step. parts.py says which ranks have copies of which parameters. The gradients of
experts are reduced over fewer ranks than those of the rest of their layer. At ZeRO stages 0 to 2,
and in pipelines, none of that is hidden, as runs that differ only in ep show (gpt-oss on 64 GPUs:
ep 64 inside one NVLink domain, and ep 8 with eight copies of each expert).

Source: ZeRO (Rajbhandari et al. 2020), section 7, for the volumes.
"""

from lib.cost.network import one_pass
from lib.cost.parts import expert_ranks, layer_parts


def exposed(model, plan, gpu, stack, k, one, layers):
    """Exposed seconds per step. one: a Layer of lib.cost.layer; layers: how many the fullest stage
    has."""
    tp, n = plan.tp, plan.dp * plan.cp
    dense, expert = per_rank(model, plan)
    gradient, weight = stack.gradient_bytes, 2 if plan.zero else stack.gradient_bytes
    embedding = model.embedding_parameters / tp
    forward, backward = one.forward.total, one.again.total + one.backward.total
    if plan.zero == 3 and plan.pp == 1:
        gather, reduce = (sum(_pass(gpu, plan, dense, expert, size, k)) for size in (2, gradient))
        late = max(0.0, gather - k.hidden * forward) + max(
            0.0, gather + reduce - k.hidden * backward
        )
        return layers * plan.micro_batches * late + one_pass(
            gpu, n, tp, (2 + gradient) * embedding, k.network
        )
    scattered, gathered = (
        _pass(gpu, plan, layers * dense + embedding, layers * expert, size, k)
        for size in (gradient, weight)
    )
    # bare: what is exposed in any case, which is the experts' exchange
    seconds, bare = (a + b for a, b in zip(scattered, gathered, strict=True))
    if plan.zero == 2 and plan.pp == 1:  # all micro-batches but the last, see below
        hidden = k.hidden * layers * backward if stack.dp_overlap else 0.0
        bare += (plan.micro_batches - 1) * max(0.0, sum(scattered) - hidden)
    # gradients hide behind the last micro-batch's backward, weights behind the next forward
    if stack.dp_overlap:
        seconds = max(
            seconds - k.hidden * layers * (forward + backward), seconds / (layers * plan.v)
        )
    return bare + seconds


def per_rank(model, plan):
    """(dense, expert) parameters of one layer on a rank, before ZeRO divides them."""
    cut, whole, experts = layer_parts(model, plan)
    return cut.parameters + whole.parameters, experts.parameters


def _pass(gpu, plan, dense, expert, size, k):
    """(dense, experts): seconds of one reduce-scatter or all-gather of these parameters,
    `size` bytes each."""
    experts = (
        one_pass(gpu, expert_ranks(plan), max(plan.ep, plan.tp), size * expert, k.network)
        if expert
        else 0.0
    )
    return one_pass(gpu, plan.dp * plan.cp, plan.tp, size * dense, k.network), experts
