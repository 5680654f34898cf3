"""Lab 3, section 6: gather_sequence and scatter_sequence, G and S, and sum_gradients.

    G    forward   y = the ranks' tokens side by side   backward   dx_r = sum_s (dy_s, tokens of r)
    S    forward   y_r = sum_s (x_s, tokens of r)       backward   dx_s = the ranks' dy side by side

So there are two things, `joined` and `summed`, and each is one's forward and the other's backward.
All that is added or joined is another on every rank, also the gradients that come in.
"""

from contextlib import suppress

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check import forward_backward as fb
from lib.check import symptoms as s
from lib.check.cases import called, draw, groups_and_control, in_step
from lib.check.claims import claim, each, kept, left_alone
from lib.check.comm import Clash, Recorder
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.left_out import but
from lib.check.traffic import only_calls
from lib.tensor_parallel import sequence

# B, T/N, D of the first call, and of one that is under way at the same time
SHAPES = (2, 3, 5), (3, 2, 4)


def _joined(case, N, rank, number):
    """What is given, (B, T/N, D); what comes of it, (B, T, D); what each rank adds to that."""
    B, part, D = SHAPES[number]
    whole = draw(case.seed + number, B, N * part, D, top=999).cpu()
    own = torch.arange(N * part, device="cpu")[:, None] // part  # (T, 1)  whose token it is
    return whole.chunk(N, 1)[rank].clone(), whole, [whole * (own == r) for r in range(N)]


def _summed(case, N, rank, number):
    """What is given, (B, T, D), partial; what comes of it, (B, T/N, D); what each
    rank adds to that."""
    B, part, D = SHAPES[number]
    wholes = [
        draw(case.seed + 10 * (number + 1) + r, B, N * part, D, top=999).cpu() for r in range(N)
    ]
    parts = [whole.chunk(N, 1)[rank] for whole in wholes]
    return wholes[rank], sum(parts), parts


def _calls(there, back):
    def truth(case, *where):
        (x, y, of_y), (dy, dx, of_dx) = there(case, *where), back(case, *where)
        return fb.Truth({"x": x}, y, dy.clone(), {"x": dx}, {"out": of_y, "x": of_dx})

    given = lambda recorder: {
        "all_gather": recorder.all_gather,
        "reduce_scatter": recorder.reduce_scatter,
    }
    return fb.ForwardBackward(fb.CASES, truth, given)


GATHER, SCATTER = _calls(_joined, _summed), _calls(_summed, _joined)


def _one_each_way(calls, there, back):
    def expected(case, rank):
        truths = calls.truths(case, rank)
        forward = [(there, "forward", truth.inputs["x"].numel()) for truth in truths]
        return forward + [(back, "backward", truth.dy.numel()) for truth in truths]

    return only_calls(fb.TURNS, expected)


def _exercise(reference, measure, claims, not_there, not_back):
    """not_there, not_back: the hints where a rank has only its own, forward and backward,
    (name, sentence)."""
    return Exercise(
        name=reference.__name__, reference=reference, measure=measure, worlds=(4,),
        may_call=fb.MAY_CALL,
        leaves_out=fb.FUNCTION,
        claims=(*claims, claim("x left alone", 1, "", left_alone(fb.CASES), kept(fb.CASES))),
        hints=(
            *fb.COMMON,
            Hint("a mean or a multiple", lambda p: p.fact("factor") is not None,
                 "the values are N times too large or too small. A reduce-scatter sums once; "
                 "nothing is divided, and what is the same everywhere is not summed again."),
            Hint(not_there[0], lambda p: p.fact("own") and not p.fact("gradient"), not_there[1]),
            Hint(not_back[0], s.both(s.fact("own"), s.fact("gradient")), not_back[1]),
            Hint("tokens in other places", s.fact("elsewhere"),
                 "the right values in another order. Rank r has T/N tokens one after the other, "
                 "of each sequence; view and reshape only rename dims, transpose exchanges them."),
            Hint("no gradient", s.kind("no graph"),
                 "x.grad is None: autograd does not see through a message. Write an "
                 "autograd.Function, and return what its .apply(x) returns."),
            s.NOT_GIVEN,
            Hint("more than is needed", s.kind("calls"),
                 "one collective forward, and one backward. Each of G and S is the other's mirror "
                 "image."),
            Hint("another shape", s.either(s.kind("form", "returned"), s.refused("shape")),
                 "G: (B, T/N, D) -> (B, T, D). S: the other way round. Backward: the opposite."),
            s.NOT_ALL_RANKS,
            Hint("changed what it was given", s.kind("input"),
                 "x is the caller's: work on x.transpose(0, 1).contiguous(), which is a copy."),
            s.NOT_KEPT, *s.ANYWHERE,
        ),
    )  # fmt: skip


GATHER_SEQUENCE = _exercise(
    sequence.gather_sequence,
    GATHER,
    (
        claim("all tokens, in rank order", 2, f"{fb.GROUPS_SAY}; 2 sequences", fb.values(GATHER)),
        claim("backward sums this rank's", 3, "gradients differ from rank to rank",
              fb.values(GATHER, "x")),
        claim("one all-gather, one reduce-scatter", 1, "forward, backward; nothing else",
              _one_each_way(GATHER, "all_gather", "reduce_scatter")),
    ),
    (
        "not gathered",
        "the other ranks' tokens are missing: all_gather returns the full tensor, it does not "
        "write into x.",
    ),
    (
        "backward without the sum",
        "behind G each rank has its own part of the layer, and so its own part of every token's "
        "gradient: your tokens' parts are on all ranks. Backward sums them: a reduce-scatter.",
    ),
)  # fmt: skip
SCATTER_SEQUENCE = _exercise(
    sequence.scatter_sequence,
    SCATTER,
    (
        claim("the sum, this rank's tokens", 2, f"{fb.GROUPS_SAY}; 2 sequences",
              fb.values(SCATTER)),
        claim("backward gathers", 2, "every token's gradient on every rank",
              fb.values(SCATTER, "x")),
        claim("one reduce-scatter, one all-gather", 1, "forward, backward; nothing else",
              _one_each_way(SCATTER, "reduce_scatter", "all_gather")),
    ),
    (
        "not summed",
        "x is a partial result: each rank has a part of the sum of every token. reduce_scatter "
        "adds them up, and keeps this rank's tokens.",
    ),
    (
        "backward without the gather",
        "this rank's x went into every rank's tokens, so it needs the gradient of all tokens: an "
        "all-gather.",
    ),
)  # fmt: skip


# sum_gradients
#
# weight (4, 3)   used on every rank          expected    the sum over the ranks
# bias (5,)       used on even ranks only                 the sum; None counts as zeros
# unused (3,)     used nowhere                            zeros
# frozen (2,)     wants no gradient                       None, and nothing is sent
#
# In a second step rank 0 has used nothing at all. In a third `frozen`, which was trained once,
# still has its gradient, and the weight's does not lie row by row.

SIZES = {"weight": (4, 3), "frozen": (2,), "bias": (5,), "unused": (3,)}
TRAINED = [name for name in SIZES if name != "frozen"]
ELEMENTS = sum(torch.Size(SIZES[name]).numel() for name in TRAINED)
GROUPS = (*fb.TURNS[:4], fb.ALONE)
STEP_NUMBERS = (0, 1, 2)


def _gradient(name, rank, step):
    """Of a rank, before the sum; None where it did not use the parameter."""
    if name == "frozen" and step == 2:
        return torch.tensor([3.0, 5.0], dtype=torch.float64, device="cpu")
    if name in ("frozen", "unused") or (name == "bias" and rank % 2) or (step == 1 and rank == 0):
        return None
    gradient = draw(100 * step + 10 * rank + len(name), *SIZES[name], top=999).cpu()
    return gradient.T.contiguous().T if name == "weight" and step == 2 else gradient


class Steps:
    """A measure, with what `values` asks for."""

    cases = GROUPS

    @staticmethod
    def truths(case, rank):
        zeros = {
            name: torch.zeros(SIZES[name], dtype=torch.float64, device="cpu") for name in TRAINED
        }
        found = []
        for step in STEP_NUMBERS:
            got = {n: [_gradient(n, r, step) for r in range(case.world_size)] for n in TRAINED}
            parts = {
                n: [zeros[n] if g is None else g for g in of_ranks] for n, of_ranks in got.items()
            }
            found.append(
                fb.Truth({}, None, None, {n: sum(of_ranks) for n, of_ranks in parts.items()}, parts)
            )
        return found

    def __call__(self, fn):
        one = lambda case, groups: self._record(fn, case, *groups)
        return in_step(GROUPS, groups_and_control, one, wire=dist.new_group())

    def _record(self, fn, case, group, control):
        rank, recorder, got = (
            case.members.index(dist.get_rank()),
            Recorder(control, [case.members]),
            {},
        )
        like = {"dtype": torch.float64, "device": backend.device()}
        parameters = {
            name: nn.Parameter(torch.full(size, 1.0 + rank, **like)) for name, size in SIZES.items()
        }
        parameters["frozen"].requires_grad_(False)
        for step, truth in enumerate(self.truths(case, rank)):
            for name, p in parameters.items():
                mine = _gradient(name, rank, step)
                p.grad = None if mine is None else mine.to(backend.device())
            with suppress(Clash):
                called(case, fn, list(parameters.values()), group, all_reduce=recorder.all_reduce)
            recorder.end()
            got |= {(name, step): fb.plain(p.grad) for name, p in parameters.items()}
            right = all(
                fb.same(got[name, step], tensor) for name, tensor in truth.gradients.items()
            )
            if not recorder.agreed(right):
                break
        changed = [name for name, p in parameters.items() if (p != 1.0 + rank).any()]
        return recorder.record() | {"ok": right and not changed, "got": got, "changed": changed}


def _frozen(case, rank, record):
    for step in STEP_NUMBERS:
        old = _gradient("frozen", rank, step)
        got, want = record["got"].get(("frozen", step)), fb.plain(old)
        if got is not None and not (fb.same(got, old) if old is not None else got == want):
            was = "None" if old is None else f"{old.tolist()}, as it was"
            text = (
                f"{case.name}: {case.rank(rank)}: frozen.grad has changed, expected {was}: it is "
                f"not trained"
            )
            return Problem("frozen", text, {"case": case})
    return None


STEPS = Steps()
SUM_GRADIENTS = Exercise(
    name="sum_gradients", reference=sequence.sum_gradients, measure=STEPS, worlds=(4,),
    may_call=fb.MAY_CALL,
    leaves_out=but(fb.FUNCTION, "empty rank") | {
        "under way": "it has no backward, and returns when it is done",
        "returned": "it returns nothing: the gradients are in .grad",
        "generators": "the docstring and the notebook give a list",
    },
    claims=(
        claim("the sum in every .grad", 3, f"{fb.GROUPS_SAY}; unused, frozen ones; 3 steps",
              left_alone(GROUPS), *(fb.values(STEPS, name) for name in TRAINED),
              each(GROUPS, _frozen)),
        claim("one all-reduce", 1, "of one flat buffer of them all",
              only_calls(GROUPS[:-1], lambda case, rank: [("all_reduce", "",
                  ELEMENTS)] * len(STEP_NUMBERS))),
        claim("parameters left alone", 1, "only .grad changes", left_alone(GROUPS)),
    ),
    hints=(
        fb.COMMON[0], s.NO_GROUP, s.WHOSE_RANKS,
        Hint("the parameter, not its gradient", s.kind("input"), "sum p.grad; p itself stays."),
        Hint("averaged", lambda p: (p.fact("factor") or 1) < 1,
             "this is no mean over ranks. The loss is a mean over all tokens already, and each "
             "rank has the share of its own tokens: the shares add up."),
        Hint("summed twice", lambda p: (p.fact("factor") or 1) > 1,
             "one all-reduce is enough: what is the same on all ranks becomes N times as large."),
        Hint("nothing written back", s.fact("own"),
             "the flat buffer is a copy. After the all-reduce copy each slice back: "
             "p.grad.copy_(flat[begin:end].view_as(p))."),
        Hint("a parameter without gradient", s.either(s.kind("form", "no graph"),
            s.refused("None")),
             "where this rank did not use a parameter, p.grad is None. It counts as zeros, and "
             "must hold the sum afterwards: p.grad = torch.zeros_like(p)."),
        Hint("sizes that differ between ranks", s.either(s.hung,
            s.kind("mismatch", "died", "clash")),
             "the ranks must all-reduce tensors of one size. A parameter that this rank did not "
             "use keeps its part of the flat buffer, with zeros."),
        Hint("frozen ones too",
             s.either(s.kind("frozen"), lambda p: ELEMENTS + 2 in [n for _, _,
                 n in p.fact("got", [])]),
             "a parameter with requires_grad False has no gradient: leave it alone, and do not "
             "send it."),
        s.NARROW,
        Hint("a gradient that does not lie row by row", s.refused("view"),
             "a gradient may lie in memory as its transposed does: view refuses that; flatten and "
             "reshape copy it."),
        Hint("slices exchanged", s.either(s.kind("value"), s.refused("shape")),
             "write back in the order in which you flattened: each slice begins where the one "
             "before it ends, and has p.numel() elements."),
        s.NOT_GIVEN,
        Hint("one message per parameter", lambda p: p.kind == "calls" and len(p.facts["got"]) > 3,
             "a norm's weight is small, and every message costs its latency: copy all gradients "
             "into one flat buffer, and all-reduce that once."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("sequence", (GATHER_SEQUENCE, SCATTER_SEQUENCE, SUM_GRADIENTS))
