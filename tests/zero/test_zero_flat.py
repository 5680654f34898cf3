"""Parameter groups, flats in the order of backward, and a call where backward comes by:
without ranks."""

import pytest
import torch
from torch import nn

from lib.zero import parameter_groups
from lib.zero.unit import on_backward
from lib.zero.zero1 import in_order_of_backward


def test_parameter_groups():
    a, b, frozen = (nn.Parameter(torch.zeros(n)) for n in (2, 3, 4))
    frozen.requires_grad_(False)
    assert [g["params"] for g in parameter_groups(iter([a, b, a, frozen]))] == [[a, b]]
    two = parameter_groups([{"params": [a, frozen], "lr": 1.0}, {"params": iter([b])}])
    assert two == [{"params": [a], "lr": 1.0}, {"params": [b]}]
    with pytest.raises(ValueError, match=r"a \(2,\) parameter is in two groups"):
        parameter_groups([{"params": [a]}, {"params": [b, a]}])
    for nothing in ([], [frozen], [{"params": [frozen]}]):
        with pytest.raises(ValueError, match="no parameter requires a gradient"):
            parameter_groups(nothing)


def test_flats_of_several_groups_leave_in_the_order_of_backward():
    class Line:
        def __init__(self, n):
            self.n = n

    weights, biases = [Line(50), Line(30), Line(20)], [Line(3), Line(1)]
    assert in_order_of_backward([biases, weights]) == [
        weights[0],
        biases[0],
        weights[1],
        biases[1],
        weights[2],
    ]


def test_on_backward_calls_once_when_all_gradients_are_there():
    called, x = [], torch.ones(2, requires_grad=True)
    y, rest = on_backward(
        lambda: called.append("now"), ([x * 2, torch.ones(1)], {"a": (x * 3,), "b": 1})
    )
    assert rest["b"] == 1 and not called
    (y[0].sum() + rest["a"][0].sum()).backward()
    assert called == ["now"] and x.grad.tolist() == [5, 5]
    with torch.no_grad():
        assert on_backward(called.append, x) is x
