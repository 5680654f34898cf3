"""Lab 3, section 17: ring_attention(q, k, v, layout, group, causal=), which sends keys and values
around a ring. sequence_cut.py has the cases and the script.

    forward   k and v of every rank go to all others but one step by step: (N-1) n elements,
              n = 2BKTd
    backward  they go once more, and their gradients behind them, home: 2 (N-1) n

Where a rank's own part of the gradients travels too, a hop more is sent: (2N-1) n.
"""

import contextlib
import math

import torch

from lib.check import symptoms as s
from lib.check.causes import another, of_name
from lib.check.footprint import Footprint
from lib.check.lab3 import groups as g
from lib.check.lab3 import sequence_cut as cut
from lib.check.left_out import NOTHING_GIVEN
from lib.check.traffic import elements, ring
from lib.tensor_parallel.ring_attention import ring_attention

BACKWARD = tuple(map(cut.backward, cut.PLAIN))
LARGEST = "the largest tensor"


def script(make, case, groups, show):
    """That of sequence_cut.py, in which the largest tensor is looked for."""
    watch, t = contextlib.nullcontext(), case.T // case.world_size
    if case == cut.WHOLE:
        watch = Footprint([torch.zeros(0, dtype=case.dtype)])
    steps = cut.script(make, case, groups, show, section=True)
    with watch:
        next(steps, None)
    yield
    with watch:
        next(steps, None)
    scores = cut.B * case.H * t * case.T
    if case == cut.WHOLE and watch.largest >= scores:
        show(LARGEST, f"a tensor of {watch.largest} elements was made, as large as its queries' "
             f"scores with all keys, B H t T = {scores}; those with one block of keys are "
             f"{cut.B * case.H * t * t}")  # fmt: skip
    else:
        show(LARGEST, "")


def _room(case):
    """Bytes that an answer may keep for backward beyond lib's, which keeps log_sum: with that, less
    than all ranks' k and v."""
    kept = cut.B * case.H * case.T // case.world_size
    return 8 * (case.n - kept - 1) if case == cut.WHOLE else math.inf


def _more(p):
    return p.kind == "elements" and p.fact("sent") > p.fact("expected")


def _repeated(p):
    case = p.fact("case")
    heads = p.kind == "elements" and case.K < case.H
    return heads and p.fact("sent") * case.K == p.fact("expected") * case.H


HINTS = {
    "shards_differ_in_length": cut.DIFFER_IN_LENGTH,
    **g.HINTS,
    "everyone_sends_first": s.all_wait_in("send"),
    "without_a_backward": s.either(of_name("graph"), s.refused("no graph")),
    "whose_keys_these_are": s.both(another(cut.CASES, "out"), cut.in_case(lambda c: c.causal)),
    "one block, not all": another(cut.CASES, "out"),
    "gradients_divided": s.both(another(cut.CASES, "the gradient of"), s.fact("factor")),
    "backward_without_the_positions": another(cut.PLAIN[1:2], "the gradient of"),
    "gradients_of_keys_and_values": another(cut.CASES, "the gradient of k", "the gradient of v"),
    "scores_of_all_keys": of_name(LARGEST),
    "all_keys_kept": s.either(
        of_name("alive by"), lambda p: p.kind == "elements" and not _more(p)),
    "heads_repeated_before_they_are_sent": _repeated,
    "a_hop_more_than_is_needed": _more,
    "not_the_neighbour": s.kind("neighbours"),
    "another_shape": cut.ANOTHER_SHAPE,
    "a_receive_without_its_send": s.not_paired,
    "changed_what_it_was_given": of_name("arguments"),
}  # fmt: skip
EXERCISE = g.exercise(
    cut.measure(ring_attention, script, slack={"alive": _room}), ("attention_of_a_shard",), HINTS,
    ("attention over the sequence", 4, cut.SAY, "out"),
    ("gradients of q, k and v", 4, "each from all ranks' tokens", *cut.GRADIENTS, "graph"),
    ("block by block", 2, "no tensor of all scores; not all keys are kept",
     LARGEST, "alive by 0"),
    ("numbers on the wire", 3, "forward (N-1) 2BKTd, backward twice that, to the right",
     elements(cut.PLAIN, lambda N, n: (N - 1) * n, "(N-1) 2BKTd"), ring(cut.PLAIN),
     elements(BACKWARD, lambda N, n: 2 * (N - 1) * n, "2 (N-1) 2BKTd"), ring(BACKWARD)),
    ("q, k and v left alone", 1, "", "arguments"),
    may_call=(*s.P2P, "ring_exchange.ring_shift", "ring_exchange.__init__", "ring_exchange._post"),
    leaves_out=cut.LEAVES_OUT | NOTHING_GIVEN, bonus=True,
)  # fmt: skip
