"""Known mistakes of merge_attention, each named after its cause."""

from mistakes import Mistake, edit

MISTAKES = (
    Mistake("the mean of the two",
            edit("weights[0] * one.out + weights[1] * other.out", "(one.out + other.out) / 2"),
            "both count alike here. A part whose exponentials add up to more weighs more."),
    Mistake("the parts added",
            edit("weights[0] * one.out + weights[1] * other.out", "one.out + other.out"),
            "each out is already divided by its own sum: weigh them by exp(log_sum - new log_sum), "
            "which add up to 1."),
    Mistake("weights exchanged",
            edit("weights[0] * one.out + weights[1] * other.out",
                 "weights[1] * one.out + weights[0] * other.out"),
            "each part has the other's weight."),
    Mistake("weighed by log_sum", edit("(part.log_sum - seen).exp()", "(part.log_sum / seen)"),
            "log_sum is a logarithm: what a part weighs is its exponential."),
    Mistake("the largest for the sum",
            edit("torch.logaddexp(one.log_sum", "torch.maximum(one.log_sum"),
            "the larger of the two is not their sum: log(exp(a) + exp(b))."),
    Mistake("logarithms added",
            edit("torch.logaddexp(one.log_sum, other.log_sum)", "one.log_sum + other.log_sum"),
            "that is the logarithm of the product. The exponentials are added."),
    Mistake("not divided", edit("(part.log_sum - seen).exp()", "part.log_sum.exp()"),
            "the weights must add up to 1: divide by the sum, exp(log_sum - new log_sum)."),
    Mistake("powers of two", edit("torch.logaddexp(", "torch.logaddexp2("),
            "exp is to base e, as softmax is: torch.logaddexp, not logaddexp2."),
)  # fmt: skip
