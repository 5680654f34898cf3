"""How long one step of data parallelism takes, how it scales, and how large a batch has to be to
hide the communication.

    after backward    [ forward ][     backward     ][ c ][ c ][ c ][ c ]

    overlapped  [ forward ][     backward     ]
                               [ c ][ c ][ c ] [ c ]  bucket k is ready
                                                      once (k+1)/K of backward is done

N ranks      b rows (examples, or tokens) per rank, n bytes of gradients in K equal buckets
F, B         seconds of forward and backward, b rows
alpha, beta  seconds per message, seconds per byte
c            seconds of one bucket's all-reduce

    c = 2(N-1) (alpha + n/(K N) beta)                       a ring
    t = F + B + K c                                         after backward
    t = F + max(B + c, B/K + K c)                           overlapped

The maximum has two cases. If backward takes longer, only the last bucket is exposed. If
communication takes longer, it begins once the first bucket is ready and then runs without a break.
The two are equal at B = K c. B and F grow with the rows and c does not, so there is a break-even
number of rows per rank, K c / (seconds of backward per row), above which all but the last bucket is
hidden. (This is not the "critical batch" of McCandlish et al. 2018, above which a larger batch
saves few updates.)

Everywhere in this file, compute is (forward, backward) in seconds per row, and link is (alpha,
beta) of a rank's own link. The model leaves out the optimizer's step and the copies to and from
buckets. It also ignores that a device may compute more slowly while it communicates, or on few
rows.

Sources: Li et al. 2020, "PyTorch Distributed", for buckets and overlap; Patarasuk & Yuan 2009 for
the ring; Kaplan et al. 2020, section 2.1, for 2 and 4 operations per parameter and token.
"""

from typing import NamedTuple

from lib.collectives.cost import COST


class Step(NamedTuple):
    """The seconds that one step takes on a rank, and their parts."""

    forward: float
    backward: float
    communication: float  # all buckets together, hidden or not
    seconds: float  # of the whole step

    @property
    def exposed(self):
        """Seconds in which the rank computes nothing: it waits for communication."""
        return self.seconds - self.forward - self.backward

    @property
    def hidden(self):
        """The share of communication that backward hides, from 0 to 1; 0 if there is no
        communication."""
        return max(0.0, 1 - self.exposed / self.communication) if self.communication else 0.0

    @property
    def share(self):
        """The share of the step that is exposed communication, from 0 to 1."""
        return self.exposed / self.seconds


def ring_time(n_bytes, N, link):
    """Seconds of a ring all-reduce of n_bytes over N ranks."""
    alpha, beta = link
    return COST["ring"].time(n_bytes, N, alpha, beta)


def bucketed_step(rows, N, n_bytes, compute, link, buckets):
    """The Step of N ranks with `rows` rows each, which send their gradients after backward, in
    `buckets` buckets."""
    F, B = (rows * seconds for seconds in compute)
    c = ring_time(n_bytes / buckets, N, link)
    return Step(F, B, buckets * c, F + B + buckets * c)


def overlapped_step(rows, N, n_bytes, compute, link, buckets):
    """The Step of N ranks with `rows` rows each, which send each of `buckets` equal buckets as soon
    as it is ready."""
    F, B = (rows * seconds for seconds in compute)
    c = ring_time(n_bytes / buckets, N, link)
    # t = F + max(B + c, B/K + K c)
    return Step(F, B, buckets * c, F + max(B + c, B / buckets + buckets * c))


def bucket_times(ready, seconds):
    """[(begin, end), ...] of the buckets' all-reduces, which run one after the other, none before
    its bucket is ready.

    ready: when each bucket is complete, in the order in which they are sent. seconds: how long each
    all-reduce takes. For equal buckets the formula of `overlapped_step` gives the same end; use
    this function if the buckets differ.
    """
    times, free = [], 0.0
    for is_ready, takes in zip(ready, seconds, strict=True):
        begin = max(is_ready, free)
        free = begin + takes
        times.append((begin, free))
    return times


def strong_scaling(step, batch, ranks, *costs):
    """[rows per second, ...] for each N of `ranks`, with the full batch of `batch` rows divided
    among them.

    step: `bucketed_step` or `overlapped_step`; costs: its arguments after N. On one rank the result
    is 1 / sum(compute).
    """
    return [batch / step(batch / N, N, *costs).seconds for N in ranks]


def weak_scaling(step, rows, ranks, *costs):
    """[rows per second, ...] for each N of `ranks`, with `rows` rows on each rank, so that the
    batch grows with N."""
    return [N * rows / step(rows, N, *costs).seconds for N in ranks]


def break_even_rows(N, n_bytes, compute, link, buckets):
    """Rows per rank at which communication takes as long as backward, K c = B. With fewer rows,
    more than the last bucket is exposed.

    This is (2(N-1) K alpha + 2(N-1)/N n beta) / (backward per row). The bandwidth term levels
    off as N grows, whereas the latency term keeps growing. Counted in tokens, without latency,
    with 2 bytes per gradient and 4 operations per parameter and token, the model's size cancels,
    and operations per second / bytes per second remains (Austin et al. 2025, part 5).
    """
    return buckets * ring_time(n_bytes / buckets, N, link) / compute[1]


def seconds_per_token(parameters, flops):
    """(forward, backward): seconds per token for a model of `parameters` parameters, on a device
    that achieves `flops` operations per second."""
    return 2 * parameters / flops, 4 * parameters / flops
