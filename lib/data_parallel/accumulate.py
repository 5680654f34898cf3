"""Gradient accumulation: a large batch in k pieces, one exchange of gradients.

    micro-batch 0     micro-batch 1     ...   micro-batch k-1
    [forward backward][forward backward]      [forward backward ]
     no_sync           no_sync                 [= all-reduces =]       1/k of the messages and bytes per example

    1/k sum_i grad L_i = grad (1/k sum_i L_i)     the gradient of the whole batch, where micro-batches are equal

It buys memory too: activations of one micro-batch at a time.
"""

import contextlib


# exercise: lab1.accumulate
def accumulate(model, microbatches, loss_fn):
    """Backward over k equal micro-batches, then one `model.average_gradients()`; returns the mean loss, detached ().

    model: one of this room's wrappers. microbatches: a list, of the same length on every rank.
    loss_fn: loss_fn(model, microbatch) -> (), the mean loss of a micro-batch.
    Raises ValueError for an empty list.
    """
    if not microbatches:
        raise ValueError("no micro-batches: a step needs at least one")
    total = 0.0
    for i, microbatch in enumerate(microbatches):
        is_last = i == len(microbatches) - 1
        # Only the last backward may send: a bucket that leaves earlier misses the gradients still to come.
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = loss_fn(model, microbatch) / len(microbatches)
            loss.backward()
        total += loss.detach()
    model.average_gradients()
    return total
