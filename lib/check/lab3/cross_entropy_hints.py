"""The mistakes that vocab_parallel_cross_entropy knows."""

from lib.check.framework import Hint
from lib.check.lab3 import cross_entropy_known as known
from lib.check.lab3.compare import it_is
from lib.check.lab3.wired import CALLS_LIB, OTHERWISE, TWO_ONLY, WHOSE_RANKS, WRONG_GROUP


def _value(*words):
    return lambda p: p.kind == "value" and it_is(*words)(p)


def _gradient(*words):
    return lambda p: p.kind == "gradient" and it_is(*words)(p)


def _large(fits):
    return lambda p: p.kind == "value" and p.facts.get("large", False) and fits(p.facts)


def _takes_the_op_second(p):
    return p.kind == "raised" and ("ReduceOp" in p.text or "op" in p.text) and "all_reduce(" in p.text


HINTS = (
    CALLS_LIB,
    WRONG_GROUP,
    WHOSE_RANKS,
    Hint(
        "no largest taken off",
        _large(lambda facts: facts["max"] == 0 and facts["calls"] < 3),
        "exp(1000) is inf, and if all logits are near -1000 every exp is 0. Take the largest logit of the token off "
        "first, the largest of all ranks: all_reduce(largest, group, op=dist.ReduceOp.MAX).",
    ),
    Hint(
        "the max taken as a sum",
        _large(lambda facts: facts["max"] == 0),
        "all_reduce sums, unless you say op=dist.ReduceOp.MAX. With another number than the largest the loss is right "
        "as long as logits are small, and overflows when they are not.",
    ),
    Hint(
        "something else overflows",
        _large(lambda facts: True),
        "with small logits the loss was right. exp is safe only if its argument is at most 0, and 0 for one word of "
        "each token: z - m, with m the largest logit of that token on all ranks.",
    ),
    TWO_ONLY,
    Hint(
        "a row that this rank does not have",
        lambda p: p.kind == "raised" and ("out of range" in p.text or "out of bounds" in p.text),
        "a target's place among this rank's logits is target - rank * V/tp. Below 0 and from V/tp on it is another "
        "rank's: gather at 0 there, and put zeros over what comes.",
    ),
    Hint(
        "all_reduce's arguments",
        _takes_the_op_second,
        "it is all_reduce(tensor, group, op=dist.ReduceOp.MAX): the group comes second.",
    ),
    Hint(
        "softmax over the rank's own words",
        _value(known.LOCAL),
        "the sum of exp must be over all words: all-reduce each rank's sum of exp(z - m), then take the log.",
    ),
    Hint(
        "each rank its own largest",
        _value(known.OWN_MAX),
        "m must be the same on all ranks, or their sums of exp(z - m) cannot be added: "
        "all_reduce(largest, group, op=dist.ReduceOp.MAX).",
    ),
    Hint(
        "m on one side only",
        _value(known.ONE_SIDE),
        "-log p = log sum exp(z - m) - (z_target - m): the same m is taken off both, so that it cancels.",
    ),
    Hint(
        "the target on the wrong rank",
        _value(known.NOT_MINE),
        "one rank has the target's logit, and the others must add 0: masked_fill(elsewhere, 0.0), after m is taken "
        "off.",
    ),
    Hint(
        "the target's logit is not summed",
        _value(known.NO_SUM),
        "only one rank has the target's logit. The others need it too: all-reduce it, with zeros from the others.",
    ),
    Hint("the sum, not the mean", _value(known.NOT_MEAN), "the mean over all B*T tokens: .mean() at the end."),
    Hint(
        "N times",
        _value(known.TIMES_N),
        "after the all-reduces all ranks have the same loss: neither add it up over the ranks, nor divide by N.",
    ),
    Hint(
        "not one number",
        lambda p: p.kind == "form",
        "the loss is one number, the mean over all B*T tokens, as a tensor of shape () in the dtype of the logits.",
    ),
    Hint(
        "no gradient",
        lambda p: p.kind == "gradient" and "got None" in p.text,
        "logits.grad is None: the way from the logits to the loss is cut. Inside torch.autograd.Function.forward "
        "nothing is recorded: backward must return the gradient.",
    ),
    Hint(
        "the target's 1 is missing", _gradient(known.NO_ONE), "dL/dz_v = p_v - 1 where v is the target, p_v elsewhere."
    ),
    Hint(
        "a 1 on every rank",
        _gradient(known.ONES),
        "only the rank that has the target takes 1 off. Where it is another rank's, row 0 is not the target.",
    ),
    Hint(
        "p of the rank's own words",
        _gradient(known.LOCAL_P),
        "p_v = exp(z_v - m) / the sum over all words, of all ranks: keep the reduced sum for backward.",
    ),
    Hint(
        "the scale of the gradient",
        _gradient(known.NO_MEAN, known.IGNORES, "x expected", "expected /"),
        "the loss is a mean over B*T tokens, and backward is given the gradient of the loss: grad * (p - 1 at the "
        "target) / (B*T). All ranks have the same loss: no factor N, no all-reduce.",
    ),
    Hint(
        "a gradient through the largest",
        _gradient(known.MAX_TOO),
        "m cancels out of the loss, so it has no gradient; but each rank sees its own half of that only. Take the "
        "largest of logits.detach().",
    ),
    Hint(
        "a wrong gradient",
        lambda p: p.kind == "gradient",
        "dL/dz_v = (p_v - [v is the target]) / (B*T), with p over all words. An in-place all-reduce is nothing that "
        "autograd knows: write an autograd.Function, with a backward of your own.",
    ),
    Hint(
        "logits gathered",
        lambda p: (
            (p.kind == "another way" and "gather" in p.facts["called"]) or (p.kind == "elements" and p.facts["whole"])
        ),
        "that sends V numbers per token, 50,257 for GPT-2. The formula needs three: the largest, the sum of exp, and "
        "the target's logit.",
    ),
    OTHERWISE,
    Hint(
        "more than three numbers",
        lambda p: p.kind == "elements",
        "reduce over this rank's words first, and send what is left: (B, T) for the largest, the sum and the target.",
    ),
    Hint(
        "sends in backward",
        lambda p: p.kind == "backward",
        "with m and the sum known from forward, each rank has the p of its own words: backward needs nobody.",
    ),
    Hint(
        "changed what it was given",
        lambda p: p.kind == "touched",
        "`logits -= m` and .exp_() write into the caller's tensor, and `targets -= ...` too. logits - m makes a new "
        "tensor.",
    ),
)
