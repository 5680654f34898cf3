"""Lab 3, section 17: ring_attention(q, k, v, layout, group, causal=), which sends keys and values.

    forward   k and v of every rank go to all others but one step by step: (N-1) n numbers,
              n = 2BKTd
    backward  they go once more, and their gradients behind them, home: 2 (N-1) n

Where a rank's own part of the gradients travels too, a hop more is sent: (2N-1) n.
"""

import torch.distributed as dist

from lib.check import forward_backward as fb
from lib.check import symptoms as s
from lib.check.claims import claim, each, kept, left_alone
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab3 import sequence_cut as cut
from lib.check.left_out import NOTHING_GIVEN
from lib.check.traffic import elements, ring
from lib.tensor_parallel.ring_attention import ring_attention

TRAVELS = ("ring_exchange.ring_shift", "ring_exchange.__init__", "ring_exchange._post")


BACKWARD = tuple(map(cut.backward, cut.PLAIN))


class Calls(fb.ForwardBackward):
    """No further case after a wrong gradient: what is wrong there ends in other ways where shards
    differ in length."""

    def _record(self, fn, case, *groups):
        record, out = super()._record(fn, case, *groups)
        for i, truth in enumerate(self.truths(case, case.members.index(dist.get_rank()))):
            got = [(record["got"].get((name, i)), want) for name, want in truth.gradients.items()]
            record["ok"] &= all(
                not hasattr(one, "shape") or fb.same(one, want) for one, want in got
            )
        return record, out


CALLS = Calls(cut.CASES, cut.truth, backward=cut.backward, footprint=True)


def _footprint(case, rank, record):
    if case != cut.WHOLE:
        return None
    t, scores = case.T // case.world_size, cut.B * case.H * case.T * case.T // case.world_size
    where, facts = f"{case.name}: {case.rank(rank)}", {"case": case, "held": record["held"]}
    if record["largest"] >= scores:
        text = (
            f"{where} made a tensor of {record['largest']} elements: as large as its queries' "
            f"scores with all keys, "
        )
        text += f"B H t T = {scores}; those with one block of keys are {cut.B * case.H * t * t}"
        return Problem("large", text, facts)
    if record["held"] >= case.n:
        text = (
            f"{where} keeps {record['held']} elements for backward besides q, k, v and what it "
            f"returned: as many as "
        )
        return Problem("held", f"{text}all ranks' k and v, {case.n}, or more", facts)
    return None


def _own_in_grad(p):
    return bool(p.fact("gradient")) and (p.fact("own") or bool(p.fact("absent")))


def _of_keys(p):
    return p.kind == "value" and bool(p.fact("gradient")) and p.trace[1] != "q"


def _causal_alone(p):
    case = s.case_of(p, cut.ALL)
    return p.kind == "value" and not p.fact("gradient") and case is not None and case.causal


EXERCISE = Exercise(
    name="ring_attention", reference=ring_attention, measure=CALLS, worlds=(4,),
    may_call=(*s.P2P, *TRAVELS),
    bonus=True,
    leaves_out=NOTHING_GIVEN | {
        "empty rank": "in every layout each rank has a token",
        "generators": "no argument is an iterator",
        "returned": "the docstring promises no copy where N is 1",
    },
    claims=(
        claim("attention over the sequence", 4, cut.SAY, fb.values(CALLS)),
        claim("gradients of q, k and v", 4, "each from all ranks' tokens",
              *(fb.values(CALLS, name) for name in ("q", "k", "v"))),
        claim("block by block", 2, "no tensor of all scores; not all keys are kept",
              each(cut.CASES, _footprint)),
        claim("numbers on the wire", 3, "forward (N-1) 2BKTd, backward twice that, to the right",
              elements(cut.PLAIN, lambda N, n: (N - 1) * n, "(N-1) 2BKTd"), ring(cut.PLAIN),
              elements(BACKWARD, lambda N, n: 2 * (N - 1) * n, "2 (N-1) 2BKTd"), ring(BACKWARD)),
        claim("q, k and v left alone", 1, "", left_alone(cut.CASES), kept(cut.CASES)),
    ),
    hints=(
        s.CALLED_LIB.saying("build it from p2p.send_recv, attend, merge_attention and "
                            "attend_backward."),
        s.NO_GRAPH,
        Hint("shards differ in length", s.in_case(cut.ALL,
            lambda case: case.T % case.world_size > 0, *s.SHAPES),
             "13 tokens over 3 ranks: the block received has as many tokens as its owner, "
             "len(layout[owner]), which may differ from the block sent. Receive it into "
             "out=torch.empty of its own shape."),
        s.under_way(cut.ALL, lambda case: bool(case.pairs)), s.alone(cut.ALL),
        s.WHOSE_RANKS.also(s.raised("IndexError")), s.ALL_SEND_FIRST, s.NARROW,
        Hint("its own part forgotten",
             lambda p: p.kind == "value" and bool(p.fact("gradient"))
             and p.fact("absent") == [p.facts["rank"]],
             "the other ranks' parts are there. What this rank's own queries and its own keys give "
             "each other is missing: add it."),
        Hint("gradients that stay away",
             s.both(_own_in_grad, _of_keys),
             "every rank's queries give a part of the gradients of your k and v. The gradients of "
             "a block are sent behind the block: each rank adds its part, and after the last hop "
             "they are on the rank that owns the block."),
        Hint("queries without some keys", _own_in_grad,
             "the gradient of q has a part from every block of keys: send k and v around the ring "
             "in backward too."),
        Hint("whose keys these are", _causal_alone,
             "attention over the whole of the sequence was right without a mask. After s rounds "
             "rank r has the block of rank r - s, modulo N: its keys' positions are layout[that "
             "rank], and the queries' layout[rank]."),
        Hint("one block, not all", s.both(s.kind("value"), lambda p: not p.fact("gradient")),
             "attend to every rank's block once, and merge what comes of it into what there is: N "
             "blocks, N - 1 rounds."),
        Hint("gradients divided", s.both(s.fact("gradient"), s.fact("factor")),
             "all parts are there, each once: the gradients are their sums, neither divided nor "
             "multiplied."),
        Hint("backward without the positions",
             s.both(s.kind("value", gradient=True),
                    s.in_case(cut.CASES, lambda case: case == cut.PLAIN[1])),
             "without a mask the gradients were right. attend_backward takes the positions of "
             "queries and keys, as attend does; and K heads of keys have K heads of gradients."),
        Hint("gradients of another block", _of_keys,
             "the gradient of q is right. A block's gradients are sent to the right, like the "
             "block: rank r adds its part of the same block to what it receives and forwards the "
             "sum, until after the last hop it is on the rank that owns the block."),
        Hint("gradients", s.kind("value", gradient=True),
             "attend_backward takes attention over all keys, the merged out and log_sum, and not "
             "the block's own."),
        Hint("scores of all keys", s.kind("large"),
             "attend to the blocks one by one. Concatenating all keys first is an all-gather."),
        Hint("all keys kept",
             lambda p: p.kind == "held"
             or (p.kind == "elements" and p.facts["sent"] < p.facts["expected"]),
             "what autograd or ctx keeps of each block adds up to all keys, or all scores. Keep q, "
             "k, v and the merged out and log_sum; in backward send k and v around again."),
        Hint(
            "heads repeated before they are sent",
            lambda p: p.kind == "elements" and p.facts["case"].K < p.facts["case"].H and
            p.facts["sent"] * p.facts["case"].K == p.facts["expected"] * p.facts["case"].H,
            "sending K heads of keys and values is enough: attend knows which query head "
            "reads which.",
        ),
        Hint("a hop more than is needed",
             lambda p: p.kind == "elements" and p.facts["sent"] > p.facts["expected"],
             "after N - 1 rounds every rank has had every block: the last one is not sent again. "
             "And a rank's own part of the gradients is not sent: add it at the end, when the "
             "other ranks' parts have arrived."),
        Hint("not the neighbour", s.kind("neighbours"),
             "a ring: send to rank + 1, receive from rank - 1, modulo N."),
        Hint("another shape", s.either(s.kind("form", "returned"), s.refused("shape")),
             "out and the gradient of q are (B, H, t, d); those of k and v are (B, K, t, d)."),
        s.NOT_PAIRED, s.TWO_ONLY,
        Hint("changed what it was given", s.kind("input"),
             "torch.stack([k, v]) is a copy: work on that."),
        s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
