"""Lab 3, section 18: ulysses_attention(q, k, v, layout, group, all_to_all, causal=): shards become
heads, and back.

    forward   q, k, v: all heads of my tokens -> all tokens of my heads   t (H + 2K')
              out: back                                                   T H/N
    backward  dout: as q                                                  t H
              dq, dk, dv: back                                            T (H + 2K')/N

The right column counts elements in units of B d, with K' = max(K, N).

All that is given to all_to_all counts, a rank's own block too, in however many calls.
"""

from lib.check import forward_backward as fb
from lib.check import symptoms as s
from lib.check.claims import claim, each, kept, left_alone
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab3 import sequence_cut as cut
from lib.check.traffic import only_calls
from lib.tensor_parallel.ulysses import ulysses_attention

CALLS = fb.ForwardBackward(
    cut.CASES,
    cut.truth,
    lambda recorder: {"all_to_all": recorder.all_to_all},
    backward=cut.backward,
)


def _numbers(case, rank, heads_of_keys):
    """(forward, backward): what a rank gives to all_to_all."""
    N, t, unit = case.world_size, len(cut.layout_of(case, case.world_size)[rank]), cut.B * cut.WIDTH
    keys = 2 * heads_of_keys
    return unit * (t * (case.H + keys) + case.T * case.H // N), unit * (
        t * case.H + case.T * (case.H + keys) // N
    )


def _exchanged(case, rank, record):
    """Are both ways the numbers of q, k, v and out, each once?"""
    want = _numbers(case, rank, max(case.K, case.world_size))
    got = tuple(
        sum(c.elements for c in record["calls"] if c.phase == phase)
        for phase in ("forward", "backward")
    )
    if got == want or (len(record["calls"]) == 0 and case.world_size == 1):
        return None
    phase, x, y = next(
        one for one in zip(("forward", "backward"), want, got, strict=True) if one[1] != one[2]
    )
    facts = {
        "case": case,
        "got": y,
        "want": x,
        "phase": phase,
        "repeated": got == _numbers(case, rank, case.H),
    }
    text = f"{case.name}: {case.rank(rank)} gave {y} elements to all_to_all {phase}, expected {x}"
    return Problem("calls", text, facts, [case.name, got])


def _section(case, phase):
    return (cut.backward(case) if phase else case).name


def _fewer(case):
    return case.world_size > case.K


def _only_in_causal(p):
    case = s.case_of(p, cut.CASES)
    return (
        p.kind == "value" and not p.fact("gradient") and case is not None and case == cut.PLAIN[1]
    )


EXERCISE = Exercise(
    name="ulysses_attention",
    reference=ulysses_attention,
    measure=CALLS,
    worlds=(4,),
    bonus=True,
    may_call=(*fb.MAY_CALL, "ulysses.forward",
    "ulysses.backward"),  # what mistakes of the reference call
    leaves_out={
        "empty rank": "in every layout each rank has a token",
        "generators": "no argument is an iterator",
        "returned": "the docstring promises no copy where N is 1",
        "memory": "each rank has all tokens of some heads: what it makes of them is its own choice",
    },
    claims=(
        claim("attention over the sequence", 4, cut.SAY, fb.values(CALLS)),
        claim("gradients of q, k and v", 3, "the exchanges, the other way round",
              *(fb.values(CALLS, name) for name in ("q", "k", "v"))),
        claim("numbers exchanged", 2, "q, k, v and out, once each way; nothing else",
              only_calls(cut.PLAIN, None, ("", "backward"), _section), each(cut.PLAIN, _exchanged)),
        claim("q, k and v left alone", 1, "", left_alone(cut.CASES), kept(cut.CASES)),
    ),
    hints=(
        s.CALLED_LIB.saying("build it from all_to_all and attend."),
        s.NO_GRAPH,
        Hint("shards differ in length",
             s.in_case(cut.ALL, lambda case: case.T % case.world_size > 0, *s.SHAPES, "clash"),
             "13 tokens over 3 ranks: give all_to_all the rows to each rank, and from each. From "
             "rank r there come H/N heads of len(layout[r]) tokens."),
        s.under_way(cut.ALL, lambda case: bool(case.pairs)), s.NO_GROUP, s.WHOSE_RANKS, s.NARROW,
        s.alone(cut.ALL),
        Hint("a head that several ranks read",
             s.both(s.kind("value"), s.fact("gradient"), s.in_case(cut.ALL, _fewer)),
             "a key/value head that went to several ranks gets the sum of what they return. "
             "repeat_interleave under autograd does so, if it stands before the exchange."),
        Hint("fewer key/value heads than ranks", s.in_case(cut.ALL, _fewer, *s.SHAPES, "clash",
            "returned"),
             "where K < N, each of the N/K ranks whose query heads read a head needs it: query "
             "head i reads head i // (H/K), so rank r needs head r // (N/K)."),
        Hint("counts", s.raised("ValueError"),
             "send_counts and recv_counts have a number of rows for each rank of the group, of "
             "which there are dist.get_world_size(group), and send_counts add up to the rows."),
        Hint("the order of the tokens", _only_in_causal,
             "without a mask it was right. After the exchange the tokens are in the order of the "
             "ranks: first all of layout[0], then all of layout[1]. These are the positions of "
             "queries and of keys."),
        Hint("no way back",
             s.either(s.kind("value", "form", gradient=True), s.kind("clash", phase="backward"),
                      s.in_case(cut.BACKWARD, lambda case: case in cut.BACKWARD, *s.SHAPES)),
             "backward of an exchange is the other exchange: gradients of all tokens of my heads "
             "become those of all heads of my tokens, and the other way round."),
        Hint("elements in the wrong order", s.kind("value"),
             "all_to_all splits dim 0, and concatenates what it received by sender. So heads must "
             "be dim 0 when it splits by heads; and the result is (N, H/N, t, ...): transpose "
             "ranks and heads before tokens are concatenated. view and reshape exchange nothing, "
             "transpose and permute do."),
        Hint("heads repeated more than is needed", s.kind("calls", repeated=True),
             "max(K, N) key/value heads are enough: a rank needs those alone that its query heads "
             "read, each once."),
        s.NOT_GIVEN,
        Hint("more than is needed", s.kind("calls"),
             "q, k and v are exchanged once, and the result once; backward the same, in the other "
             "direction."),
        Hint("another shape", s.either(s.kind("form", "returned"), s.refused("shape")),
             "(B, H, t, d) -> (B, H/N, T, d), attention, and back to (B, H, t, d). What "
             "split_heads gives, and what is permuted, has no flat view: reshape."),
        s.NOT_ALL_RANKS, s.TWO_ONLY,
        Hint("changed what it was given", s.kind("input"),
             "q, k and v are the caller's: change copies."),
        s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
