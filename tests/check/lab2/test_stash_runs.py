"""The check of WeightStash can fail where no answer leads: it sees hidden copies, and a number that is a bit wrong."""

from types import SimpleNamespace

import pytest
import torch

from lib.check.lab2 import stash_runs
from lib.check.lab2.stash_runs import CASES, reference
from lib.check.lab2.stash_watched import memory, tensors_in

CASE = CASES[0]


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def test_all_tensors_of_an_object_are_found_however_they_are_kept():
    a, b, c, d, e = (torch.zeros(n) for n in range(1, 6))
    thing = Thing(one=a, many=[(b, {"x": {1: c}})], other=Thing(d=d), view=e[1:])
    thing.itself = thing
    assert {t.numel() for t in tensors_in(thing)} == {1, 2, 3, 4}
    assert sum(memory(tensors_in(thing)).values()) == 4 * (1 + 2 + 3 + 4 + 5)
    assert sum(memory([a, a.view(1), a.detach()]).values()) == 4


def ended(change=lambda noted, weights: None):
    """Stage 0 as it should be when all is done, but for a change."""
    gradients, weights = reference(CASE)
    noted = [[g.clone() for g in grads] for grads in gradients[0]]
    mine = {name: w.clone() for name, w in weights[0].items()}
    change(noted, mine)
    return SimpleNamespace(optimizer=SimpleNamespace(noted=noted), parameters=mine)


def test_the_reference_itself_is_right():
    assert stash_runs._wrong_numbers(CASE, 0, ended()) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda noted, _: noted[3][1].mul_(1 + 1e-10), "the gradient of 0.bias by mini-batch 3"),
        (lambda noted, _: noted[2].__setitem__(0, None), "the gradient of 0.weight by mini-batch 2"),
        (lambda noted, _: noted[4][2].fill_(float("nan")), "the gradient of 2.weight by mini-batch 4"),
        (lambda _, weights: weights["2.bias"].add_(1e-9), "after 5 mini-batches 2.bias"),
    ],
)
def test_a_number_that_is_a_bit_wrong_is_seen(change, words):
    problem = stash_runs._wrong_numbers(CASE, 0, ended(change))
    assert problem.kind == "numbers" and words in problem.text
