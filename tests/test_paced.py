"""What a paced layer and stage give is exact, they take at least their time, and the
parallelisms run on them."""

import time

import pytest
import torch
import torch.distributed as dist

from lib import launch
from lib.data_parallel import BucketedDataParallel, OverlappedDataParallel
from lib.measuring.paced import PacedLayer, PacedStage, Spans
from lib.pipeline.stage import Stage


def gradients(x, layers=3):
    """The gradients of sum(y^2) of a stack of layers with different weights; float64."""
    stack = torch.nn.Sequential(*[PacedLayer(5 + i, 0, 0) for i in range(layers)]).double()
    for i, layer in enumerate(stack):
        torch.nn.init.constant_(layer.weight, 0.5 + i)
    stack(x).square().sum().backward()
    return [layer.weight.grad for layer in stack]


def test_the_equation():
    layer = PacedLayer(4, 0, 0)
    x = torch.tensor([[1.0, -2.0], [3.0, 5.0]], requires_grad=True)
    assert torch.equal(layer(x), x)  # the weight starts at zero
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 6.0]))  # mean 3
    y = layer(x)
    assert torch.equal(y, 4 * x)
    g = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    y.backward(g)
    assert torch.equal(x.grad, 4 * g)
    assert torch.equal(layer.weight.grad, torch.full((4,), (1 - 2 + 10) / 4))  # sum(g x) / n
    assert layer.weight.grad.is_contiguous()


def test_gradcheck():
    from lib.measuring.paced import Paced

    x, w = (
        torch.randn(3, 2, dtype=torch.float64, requires_grad=True),
        torch.randn(5, dtype=torch.float64).requires_grad_(),
    )
    assert torch.autograd.gradcheck(lambda x, w: Paced.apply(x, w, 0, 0), (x, w))


def test_the_gradient_is_the_sum_over_rows():
    x = torch.randn(6, 2, dtype=torch.float64)
    whole = gradients(x)
    parts = [gradients(rows) for rows in x.split([1, 2, 3])]
    for layer, gradient in enumerate(whole):
        torch.testing.assert_close(sum(part[layer] for part in parts), gradient)


def test_it_takes_at_least_its_time_per_row():
    layer = PacedLayer(10, 0.01, 0.02)
    for rows in (1, 4):
        begin = time.monotonic()
        loss = layer(torch.ones(rows, 1)).sum()
        middle = time.monotonic()
        loss.backward()
        assert middle - begin >= rows * 0.01
        assert time.monotonic() - middle >= rows * 0.02


@pytest.mark.parametrize(
    ("arguments", "says"),
    [((0, 1, 1), "n_parameters=0"), ((1, -1, 1), "forward_seconds=-1"), ((1, 0, -2), "=-2")],
)
def test_misuse_is_refused_with_its_numbers(arguments, says):
    with pytest.raises(ValueError, match=says):
        PacedLayer(*arguments)


def one_step_of(wrappers):
    """Gradients and spans of one step of each wrapper; this rank's rows are its own."""
    out = []
    for wrapper in wrappers:
        spans, rank = Spans(), dist.get_rank()
        model = wrapper(
            torch.nn.Sequential(*[PacedLayer(100, 0, 0.02) for _ in range(4)]), capacity=400
        )
        with spans("compute", "backward"):
            model(torch.full((2, 3), 1.0 + rank)).sum().backward()
        with spans("compute", "wait"):
            model.average_gradients()
        out.append(([p.grad.clone() for p in model.parameters()], list(spans)))
    return out


def test_the_wrappers_run_on_it_and_average_what_the_ranks_wait_for():
    results = launch.capture(one_step_of, [BucketedDataParallel, OverlappedDataParallel], nproc=3)
    for rank, of_wrappers in enumerate(results):
        for mean, spans in of_wrappers:
            for gradient in mean:
                torch.testing.assert_close(gradient, torch.full((100,), 6 * (1 + 2 + 3) / 3 / 100))
            assert [span[:3] for span in spans] == [
                (rank, "compute", "backward"),
                (rank, "compute", "wait"),
            ]
            (*_, began, ended), (*_, then, last) = spans
            assert began + 4 * 2 * 0.02 <= ended <= then <= last


# A pipeline's stage.


def seconds_of(fn):
    begin = time.monotonic()
    fn()
    return time.monotonic() - begin


@pytest.mark.parametrize("is_first", [True, False])
def test_a_stage_takes_its_times_whole_and_in_halves_and_its_gradients_are_a_linear_layers(
    is_first,
):
    F, I, W = 0.01, 0.02, 0.03
    x, g = (torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    stage = Stage(PacedStage(3, F, I, W), is_first)
    weight = stage.module.weight

    assert seconds_of(lambda: stage.forward(0, x, splits=False)) >= F
    assert seconds_of(lambda: stage.backward(0, g)) >= I + W
    torch.testing.assert_close(weight.grad, g.T @ x)  # and w = 1: the gradient of x is g

    weight.grad = None
    assert seconds_of(lambda: stage.forward(0, x, splits=True)) >= F
    got = []
    assert seconds_of(lambda: got.append(stage.input_gradient(0, g))) >= I
    assert weight.grad is None and (got[0] is None if is_first else torch.equal(got[0], g))
    assert seconds_of(lambda: stage.weight_gradients(0)) >= W
    torch.testing.assert_close(weight.grad, g.T @ x)


def test_a_stages_output_is_its_input_and_its_times_do_not_grow_with_rows():
    stage, x = PacedStage(3, 0.01, 0, 0), torch.randn(500, 3)
    with torch.no_grad():
        assert torch.equal(stage(x), x)
        assert seconds_of(lambda: stage(x)) < 500 * 0.01


@pytest.mark.parametrize(
    ("arguments", "says"), [((0, 1, 1, 1), "n=0"), ((1, 0, 0, -2), "weight_seconds=-2")]
)
def test_misuse_of_a_stage_is_refused_with_its_numbers(arguments, says):
    with pytest.raises(ValueError, match=says):
        PacedStage(*arguments)
