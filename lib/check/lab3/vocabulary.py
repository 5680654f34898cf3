"""Lab 3, section 5: vocab_parallel_embedding and vocab_parallel_cross_entropy, where the model
begins and ends.

Rank r has rows r V/N to (r+1) V/N - 1 of the table, and these logits. The loss is the same on all
ranks, as behind g. Every row is asked for, the first and the last of each rank too, and two of them
twice; every word is a target.

There are two sorts of logits. Plain ones are small, so that the loss is right without taking off
the largest, too. Of the large ones a token has its own range: exp(1000) is inf, exp(-1000) is 0,
and where the ranks' parts lie far from each other only the largest of all keeps both away.

    token   0            1              2                                 3
            about 1000   about -1000    one rank 1000, the others -1000   -1000 to 1000
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from lib.check import forward_backward as fb
from lib.check import symptoms as s
from lib.check.cases import draw, seen
from lib.check.claims import claim, kept, left_alone
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.left_out import but
from lib.check.traffic import astray, beside, only_calls
from lib.tensor_parallel import mappings, vocabulary

V, D = 12, 3
TOKENS = torch.tensor([[3, 0, 7, 11, 6, 2, 8], [5, 9, 1, 7, 10, 4, 0]], device="cpu")  # (B, T)
TARGETS = torch.tensor([[7, 0, 5, 11, 3, 8], [6, 2, 9, 1, 10, 4]], device="cpu")  # (B, T)
LEAVES_OUT = but(fb.FUNCTION, "empty rank", "returned")
RANKS = {
    "worlds": (4,),
    "may_call": (*fb.MAY_CALL, "vocabulary.output_mapping"),
    "leaves_out": LEAVES_OUT,
}
NOTHING = fb.Turn((0, 1), what="rank 0's words only")
ANOTHER_ROW = Hint(
    "a row that this rank does not have",
    # nothing else that torch says
    lambda p: s.raised("IndexError", "RuntimeError")(p) and not s.failed(p).refusals,
    "rank r's row of token t is t - r * rows, with rows = V/N. Below 0 and from `rows` on it is "
    "another rank's: look up row 0 for those, and cover what comes with zeros.",
)
LEFT_ALONE = Hint("changed what it was given", s.kind("input"),
                  "`tokens -= ...`, `logits -= m`, .exp_() and tensor[mask] = ... write into the "
                  "caller's tensors, which are still needed. `row = tokens - ...` makes "
                  "a new one.")  # fmt: skip
NO_GRADIENT = Hint("no gradient", s.kind("no graph"),
                   "its .grad is None: the graph to the result is broken somewhere. .data, "
                   ".detach() and no_grad break it, and so does an all-reduce that is not g. "
                   "Inside torch.autograd.Function.forward nothing is recorded: backward "
                   "returns it.")  # fmt: skip


def _of(case, ids):
    """Each in its case: all of them, or those that rank 0 has."""
    return ids % (V // case.world_size) if case == NOTHING else ids


# vocab_parallel_embedding

TABLES = (*fb.TURNS, NOTHING, fb.ALONE)


def _vectors(case, N, rank, number):
    tokens, width, rows = _of(case, TOKENS)[:, number:], D + number, V // N
    table = draw(case.seed + number, V, width, top=999).cpu().requires_grad_()
    dy = draw(case.seed + 50 + number, *tokens.shape, width, top=99).cpu()
    out = table[tokens]
    out.backward(dy)
    parts = [torch.where(tokens[..., None] // rows == r, out.detach(), 0) for r in range(N)]
    mine = lambda whole: whole.detach()[rank * rows : (rank + 1) * rows].clone()
    return fb.Truth({"tokens": tokens, "weight": mine(table)}, out.detach(), dy,
                    {"weight": mine(table.grad)},
                    {"out": parts})  # fmt: skip


def _g(recorder):
    def output_mapping(partial, group=None):
        return mappings.reduce_from_group(partial, group, recorder.all_reduce)

    return {"output_mapping": output_mapping}


VECTORS = fb.ForwardBackward(TABLES, _vectors, _g)


EMBEDDING = Exercise(
    name="vocab_parallel_embedding", reference=vocabulary.vocab_parallel_embedding, measure=VECTORS,
    **RANKS,
    claims=(
        claim("each token's vector", 3, f"{fb.GROUPS_SAY}; each rank's first and last row",
              fb.values(VECTORS)),
        claim("each row's gradient", 2, "of its own tokens, twice for a token that is there twice",
              fb.values(VECTORS, "weight")),
        claim("one g, of (B, T, D)", 2, "backward sends nothing",
            only_calls(TABLES[:-1], lambda case, rank: [
            ("all_reduce", "forward", truth.out.numel()) for truth in VECTORS.truths(case, rank)])),
        claim("tokens and weight left alone", 1, "", left_alone(TABLES), kept(TABLES)),
    ),
    hints=(
        *fb.COMMON,
        ANOTHER_ROW,
        Hint("not summed", s.fact("own"),
             "every rank has the vectors of its own tokens now, and zeros for the others. "
             "`output_mapping(partial, group)` adds up: return what it returns."),
        Hint("a mean or a multiple",
             lambda p: p.fact("factor") is not None and not p.fact("gradient"),
             "one rank has the vector, the others add zeros: the sum is the vector already. Sum "
             "once, divide by nothing."),
        Hint("another shape or dtype", s.either(s.kind("form", "returned"),
            s.refused("shape", "dtype")),
             "one vector per token, (B, T, D), in the dtype of weight. A mask of tokens is (B, T), "
             "for vectors mask[..., None]. torch.zeros(...) is float32: use masked_fill, or "
             "torch.zeros_like."),
        NO_GRADIENT,
        Hint("a wrong gradient", s.fact("gradient"),
             "backward needs nothing from you: the gradient of a sum is that of each term, and "
             "what is covered with zeros has none. Leave it to autograd, and to `output_mapping`."),
        Hint("other vectors", s.kind("value"),
             "rank r has the rows r * rows to (r+1) * rows - 1, one after the other. It gives the "
             "vectors of tokens in these, and zeros for all others."),
        s.NOT_GIVEN,
        Hint("more than one g", s.kind("calls"),
             "one call of output_mapping, with the (B, T, D) partial vectors: the other ranks have "
             "everything else already."),
        s.NOT_ALL_RANKS, LEFT_ALONE, s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip


# vocab_parallel_cross_entropy

LARGE = tuple(replace(case, what="large logits") for case in fb.TURNS[:3])
CASES = (*fb.TURNS, *LARGE, NOTHING, fb.ALONE)


def _logits(case, N, number):
    logits = draw(case.seed + 3 + number, *TARGETS.shape, V).cpu()
    if case in LARGE:
        of_token = logits.view(-1, V)
        of_token[0::4] += 1000
        of_token[1::4] -= 1000
        of_token[2::4] -= 1000
        one_rank = of_token[2::4].view(-1, N, V // N)
        for token in range(len(one_rank)):
            one_rank[token, token % N] += 2000
        of_token[3::4] *= 1000 / of_token[3::4].abs().max()
    return logits[:, number:]


def _loss(case, N, rank, number):
    logits, targets = _logits(case, N, number).requires_grad_(), _of(case, TARGETS)[:, number:]
    out = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    dy = torch.tensor(0.5, dtype=out.dtype, device="cpu")
    out.backward(dy)
    mine = lambda whole: whole.detach().chunk(N, -1)[rank].clone()
    return fb.Truth(
        {"logits": mine(logits), "targets": targets},
        out.detach(),
        dy,
        {"logits": mine(logits.grad)},
        {},
    )


LOSS = fb.ForwardBackward(CASES, _loss, lambda recorder: {"all_reduce": recorder.all_reduce})


def _three_numbers_per_token(runs):
    for run, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            where = f"{case.name}: {case.rank(rank)}"
            if found := astray(where, case, record) or beside(run, case, where, rank, record):
                return found
            sent = dict.fromkeys(("forward", "backward"), 0)
            for call in record["calls"]:
                sent[call.phase] += call.elements
            if n := sent["backward"]:
                return Problem(
                    "backward", f"{where} all-reduced {n} elements in backward, expected nothing"
                )
            most = 3 * sum(truth.inputs["targets"].numel() for truth in LOSS.truths(case, rank))
            if (n := sent["forward"]) > most:
                text = (
                    f"{where} all-reduced {n} elements, expected at most 3 BT = {most}: three "
                    f"elements per token"
                )
                return Problem("elements", text, {"case": case, "whole": n >= most // 3 * V})
    return None


def _large(fits=lambda maxima, sent: True):
    """The loss of large logits is wrong; fits(calls of all_reduce that take a maximum,
    numbers per token)."""

    def large(p):
        calls = p.fact("calls", [])
        right_case = (
            s.in_case(CASES, lambda case: case in LARGE)(p)
            and p.kind == "value"
            and not p.fact("gradient")
        )
        sent = sum(call.elements for call in calls) / TARGETS.numel()
        return right_case and fits(sum(call.reduction == "max" for call in calls), sent)

    return large


def _times(*wanted):
    """The loss is so many times the right one."""
    return lambda p: (
        not p.fact("gradient") and any(abs((p.fact("factor") or 0) - one) < 1e-9 for one in wanted)
    )


CROSS_ENTROPY = Exercise(
    name="vocab_parallel_cross_entropy", reference=vocabulary.vocab_parallel_cross_entropy,
    measure=LOSS, **RANKS,
    claims=(
        claim("the mean of -log p(target)", 4, f"{fb.GROUPS_SAY}; every target",
              fb.values(LOSS, cases=(*fb.TURNS, NOTHING, fb.ALONE))),
        claim("large logits", 3, "near 1000, near -1000, and far apart",
              fb.values(LOSS, cases=LARGE)),
        claim("the gradient of the logits", 2, "p, less 1 at the target, over BT",
              fb.values(LOSS, "logits")),
        claim("three numbers per token", 4, "whatever V is; backward nothing",
              _three_numbers_per_token),
        claim("logits and targets left alone", 1, "", left_alone(CASES), kept(CASES)),
    ),
    hints=(
        Hint("no largest taken off", _large(lambda maxima, sent: maxima == 0 and sent < 3),
             "exp(1000) is inf, and if all logits are near -1000 every exp is 0. Take the largest "
             "logit of the token off first, the largest of all ranks: all_reduce(largest, group, "
             "op=dist.ReduceOp.MAX)."),
        Hint("the max taken as a sum", _large(lambda maxima, sent: maxima == 0),
             "all_reduce sums, unless you say op=dist.ReduceOp.MAX. With another number than the "
             "largest the loss is right as long as logits are small, and overflows when they are "
             "not."),
        Hint("something else overflows", _large(),
             "with small logits the loss was right. exp is safe only if its argument is at most 0, "
             "and 0 for one word of each token: z - m, with m the largest logit of that token on "
             "all ranks."),
        Hint("all_reduce's arguments", s.raised("KeyError"),
             "it is all_reduce(tensor, group, op=dist.ReduceOp.MAX): the group comes second."),
        *fb.COMMON,
        ANOTHER_ROW,
        Hint("the sum, not the mean", _times(TARGETS.numel()),
             "the mean over all B*T tokens: .mean() at the end."),
        Hint("N times", _times(2, 1 / 2),
             "after the all-reduces all ranks have the same loss: neither add it up over the "
             "ranks, nor divide by N."),
        Hint("not one number", s.kind("form", "returned"),
             "the loss is one number, the mean over all B*T tokens, as a tensor of shape () in the "
             "dtype of the logits."),
        NO_GRADIENT,
        Hint("sends in backward",
             s.either(s.kind("backward"), s.both(s.fact("gradient"), lambda p: any(
                 call.phase == "backward" for call in p.fact("calls", ())))),
             "with m and the sum known from forward, each rank has the p of its own words: "
             "backward needs no other rank."),
        Hint("the scale of the gradient",
             s.both(s.fact("gradient"),
                    lambda p: p.fact("factor") is not None and p.facts["factor"] > 0),
             "the loss is a mean over B*T tokens, and backward is given the gradient of the loss: "
             "grad * (p - 1 at the target) / (B*T). All ranks have the same loss: no factor N, no "
             "all-reduce."),
        Hint("a wrong gradient", s.fact("gradient"),
             "dL/dz_v = (p_v - [v is the target]) / (B*T), with p over all words. An in-place "
             "all-reduce is nothing that autograd knows: write an autograd.Function, with a "
             "backward of your own."),
        Hint("another loss", s.kind("value"),
             "-log p = log sum exp(z - m) - (z_target - m). Print the three values of one token "
             "on every rank, and compare them with those of the full logits."),
        Hint(
            "logits gathered",
            lambda p: (p.kind == "another way" and "gather" in p.facts["called"])
            or (p.kind == "elements" and p.facts["whole"]),
            "that sends V elements per token, 50,257 for GPT-2. The formula needs three: the "
            "largest, the sum of exp, and the target's logit.",
        ),
        s.NOT_GIVEN,
        Hint("more than three elements", s.kind("elements"),
             "reduce over this rank's words first, and send what is left: (B, T) for the largest, "
             "the sum and the target."),
        s.NOT_ALL_RANKS, LEFT_ALONE, s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("vocabulary", (EMBEDDING, CROSS_ENTROPY))
