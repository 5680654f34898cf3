"""Lab 3, section 18: ulysses_attention(q, k, v, layout, group, all_to_all, causal=), which
exchanges sequence shards for heads, and back. sequence_cut.py has the cases and the script.
"""

import torch.distributed as dist

from lib.check.comm import MAY_CALL
from lib.check.lab3 import groups as g
from lib.check.lab3 import sequence_cut as cut
from lib.check.shown import calls
from lib.tensor_parallel.ulysses import ulysses_attention

SENT = tuple(f"elements sent to other ranks {way}" for way in ("forward", cut.BACKWARD))


def script(make, case, groups, show):
    """The script of sequence_cut.py, which here also counts the elements that a rank sends to other
    ranks. What it sends to itself is not counted."""
    steps = cut.script(make, case, groups, show, all_to_all=show.all_to_all)
    next(steps, None)
    show(SENT[0], _leaving(show.calls))
    yield
    next(steps, None)
    show(SENT[1], _leaving(show.calls))


def _leaving(calls):
    sent = 0
    for call in calls:
        to, here = call.counts[: len(call.ranks)], call.ranks.index(dist.get_rank())
        sent += call.elements * (sum(to) - to[here]) // max(1, sum(to))
    return sent


MEASURE = cut.measure(
    ulysses_attention, script,
    {"alive": "each rank has all tokens of some heads, and keeps of them what it likes"},
)  # fmt: skip
EXERCISE = g.exercise(
    MEASURE, ("attention_of_a_shard",),
    ("attention over the sequence", 4, cut.SAY, "out"),
    ("gradients of q, k and v", 3, "the exchanges, the other way round", *cut.GRADIENTS, "graph"),
    ("numbers exchanged", 2, "q, k, v and out, once each way; nothing else",
     *SENT, calls(MEASURE, nothing_else=False)),
    ("q, k and v left alone", 1, "", "arguments"),
    may_call=(*MAY_CALL, "ulysses.forward", "ulysses.backward"),  # for edited copies of lib's own
    leaves_out=cut.LEAVES_OUT | {
        "memory": "each rank has all tokens of some heads: what it makes of them is its own choice",
    },
    bonus=True,
)  # fmt: skip
