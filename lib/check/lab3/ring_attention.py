"""Lab 3, section 17: ring_attention(q, k, v, layout, group, causal=), which sends keys and values
around a ring. sequence_cut.py has the cases and the script.

All ranks together have n = 2BKTd elements of keys and values. They send:

    forward   every shard of k and v makes N-1 hops: (N-1) n elements
    backward  the shards make the same hops again, and each shard's gradient makes N-1 hops to the
              rank that owns the shard: 2 (N-1) n elements

If ranks also send their own part of the gradients, the gradients need one more hop. The ranks then
send (2N-1) n elements, and the check fails.
"""

import math
from dataclasses import replace

import torch

from lib.check.footprint import Footprint
from lib.check.lab3 import groups as g
from lib.check.lab3 import sequence_cut as cut
from lib.check.left_out import NOTHING_GIVEN
from lib.check.symptoms import P2P
from lib.check.traffic import elements, ring
from lib.tensor_parallel.ring_attention import ring_attention

# the cases, named like the sections of the ranks' logs for their backward passes
BACKWARD = tuple(replace(case, what=f"{case.what}, {cut.BACKWARD}") for case in cut.PLAIN)
LARGEST = "the largest tensor"


def script(make, case, groups, show):
    """The script of sequence_cut.py, which here also measures the largest tensor that is made."""
    watch, t = Footprint([torch.zeros(0, dtype=case.dtype)]), case.T // case.world_size
    steps = cut.script(make, case, groups, show, section=True)
    with watch:
        next(steps, None)
    yield
    with watch:
        next(steps, None)
    scores = cut.B * case.H * t * case.T
    text = (
        f"a tensor of {watch.largest} elements was made, as large as its queries' scores with all "
        f"keys, B H t T = {scores}; those with one block of keys are {cut.B * case.H * t * t}"
    )
    show(LARGEST, text if case == cut.WHOLE and watch.largest >= scores else "")


def _room(case):
    """How many more bytes than lib's own an answer may keep for backward. In the case WHOLE it is
    less than the other ranks' k and v need; in other cases there is no limit."""
    others = case.n - case.n // case.world_size
    return 8 * (others - 1) if case == cut.WHOLE else math.inf


EXERCISE = g.exercise(
    cut.measure(ring_attention, script, slack={"alive": _room}), ("attention_of_a_shard",),
    ("attention over the sequence", 4, cut.SAY, "out"),
    ("gradients of q, k and v", 4, "each from all ranks' tokens", *cut.GRADIENTS, "graph"),
    ("block by block", 2, "no tensor of all scores; not all keys are kept",
     LARGEST, "alive by 0"),
    ("numbers on the wire", 3, "forward (N-1) 2BKTd, backward twice that, to the right",
     elements(cut.PLAIN, lambda N, n: (N - 1) * n, "(N-1) 2BKTd"), ring(cut.PLAIN),
     elements(BACKWARD, lambda N, n: 2 * (N - 1) * n, "2 (N-1) 2BKTd"), ring(BACKWARD)),
    ("q, k and v left alone", 1, "", "arguments"),
    may_call=(*P2P, "ring_exchange.ring_shift", "ring_exchange.__init__", "ring_exchange._post"),
    leaves_out=cut.LEAVES_OUT | NOTHING_GIVEN, bonus=True,
)  # fmt: skip
