"""Overlap: buckets leave during backward, in one order on all ranks; what may go wrong is said, and
nothing hangs."""

import functools
import threading

import pytest
import torch
import torch.distributed as dist
from replicas import MODELS, share, student_ring
from torch import nn

from lib import launch, ledger
from lib.collectives import ring_all_reduce
from lib.data_parallel import BucketedDataParallel, NaiveDataParallel, OverlappedDataParallel

NPROC, LAYERS, WIDTH = 3, 4, 5
capture = functools.partial(launch.capture, backend="gloo", nproc=NPROC, timeout=300)


class Pause(torch.autograd.Function):
    """Identity, whose backward first calls `pause`."""

    @staticmethod
    def forward(ctx, x, pause):
        ctx.pause = pause
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.pause()
        return gradient, None


class Tower(nn.Module):
    """Linear layers one after another; backward pauses before the gradients of the first one."""

    def __init__(self, pause=lambda: None):
        super().__init__()
        self.layers, self.pause = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)),
            pause,
        )

    def forward(self, x):
        x = self.layers[0](x)
        x = Pause.apply(x, self.pause)
        for layer in self.layers[1:]:
            x = layer(x).tanh()
        return x


ONE_LAYER = WIDTH * WIDTH * 4  # bytes: a bucket per layer


def data():
    return torch.randn(
        4, WIDTH, generator=torch.Generator("cpu").manual_seed(dist.get_rank()), device="cpu"
    )


def one_step(wrapper, all_reduce, pause):
    """A step whose backward ends with a mark; returns how many all-reduces were over when
    backward paused."""
    over, at_pause = [], []

    def noted(tensor, group):
        all_reduce(tensor, group)
        over.append(tensor.numel())
        if len(over) == LAYERS - 1:
            enough.set()

    def wait():
        if pause:
            assert enough.wait(20), (
                "the buckets of the last layers do not leave before the first layer's gradient"
            )
        at_pause.append(len(over))

    enough, net = threading.Event(), wrapper(Tower(wait), capacity=ONE_LAYER, all_reduce=noted)
    loss = net(data()).sum()
    ledger.mark(f"{wrapper.__name__} backward")
    loss.backward()
    ledger.mark(f"{wrapper.__name__} after backward")
    net.average_gradients()
    ledger.mark("")
    return at_pause, over


def overlap():
    return one_step(OverlappedDataParallel, student_ring, True), one_step(
        BucketedDataParallel, student_ring, False
    )


@pytest.fixture(scope="module")
def steps():
    return capture(overlap)


def test_overlapped_has_sent_all_buckets_but_the_last_before_backward_ends(steps):
    for rank, ((at_pause, over), _) in enumerate(steps):
        assert at_pause == [LAYERS - 1] and len(over) == LAYERS
        mine = steps.ledger.of(rank)
        (end,) = [
            e for e in mine if e.op == "mark" and e.file == "OverlappedDataParallel after backward"
        ]
        inside = [
            e
            for e in steps.ledger.section("OverlappedDataParallel backward").of(rank)
            if e.op == "send"
        ]
        assert inside[0].posted < end.posted
        # N-1 messages a bucket; the last bucket's may begin on either side of the end of backward
        finished = [e for e in inside if e.wait_to is not None and e.wait_to < end.posted]
        assert len(finished) >= (NPROC - 1) * (LAYERS - 1)


def test_bucketed_has_sent_nothing_before_backward_ends(steps):
    for rank, (_, (at_pause, over)) in enumerate(steps):
        assert at_pause == [0] and len(over) == LAYERS
        assert steps.ledger.section("BucketedDataParallel backward").of(rank) == []
        after = steps.ledger.section("BucketedDataParallel after backward").of(rank)
        assert sum(e.op == "send" for e in after) == (NPROC - 1) * LAYERS


class Skips(nn.Module):
    """Layers of different widths, any of which may be left out: their buckets can be told
    apart by their size."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 1 + i, bias=False) for i in range(LAYERS))

    def forward(self, x, used):
        return sum(self.layers[i](x).sum() for i in used)


def some_layers(used_by):
    """Layers in the order [3, 2, 1, 0] of the buckets; returns [(step, sizes all-reduced,
    gradients)] of this rank."""
    seen, order = [], []

    def noted(tensor, group):
        order.append(tensor.numel())
        return ring_all_reduce(tensor, group)

    net = OverlappedDataParallel(Skips(), capacity=1, all_reduce=noted)
    for used in (used_by[dist.get_rank()], [0, 1, 2, 3]):
        net.zero_grad()
        if used:
            net(data(), used).backward()
        started = len(net.works)
        net.average_gradients()
        seen.append(
            (
                started,
                [n // WIDTH for n in order],
                [layer.weight.grad.clone() for layer in net.module.layers],
            )
        )
        order.clear()
    return seen, data()


def test_buckets_start_in_order_whatever_a_rank_uses():
    """Rank 0 lacks the first bucket's layer, rank 1 the second's, rank 2 skips
    backward altogether."""
    used_by = [[0, 1, 2], [3, 1, 0], []]
    results = capture(some_layers, used_by)
    for rank, (seen, _) in enumerate(results):
        (started, order, gradients), (started_then, order_then, _) = seen
        assert order == order_then == [4, 3, 2, 1], "one order on all ranks, in every step"
        assert started == [0, 1, 0][rank], "what is complete waits for the bucket before it"
        assert started_then == 4, "all of them, where every layer is used"
        for i, mean in enumerate(gradients):
            # d sum(W x) / dW, each row
            parts = [x.sum(0) for r, (_, x) in enumerate(results) if i in used_by[r]]
            torch.testing.assert_close(mean, (sum(parts) / NPROC).expand(1 + i, WIDTH))


def said(act):
    try:
        act()
    except RuntimeError as error:
        return str(error)


def misuse():
    """What is said to a second backward, and to a step that forgot to average; then the next step
    is right again."""
    net = OverlappedDataParallel(Tower(), capacity=ONE_LAYER, all_reduce=ring_all_reduce)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(data()).sum().backward()
    twice = said(lambda: net(data()).sum().backward())
    net.average_gradients()
    optimizer.zero_grad()
    net(data()).sum().backward()
    optimizer.step()  # forgot to average
    optimizer.zero_grad()
    forgot = said(lambda: net(data()).sum().backward())
    net.average_gradients()
    plain = NaiveDataParallel(Tower())
    plain.load_state_dict(net.state_dict())
    for right_again in (net, plain):
        right_again.zero_grad()
        right_again(data()).sum().backward()
        right_again.average_gradients()
    pairs = zip(net.parameters(), plain.parameters(), strict=True)
    return (twice, forgot), all(torch.allclose(p.grad, q.grad) for p, q in pairs)


def test_a_second_backward_and_a_forgotten_average_are_refused_with_the_next_move():
    for texts, right_again in capture(misuse):
        assert right_again
        for text in texts:
            assert "a second backward before average_gradients()" in text
            assert "bucket 0" in text and "(5, 5) parameter" in text
            assert "Call model.average_gradients() after backward" in text
            assert "`with model.no_sync():`" in text


def used_twice():
    """One layer twice in a forward, and a tied one: its hook must wait for the sum of both uses."""
    net = OverlappedDataParallel(
        nn.Linear(WIDTH, WIDTH, bias=False).double(), all_reduce=ring_all_reduce
    )
    x = data().double()
    net(net(x)).sum().backward()
    net.average_gradients()
    alone = net.module.weight.detach().clone().requires_grad_()
    (x @ alone.t() @ alone.t()).sum().backward()
    dist.all_reduce(alone.grad)
    return (
        net.module.weight.grad - alone.grad / NPROC
    ).abs().max().item() / alone.grad.abs().max().item()


def test_a_module_called_twice_in_one_step_is_averaged_once_and_whole():
    assert max(capture(used_twice)) < 1e-14


def no_sync_nests():
    net = OverlappedDataParallel(Tower(), capacity=ONE_LAYER)
    with net.no_sync():
        with net.no_sync():
            net(data()).sum().backward()
        net(data()).sum().backward()
        quiet = len(net.works)
        try:
            with net.no_sync():
                raise KeyError
        except KeyError:
            pass
        net(data()).sum().backward()
        quiet += len(net.works)
    net(data()).sum().backward()
    started = len(net.works)
    net.average_gradients()
    return quiet, started


def test_no_sync_may_nest_and_ends_with_an_error():
    assert list(capture(no_sync_nests)) == [(0, LAYERS)] * NPROC


def breaks_in_backward(wrapper):
    def break_on_rank_1():
        if dist.get_rank() == 1:
            gradient = float("nan")
            raise ArithmeticError(f"the gradient is {gradient}")

    net = wrapper(Tower(break_on_rank_1))
    net(data()).sum().backward()
    net.average_gradients()


@pytest.mark.parametrize(
    "wrapper", [NaiveDataParallel, BucketedDataParallel, OverlappedDataParallel]
)
def test_an_error_in_one_ranks_backward_is_named_and_nobody_hangs(wrapper):
    with pytest.raises(launch.RankError) as caught:
        capture(breaks_in_backward, wrapper, timeout=30)
    assert caught.value.kind == "raised", caught.value
    assert "rank 1 raised ArithmeticError: the gradient is nan" in str(caught.value)


def breaks_in_the_background():
    def broken(tensor, group):
        raise ArithmeticError("no such route")

    net = OverlappedDataParallel(Tower(), all_reduce=broken)
    net(data()).sum().backward()
    net.average_gradients()


def test_an_error_of_the_all_reduce_is_raised_where_it_is_waited_for():
    with pytest.raises(launch.RankError, match="all 3 ranks raised ArithmeticError: no such route"):
        capture(breaks_in_the_background, timeout=30)


def skips_average():
    """One rank forgets to average: the others wait for it."""
    case = MODELS["paths float64"]
    net = OverlappedDataParallel(case.build(0))
    case.loss(net, share(case.batch(0), dist.get_rank(), NPROC)).backward()
    if dist.get_rank() != 2:
        net.average_gradients()


def test_a_rank_that_does_not_average_is_named():
    with pytest.raises(launch.RankError) as caught:
        capture(skips_average, timeout=10)
    assert caught.value.kind in ("deadlock", "no progress", "timeout")
    assert "rank 2" in str(caught.value)
