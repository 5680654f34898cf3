"""Answers to Lab 0's all_reduce_time, function by function: wrong ones, each with its hint, and right ones.

Some mistakes can be made with every formula: `slips` makes them of a right one.
"""

from math import ceil, floor, log, log2, log10

# right


def star_time(n_bytes, N, alpha, beta):
    into_rank_0 = out_of_rank_0 = (N - 1) * (alpha + n_bytes * beta)
    return into_rank_0 + out_of_rank_0


def tree_time(n_bytes, N, alpha, beta):
    return 2 * ceil(log2(N)) * (alpha + n_bytes * beta)


def ring_time(n_bytes, N, alpha, beta):
    return 2 * (N - 1) * alpha + 2 * (N - 1) / N * n_bytes * beta


def recursive_doubling_time(n_bytes, N, alpha, beta):
    rounds = floor(log2(N))
    if 2**rounds < N:
        rounds += 2
    return rounds * (alpha + n_bytes * beta)


def halving_doubling_time(n_bytes, N, alpha, beta):
    time, P, piece = 0, 1, n_bytes
    while 2 * P <= N:
        P, piece = 2 * P, piece / 2
        time += 2 * (alpha + piece * beta)
    return time if P == N else time + 2 * (alpha + n_bytes * beta)


FORMULAS = {
    "star": star_time,
    "tree": tree_time,
    "ring": ring_time,
    "recursive_doubling": recursive_doubling_time,
    "halving_doubling": halving_doubling_time,
}


def cheapest(n_bytes, N, alpha, beta):
    times = {name: time(n_bytes, N, alpha, beta) for name, time in FORMULAS.items()}
    return min(times, key=times.get)


def counted(step):
    """A right formula in another form: walk through the rounds, and add."""

    def time(n_bytes, N, alpha, beta):
        return sum(alpha + size * beta for size in step(n_bytes, N))

    time.__name__ = f"counted_{step.__name__}"
    return time


def star(n, N):
    return [n for _ in range(1, N)] * 2


def tree(n, N):
    distance, rounds = 1, []
    while distance < N:
        distance, rounds = 2 * distance, [*rounds, n]
    return rounds + rounds


def ring(n, N):
    return [n / N] * (N - 1) + [n / N] * (N - 1)


def recursive_doubling(n, N):
    inside = [n] * (N.bit_length() - 1)
    return inside if N & (N - 1) == 0 else [n, *inside, n]


def halving_doubling(n, N):
    halving = [n / 2 ** (step + 1) for step in range(N.bit_length() - 1)]
    inside = halving + halving[::-1]
    return inside if N & (N - 1) == 0 else [n, *inside, n]


def by_hand(n_bytes, N, alpha, beta):
    """The least of three is enough: the star and the tree are never faster than these."""
    doubling = recursive_doubling_time(n_bytes, N, alpha, beta)
    halving = halving_doubling_time(n_bytes, N, alpha, beta)
    round_the_ring = ring_time(n_bytes, N, alpha, beta)
    if round_the_ring <= min(halving, doubling):
        return "ring"
    return "recursive_doubling" if doubling < halving else "halving_doubling"


# wrong, whatever the formula


def slips(time):
    def without_latency(n, N, a, b):
        return time(n, N, 0, b)

    def latency_once(n, N, a, b):
        return a + time(n, N, 0, b)

    def without_bytes(n, N, a, b):
        return time(n, N, a, 0)

    def divides_by_beta(n, N, a, b):
        return time(n, N, a, 1 / b)

    def in_microseconds(n, N, a, b):
        return time(n, N, a, b) * 1e6

    def in_milliseconds(n, N, a, b):
        return time(n, N, a, b) * 1e3

    def three_times(n, N, a, b):
        return 3 * time(n, N, a, b)

    def returns_nothing(n, N, a, b):
        time(n, N, a, b)

    def not_written(n, N, a, b):
        raise NotImplementedError

    return {
        without_latency: "latency forgotten",
        latency_once: "latency once",
        without_bytes: "bytes forgotten",
        divides_by_beta: "beta taken for a bandwidth",
        in_microseconds: "another unit",
        in_milliseconds: "another unit",
        three_times: "not its rounds or its bytes",
        returns_nothing: "nothing returned",
        not_written: "not written",
    }


# wrong, each in its own way: star


def star_one_way(n, N, a, b):
    return (N - 1) * (a + n * b)


def star_at_once(n, N, a, b):
    return 2 * (a + n * b)


def star_of_n(n, N, a, b):
    return 2 * N * (a + n * b)


# tree


def tree_down_only(n, N, a, b):
    return ceil(log2(N)) * (a + n * b)


def tree_to_base_e(n, N, a, b):
    return 2 * log(N) * (a + n * b)


def tree_to_base_e_rounded(n, N, a, b):
    return 2 * ceil(log(N)) * (a + n * b)


def tree_to_base_10(n, N, a, b):
    return 2 * log10(N) * (a + n * b)


def tree_without_rounding(n, N, a, b):
    return 2 * log2(N) * (a + n * b)


def tree_rounded_down(n, N, a, b):
    return 2 * int(log2(N)) * (a + n * b)


def tree_counts_messages(n, N, a, b):
    return 2 * (N - 1) * (a + n * b)


def tree_divides(n, N, a, b):
    return 2 * ceil(log2(N)) * (a + n / N * b)


# ring


def ring_one_pass(n, N, a, b):
    return (N - 1) * (a + n / N * b)


def ring_of_n_rounds(n, N, a, b):
    return 2 * N * (a + n / N * b)


def ring_of_whole_tensors(n, N, a, b):
    return 2 * (N - 1) * (a + n * b)


def ring_with_too_few_chunks(n, N, a, b):
    return 2 * (N - 1) * (a + n / (N - 1) * b)


def ring_of_whole_bytes(n, N, a, b):
    return 2 * (N - 1) * (a + n // N * b)


def ring_with_half_the_latency(n, N, a, b):
    return (N - 1) * a + 2 * (N - 1) / N * n * b


# recursive doubling


def doubling_twice(n, N, a, b):
    return 2 * recursive_doubling_time(n, N, a, b)


def doubling_as_a_tree(n, N, a, b):
    return 2 * ceil(log2(N)) * (a + n * b)


def doubling_without_folding(n, N, a, b):
    return ceil(log2(N)) * (a + n * b)


def doubling_without_rounding(n, N, a, b):
    return log2(N) * (a + n * b)


def doubling_divides(n, N, a, b):
    return recursive_doubling_time(n / 2 ** floor(log2(N)), N, a, b)


# halving and doubling


def halving_only(n, N, a, b):
    P = 2 ** floor(log2(N))
    return log2(P) * a + (P - 1) / P * n * b + (2 * (a + n * b) if P < N else 0)


def halving_whole_tensors(n, N, a, b):
    P = 2 ** floor(log2(N))
    return (2 * log2(P) + 2 * (P < N)) * (a + n * b)


def halving_of_equal_pieces(n, N, a, b):
    P = 2 ** floor(log2(N))
    return 2 * log2(P) * (a + n / P * b) + (2 * (a + n * b) if P < N else 0)


def halving_in_ring_rounds(n, N, a, b):
    return ring_time(n, N, a, b)


def halving_without_folding(n, N, a, b):
    return 2 * (ceil(log2(N)) * a + (N - 1) / N * n * b)


def halving_without_rounding(n, N, a, b):
    return 2 * (log2(N) * a + (N - 1) / N * n * b)


def halving_of_p_ranks_only(n, N, a, b):
    P = 2 ** floor(log2(N))
    return 2 * (log2(P) * a + (P - 1) / P * n * b)


# cheapest


def always_the_ring(n, N, a, b):
    return "ring"


def the_dearest(n, N, a, b):
    return max(FORMULAS, key=lambda name: FORMULAS[name](n, N, a, b))


def by_size_alone(n, N, a, b):
    return "recursive_doubling" if n < 10_000 else "halving_doubling"


def by_ranks_alone(n, N, a, b):
    return "ring" if N < 8 else "halving_doubling"


def for_one_link(n, N, a, b):
    return cheapest(n, N, 20e-6, 1e-9)


def of_three_only(n, N, a, b):
    return min(("star", "tree", "ring"), key=lambda name: FORMULAS[name](n, N, a, b))


def divides_by_beta(n, N, a, b):
    return cheapest(n, N, a, 1 / b)


def the_time(n, N, a, b):
    return min(time(n, N, a, b) for time in FORMULAS.values())


def the_function(n, N, a, b):
    return min(FORMULAS.values(), key=lambda time: time(n, N, a, b))


def spelt_otherwise(n, N, a, b):
    return cheapest(n, N, a, b).replace("_", "-")


def prints_the_name(n, N, a, b):
    cheapest(n, N, a, b)


def not_written(n, N, a, b):
    raise NotImplementedError


WRONG = {
    "star_time": {
        star_one_way: "one of the two passes",
        star_at_once: "all at once",
        star_of_n: "N for N-1",
        **slips(star_time),
    },
    "tree_time": {
        tree_down_only: "one of the two passes",
        tree_to_base_e: "a logarithm to another base",
        tree_to_base_e_rounded: "a logarithm to another base",
        tree_to_base_10: "a logarithm to another base",
        tree_without_rounding: "rounds that are not whole",
        tree_rounded_down: "rounds that are not whole",
        tree_counts_messages: "one message after another",
        tree_divides: "bytes divided",
        **slips(tree_time),
    },
    "ring_time": {
        ring_one_pass: "one of the two passes",
        ring_of_n_rounds: "N for N-1",
        ring_of_whole_tensors: "whole tensors",
        ring_with_too_few_chunks: "chunks of n/(N-1)",
        ring_of_whole_bytes: "whole bytes only",
        ring_with_half_the_latency: "latency of one pass",
        **slips(ring_time),
    },
    "recursive_doubling_time": {
        doubling_twice: "two passes",
        doubling_as_a_tree: "two passes",
        doubling_without_folding: "no folding",
        doubling_without_rounding: "no folding",
        doubling_divides: "bytes divided",
        **slips(recursive_doubling_time),
    },
    "halving_doubling_time": {
        halving_only: "one of the two passes",
        halving_whole_tensors: "whole tensors",
        halving_of_equal_pieces: "the last size in every round",
        halving_in_ring_rounds: "a round for each rank",
        halving_without_folding: "no folding",
        halving_without_rounding: "no folding",
        halving_of_p_ranks_only: "no folding",
        **slips(halving_doubling_time),
    },
    "cheapest": {
        always_the_ring: "one for all",
        the_dearest: "the dearest",
        by_size_alone: "by size alone",
        by_ranks_alone: "whatever the size",
        for_one_link: "whatever the link",
        of_three_only: "not all compared",
        divides_by_beta: "not all compared",
        the_time: "a time, not a name",
        the_function: "no such name",
        spelt_otherwise: "no such name",
        prints_the_name: "nothing returned",
        not_written: "not written",
    },
}

RIGHT = {
    "star_time": [star_time, counted(star)],
    "tree_time": [tree_time, counted(tree)],
    "ring_time": [ring_time, counted(ring)],
    "recursive_doubling_time": [recursive_doubling_time, counted(recursive_doubling)],
    "halving_doubling_time": [halving_doubling_time, counted(halving_doubling)],
    "cheapest": [cheapest, by_hand],
}
