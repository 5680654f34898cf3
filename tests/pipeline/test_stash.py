"""WeightStash: which version is given to whom, when it is copied, when it is let go. No ranks."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.pipeline import versions
from lib.pipeline.asynchronous import by_name
from lib.pipeline.stash import NewestOnly, WeightStash, pipedream


def add_one(weights):
    for w in weights.values():
        w += 1


def number(weights):
    """The version that it is: the weights count the updates."""
    assert weights["a"].unique().tolist() == weights["b"].unique().tolist()
    return int(weights["a"][0])


def new(kind=WeightStash):
    return kind({"a": torch.zeros(3), "b": torch.zeros(2, 2)})


def drive(stash, actions, after=lambda: None):
    """{action: version that it read} of one rank's list; an update after each B."""
    reads = {}
    for action in actions:
        if action.kind == "F":
            reads[action] = number(stash.for_forward(action.microbatch))
        else:
            reads[action] = number(stash.for_backward(action.microbatch))
            stash.update(add_one)
        after()
    return reads


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("kind", "stashing"), [(WeightStash, True), (NewestOnly, False)])
def test_every_action_reads_the_version_of_the_table(p, kind, stashing):
    table = versions(p, 11, stashing)
    for actions in pipedream(p, 11):
        assert drive(new(kind), actions) == {action: table[action] for action in actions}


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_stage_i_has_p_minus_i_versions_in_memory_and_lets_go_of_the_others(p):
    for i, actions in enumerate(pipedream(p, 11)):
        stash, made, most = new(), [], []

        def after(stash=stash, made=made, most=most):
            if not any(ref() is stash.newest["a"] for ref in made):
                made.append(weakref.ref(stash.newest["a"]))
            most.append(sum(ref() is not None for ref in made))

        drive(stash, actions, after)
        assert max(most) == p - i
        assert most[-1] == 1


def test_what_nobody_needs_is_changed_in_place():
    stash = new()
    where = {name: w.data_ptr() for name, w in stash.newest.items()}
    for j in range(3):
        stash.for_forward(j)
        assert number(stash.for_backward(j)) == j
        stash.update(add_one)
        assert {name: w.data_ptr() for name, w in stash.newest.items()} == where


def test_what_is_in_flight_is_not_changed_and_a_reader_of_an_older_version_costs_no_copy():
    stash = new()
    old = stash.for_forward(0)
    stash.update(add_one)
    copy = stash.newest
    stash.update(add_one)  # nobody has read version 1
    assert stash.newest is copy and number(copy) == 2
    assert stash.for_backward(0) is old and number(old) == 0


# A graph that knows its weights by name.


def test_backward_reads_what_the_name_stands_for_by_then():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    old, now = ({"w": torch.randn(4, 3, dtype=torch.float64)} for _ in range(2))
    leaf = old["w"].detach().requires_grad_()
    with by_name(old, lambda: now):
        y = F.linear(x, leaf)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(y) @ now["w"])
    assert torch.equal(leaf.grad, torch.ones_like(y).T @ x.detach())


def test_with_the_same_weights_every_gradient_is_torchs_own():
    """Linear, norm, embedding, a parameter that lies inside another tensor, and one that is
    read in parts."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(5, 6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4)
    ).double()
    flat = torch.randn(20, dtype=torch.float64)
    names = {
        **dict(net.named_parameters()),
        "inside": flat[7:11],
        "parts": torch.randn(2, 4, dtype=torch.float64),
    }
    weights = {name: w.detach() for name, w in names.items()}
    tokens = torch.tensor([[0, 4], [2, 2]])

    def grads(hooks):
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        with hooks(weights):
            y = torch.func.functional_call(
                net, {n: leaves[n] for n in dict(net.named_parameters())}, (tokens,)
            )
            loss = (y * leaves["inside"] * leaves["parts"][1]).tanh().sum()
        return torch.autograd.grad(loss, list(leaves.values()))

    copies = {name: w.clone() for name, w in weights.items()}
    plain = grads(lambda _: torch.enable_grad())
    named = grads(lambda weights: by_name(weights, lambda: copies))
    assert all(torch.equal(a, b) for a, b in zip(plain, named, strict=True))
