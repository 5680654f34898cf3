"""Lab 5's graded exercises, one file each, in the order of the notebook and with its sections:

    gates.py              2  the gates of Switch, of top-k routing and of GShard
    assign_slots.py       3  which (token, expert) pairs get one of an expert's slots
    auxiliary_loss.py     4  the loss that grows if a router prefers a few experts
    dispatch_combine.py   5  tokens to routed tokens, and back
    expert_parallel.py    6  tokens sent to their experts' ranks; with exchange_tokens.py
    reduce_gradients.py   7  experts together with data parallelism
    hide_exchange.py     12  exchanges that overlap with computation; with start_exchange.py
    dropless_experts.py  13  no capacity: groups of unequal length, and a grouped GEMM

Parts of these exercises, and what they use:

    exchange_tokens.py       the first part of expert_parallel.py
    start_exchange.py        the first part of hide_exchange.py
    later.py                 works that run as late as possible, and a simulated clock, for both
                             parts of hide_exchange.py
"""

__all__ = [
    "assign_slots", "auxiliary_loss", "dispatch_combine", "dropless_experts", "exchange_tokens",
    "expert_parallel", "gates", "hide_exchange", "later", "reduce_gradients", "start_exchange",
]  # fmt: skip
