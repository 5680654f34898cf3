"""The bytes of a step's tensors, counted on a model that can be counted by hand."""

import torch
from torch import nn

from lib.measuring.step_memory import bytes_of, step_memory


def test_memory_that_is_shared_counts_once():
    x = torch.zeros(10)
    assert bytes_of([x, x[:5], x.view(2, 5)]) == 40
    assert bytes_of([]) == 0


def test_a_linear_layer_saves_its_input_for_backward():
    model = nn.Linear(8, 4, bias=False)
    x = torch.ones(3, 8)
    found = step_memory(model, lambda m: m(x).square().sum())
    weights = 4 * 8 * 4
    assert found["weights"] == found["gradients"] == weights
    assert found["moments"] == 2 * weights
    assert found["activations"] == 4 * (3 * 8 + 3 * 4)  # its input, and what is squared
