"""What a rank sends for one collective, by rings: of torch's collectives the ledger sees only what
is given to them.

    n elements given by a rank, N ranks            the rank sends
    all_reduce       n: the full tensor            2 (N-1)/N n
    reduce_scatter   n: the full tensor              (N-1)/N n
    all_gather       n: a shard                      (N-1) n
    reduce, broadcast   n: the full tensor           (N-1)/N n     the ranks' mean: (N-1) n over all

The same counts as in `lib.collectives.cost`. What gloo or NCCL really sends is theirs: gloo may
take other ways.
"""

from collections import Counter

FACTOR = {
    "all_reduce": lambda N: 2 * (N - 1) / N,
    "reduce_scatter": lambda N: (N - 1) / N,
    "all_gather": lambda N: N - 1,
    "reduce": lambda N: (N - 1) / N,
    "broadcast": lambda N: (N - 1) / N,
    "barrier": lambda N: 0.0,
}


def given(ledger):
    """{op: elements}: what a rank gives to each op, the mean over the ranks. Of ours: {"send": what
    it sends}.

    ledger: a section. Forms of one collective (_into_tensor, _coalesced) count as one. A receive
    gives nothing.
    """
    elements = Counter()
    for entry in ledger.entries:
        if not entry.op.startswith("recv"):
            elements[kind(entry.op)] += entry.numel
    return {op: n / ledger.world_size for op, n in elements.items()}


def kind(op):
    """all_gather_into_tensor_coalesced -> all_gather."""
    return op.removesuffix("_coalesced").removesuffix("_into_tensor").removesuffix("_tensor")


def sent(given, N):
    """Elements that a rank sends, from what it gives. Raises KeyError for a collective that
    is not in FACTOR."""
    return sum(n if op == "send" else FACTOR[op](N) * n for op, n in given.items())
