"""Answers to Lab 0's all_reduce_time, function by function: wrong ones, each with its hint, and
right ones.

Some mistakes can be made with every formula: `slips` makes them of a right one.
"""

from math import ceil, floor, log2

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
        three_times: "not its rounds and its bytes",
        returns_nothing: "nothing returned",
        not_written: "not written",
    }


# wrong, each in its own way: star


# tree


# ring


# recursive doubling


# halving and doubling


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
        **slips(star_time),
    },
    "tree_time": {
        **slips(tree_time),
    },
    "ring_time": {
        **slips(ring_time),
    },
    "recursive_doubling_time": {
        **slips(recursive_doubling_time),
    },
    "halving_doubling_time": {
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
