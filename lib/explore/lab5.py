"""The explorer of Lab 5: how many tokens are dropped with a capacity factor, and how many slots
stay empty.

Each of n tokens chooses one of E experts. Expert e = 0 ... E-1 is chosen with a probability p_e
that falls with e if the skew s is above 0, and more steeply for a larger s:

    p_e = (e+1)^-s / sum of these          s = 0: all experts equally often
                                           s = 1: the first is chosen E times as often as the last
    C = ceil(factor n / E)                 slots of each expert
    dropped = sum over e of E[max(0, N_e - C)] / n
                                           N_e: tokens that choose expert e, binomial with n and p_e
    empty   = 1 - n (1 - dropped) / (E C)
"""

import math
from fractions import Fraction

import numpy as np

from lib import plots
from lib.explore.show import explore

FACTORS = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0]
CURVE = [round(0.5 + 0.05 * i, 2) for i in range(71)]  # factors at which curves are computed


def capacity():
    """The share of tokens that are dropped and the share of slots that stay empty, for a capacity
    factor, a skew, and numbers of experts and tokens of your choice."""
    explore(
        draw_capacity,
        capacity_factor=FACTORS,
        experts=[2, 4, 8, 16, 32, 64],
        skew=[0.0, 0.25, 0.5, 0.75, 1.0, 1.5],
        tokens=[64, 256, 1024, 4096],
    )


def draw_capacity(capacity_factor=1.25, experts=8, skew=0.5, tokens=1024):
    """The figure of `capacity`. tokens: how many are routed together and share the slots."""
    dropped, empty = dropped_and_empty(CURVE, experts, skew, tokens)
    busiest = experts * popularity(experts, skew)[0]
    note = (
        f"{tokens:,} tokens, {experts} experts; the busiest is asked {busiest:.2g} times as often "
        f"as on average."
    )
    curves = {"tokens dropped": (CURVE, dropped), "slots empty": (CURVE, empty)}
    return plots.capacity_trade(curves, at=capacity_factor, note=note)


def popularity(experts, skew):
    """(E,): p_e, the probability with which each expert is chosen."""
    weight = (1.0 + np.arange(experts)) ** -skew
    return weight / weight.sum()


def dropped_and_empty(factors, experts, skew, tokens):
    """For each capacity factor, the expected share of tokens that are dropped, and that of slots
    that stay empty: two lists."""
    # dropped = sum over e of E[max(0, N_e - C)] / n
    # (n+1,): the dropped share for C = 0 ... n
    dropped_with = sum(expected_excess(tokens, p) for p in popularity(experts, skew)) / tokens
    slots = [min(tokens, math.ceil(Fraction(str(factor)) * tokens / experts)) for factor in factors]
    dropped = [float(dropped_with[C]) for C in slots]
    # empty = 1 - n (1 - dropped) / (E C)
    return dropped, [
        max(0.0, 1 - tokens * (1 - d) / (experts * C)) for C, d in zip(slots, dropped, strict=True)
    ]


def expected_excess(n, p):
    """(n+1,): E[max(0, N - C)] for C = 0 ... n, where N is binomial with n trials of probability
    p."""
    count = np.arange(n + 1)
    log_factorial = np.concatenate([[0.0], np.log(count[1:]).cumsum()])
    choose = log_factorial[n] - log_factorial - log_factorial[::-1]
    probability = np.exp(choose + count * math.log(p) + (n - count) * math.log1p(-p))
    at_least = probability[::-1].cumsum()[::-1]  # P(N >= j)
    return at_least[::-1].cumsum()[::-1] - at_least  # sum over j > C of P(N >= j)
