"""Lab 5's graded exercises, a file each. In the order of the notebook, with the section:

    gates.py              2  switch, top-k, GShard
    assign_slots.py       3  which (token, expert) pairs get one of an expert's slots
    auxiliary_loss.py     4  the loss of a router that prefers a few experts
    dispatch_combine.py   5  tokens to routed tokens, and back
    expert_parallel.py    6  tokens sent to their experts' ranks; with exchange_tokens.py
    reduce_gradients.py   7  experts together with data parallelism
    hide_exchange.py     12  tokens in flight while something else is computed
    dropless_experts.py  13  no capacity: groups of unequal length, grouped GEMM

And:

    exchange_tokens.py       the first part of expert_parallel.py
    start_exchange.py        the first part of hide_exchange.py
    later.py                 works that are done late, on a clock, for hide_exchange.py
"""

__all__ = [
    "assign_slots", "auxiliary_loss", "dispatch_combine", "dropless_experts", "exchange_tokens",
    "expert_parallel", "gates", "hide_exchange", "later", "reduce_gradients", "start_exchange",
]  # fmt: skip
