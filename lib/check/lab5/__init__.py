"""Lab 5's graded exercises, a file each. In the order of the notebook, with the section:

    gates.py              2  switch, top-k, GShard
    keep.py               3  who gets one of an expert's slots, and who is dropped
    auxiliary_loss.py     4  the price of an expert that everybody asks for
    dispatch_combine.py   5  tokens to rows, rows to tokens
    expert_parallel.py    6  rows that travel to their experts; with exchange_rows.py
    reduce_gradients.py   7  experts beside data parallelism
    hide_exchange.py     10  rows under way while something else is computed
    dropless_experts.py  11  no capacity: ragged groups of rows

Beside them:

    exchange_rows.py         the first part of expert_parallel.py
    start_exchange.py        the first part of hide_exchange.py
    later.py                 works that are done late, on a clock, for hide_exchange.py
    reduce_model.py          the model of reduce_gradients.py, and its gradients by hand
    *_wrong.py               known mistakes of the file of that name; no release has them
"""
