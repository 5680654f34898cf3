"""Known mistakes of merge_attention, each named after its cause."""

from mistakes import Mistake, edit

MISTAKES = (
    Mistake("the mean of the two",
            edit("weights[0] * one.out + weights[1] * other.out", "(one.out + other.out) / 2")),
    Mistake("the parts added",
            edit("weights[0] * one.out + weights[1] * other.out", "one.out + other.out")),
    Mistake("weights exchanged",
            edit("weights[0] * one.out + weights[1] * other.out",
                 "weights[1] * one.out + weights[0] * other.out")),
    Mistake("weighed by log_sum", edit("(part.log_sum - seen).exp()", "(part.log_sum / seen)")),
    Mistake("the largest for the sum",
            edit("torch.logaddexp(one.log_sum", "torch.maximum(one.log_sum")),
    Mistake("logarithms added",
            edit("torch.logaddexp(one.log_sum, other.log_sum)", "one.log_sum + other.log_sum")),
    Mistake("not divided", edit("(part.log_sum - seen).exp()", "part.log_sum.exp()")),
    Mistake("powers of two", edit("torch.logaddexp(", "torch.logaddexp2(")),
)  # fmt: skip
