"""A tensor-parallel layer, inside a node and across a slow link: predicted and measured.

    forward     [ attention/tp ][= g =][ MLP/tp ][= g =]
    backward                    [  MLP/tp  ][= f =][ attention/tp ][= f =]

    seconds of a layer = compute / tp + 4 all-reduces of (B, T, D)            tp 1, 2, 4

On paced ranks (lib/measuring/paced.py): the products wait, each for its time over tp; f and g, the
messages and the additions are lib's own. Inside a node is this machine as it is. Across nodes every
rank is a node, and its link is slow (lib/collectives/slow_link.py). The ring is named, not left to
the front door, whose thresholds hold for loopback.

A link's alpha and beta come from two other rings of the same round, of one number and of four times
as many: so a layer is foretold from its parts, and nothing is fitted to it. The control is another
round's prediction against this one's. What a prediction misses by more than 20 % would be something
that the formula does not know.
"""

import contextlib
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from lib import backend, launch, plots
from lib.collectives import ring_all_reduce
from lib.collectives.cost import COST
from lib.collectives.slow_link import slow_link
from lib.measuring.paced import PacedLayer
from lib.tensor_parallel import copy_to_group, reduce_from_group
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import Side, timed, where

B, T, D = 4, 64, 256  # 256 KB of float32
FORWARD, BACKWARD = 16e-3, 32e-3  # seconds of a layer's products on one rank
LAYERS = 4  # in a row: a message that waits for a late rank delays one layer, not the mean of all
LINK = (1e-3, 40e6)  # seconds per message, bytes per second, across nodes
INSIDE, ACROSS = "inside a node", "across nodes"
LARGER = 4  # the ring that beta comes from, in (B, T, D)
RINGS = {  # between two looks at the clock: for 20 ms at least
    "short ring": {INSIDE: 200, ACROSS: 10},
    "long ring": {INSIDE: 40, ACROSS: 2},
}
WITHIN = Bar(
    0.2,
    "The formula chooses tp: at 20 % off it still tells a layer that gains from one that loses.",
)


def run(quick):
    return outcome(*measured([1, 2, 4], 3 if quick else ROUNDS))


def measured(degrees, rounds):
    """({tp: {(what, link): (rounds,) seconds of a layer, or of a ring}}, what they ran on)"""
    found = {
        tp: launch.capture(on_ranks, rounds, nproc=tp, timeout=2400, ledger=False)[0]
        for tp in degrees
    }
    places = dict.fromkeys(place for _, place in found.values())
    return {tp: times for tp, (times, _) in found.items()}, "; ".join(places)


def outcome(found, place):
    """What the times of `measured` say."""
    rows, cells, data = [], [], {}
    for link in (INSIDE, ACROSS):
        for tp, times in found.items():
            lasted, (alpha, beta) = times["layer", link], alpha_beta(times, link, tp)
            said = predicted(tp, alpha, beta)
            found_off = compare(abs(lasted - said), said, np.roll(said, 1))
            rows.append(report.Row(f"{link}, tp {tp}", tp, "paced", found_off, WITHIN))
            data[link, tp] = {"measured": lasted, "predicted": said, "alpha": alpha, "beta": beta}
            cells.append([link, str(tp), *of_link(alpha, beta), *of_layer(tp, lasted, said)])
    header = [
        "link",
        "tp",
        "alpha",
        "beta, a MB",
        "measured",
        "predicted",
        "measured / predicted",
        "sending",
    ]
    table = report.Table("A layer (medians over the rounds)", header, cells)
    alpha, rate = LINK
    told = [
        f"{report.duration(predicted(tp, alpha, 1 / rate))} at tp {tp}" for tp in found if tp > 1
    ]
    notes = [
        f"{report.duration(FORWARD + BACKWARD)} of products on one rank, {LAYERS} layers in a row, "
        f"all-reduces of {report.size(4 * B * T * D)}. Ours: how far measured and predicted are "
        f"apart; theirs: predicted.",
        f"The link is told {report.duration(alpha)} per message and {rate / 1e6:g} MB/s; by these "
        f"alone a layer takes {' and '.join(told)}. The alpha found is higher: a message's own "
        f"work comes on top.",
    ]
    return report.Outcome(place, draw(data), rows, [table], notes, data)


def alpha_beta(times, link, tp):
    """(alpha, beta), seconds and seconds per byte, (rounds,) each, from rings of one number and of
    LARGER (B, T, D)."""
    short, long = times["short ring", link], times["long ring", link]
    if tp == 1:
        return short, long  # no message: all zero
    rounds, chunk = COST["ring"].rounds(tp), 4 * LARGER * B * T * D / tp
    return short / rounds, (long - short) / rounds / chunk


def predicted(tp, alpha, beta):
    """Seconds of a layer: compute / tp + 4 all-reduces of (B, T, D)."""
    return (FORWARD + BACKWARD) / tp + 4 * COST["ring"].time(4 * B * T * D, tp, alpha, beta)


def of_link(alpha, beta):
    """A link's medians; one rank has no link."""
    if not alpha.any():
        return "-", "-"
    return report.duration(np.median(alpha)), report.duration(1e6 * np.median(beta))


def of_layer(tp, lasted, said):
    exposed = 1 - (FORWARD + BACKWARD) / tp / lasted
    times = [report.duration(np.median(seconds)) for seconds in (lasted, said)]
    return *times, f"{np.median(lasted / said):.3f}", f"{np.median(exposed):.0%}"


# --- on the ranks ---------------------------------------------------------------------------------


def on_ranks(rounds):
    """{(what, link): (rounds,) seconds of a layer, of a short ring, of a long one}, and
    what it ran on."""
    tp = dist.get_world_size()
    layers, x = (
        nn.Sequential(*(PacedTensorParallelLayer(tp) for _ in range(LAYERS))),
        torch.ones(B, T, D),
    )
    layers, x = layers.to(backend.device()), x.to(backend.device())
    check_sums(layers, x, tp)
    if tp == 1:  # no message, so no link
        seconds = (
            timed({"layer": Side(lambda: forward_and_backward(layers, x))}, rounds)["layer"]
            / LAYERS
        )
        one = {"layer": seconds, "short ring": np.zeros(rounds), "long ring": np.zeros(rounds)}
        return {
            (what, link): each for what, each in one.items() for link in (INSIDE, ACROSS)
        }, where()

    numbers = {"short ring": 1, "long ring": LARGER * x.numel()}
    tensors = {what: torch.zeros(n, device=backend.device()) for what, n in numbers.items()}
    sides, calls = {}, {}
    for link, inside in {
        INSIDE: contextlib.nullcontext,
        ACROSS: partial(slow_link, 1, *LINK),
    }.items():
        sides["layer", link] = Side(partial(forward_and_backward, layers, x), inside)
        calls["layer", link] = LAYERS
        for what, tensor in tensors.items():
            sides[what, link] = Side(partial(rings, tensor, RINGS[what][link]), inside)
            calls[what, link] = RINGS[what][link]
    return {side: seconds / calls[side] for side, seconds in timed(sides, rounds).items()}, where()


class PacedTensorParallelLayer(nn.Module):
    """A layer's way of sending, (B, T, D) -> (B, T, D): twice f, products that wait, g."""

    def __init__(self, tp):
        super().__init__()
        # of a half, on this rank, per sequence
        seconds = [way / 2 / tp / B for way in (FORWARD, BACKWARD)]
        self.attention, self.mlp = PacedLayer(1, *seconds), PacedLayer(1, *seconds)

    def forward(self, x):
        for products in (self.attention, self.mlp):
            x = copy_to_group(x, all_reduce=ring_all_reduce)  # f
            x = reduce_from_group(products(x), all_reduce=ring_all_reduce)  # g
        return x


def forward_and_backward(layers, x):
    """The result and the gradient of x, from a gradient of ones."""
    x = x.clone().requires_grad_()
    y = layers(x)
    y.backward(torch.ones_like(y))
    return y.detach(), x.grad


def check_sums(layers, x, tp):
    """A paced product's result is its input, so every f and g multiplies by tp: or
    something was not sent."""
    for what, got in zip(("result", "gradient"), forward_and_backward(layers, x), strict=True):
        if not (got == (expected := float(tp ** (2 * LAYERS)))).all():
            raise RuntimeError(
                f"the {what} is {got.flatten()[0]:g}, not {expected:g}: not every sum was sent"
            )


def rings(tensor, n):
    for _ in range(n):
        ring_all_reduce(tensor)


# --- the figure -----------------------------------------------------------------------------------


def draw(data):
    curves = {"measured": {}, "predicted": {}}
    for link in dict.fromkeys(link for link, _ in data):
        degrees = [tp for where, tp in data if where == link]
        for how, of_each in curves.items():
            of_each[link] = degrees, [float(np.median(data[link, tp][how])) for tp in degrees]
    alpha, rate = LINK
    link = f"a link of {1e3 * alpha:g} ms a message and {rate / 1e6:g} MB/s"
    note = (
        f"{1e3 * (FORWARD + BACKWARD):g} ms of products, paced, and four all-reduces; across "
        f"nodes, {link}."
    )
    return plots.tp_volume(curves["measured"], curves["predicted"], note=note)
