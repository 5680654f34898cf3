"""Dropout: alike where ranks hold the same numbers, different where they do not, and one process's
model all in all.

The ranks' masks are written down and put together; one process that drops the same numbers must get
the same gradients.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from parallels import MODES, batch, differences, gpt, my_groups, snapshot

from lib import launch
from lib.tensor_parallel import ShardedDropout, merge_state_dicts, own_random_numbers
from lib.training.model import Shape
from lib.training.recompute import Recomputed

SHAPE = Shape(vocab_size=12, seq_len=8, n_layers=2, hidden=8, n_heads=4, dropout=0.3)
SIZES = [(0, 1), (0, 1, 2, 3)]
# in the order of the forward pass
PLACES = ["embedding"] + SHAPE.n_layers * ["weights", "attention", "mlp"]


@contextlib.contextmanager
def dropout_by(function):
    """Every dropout of the block calls function(x, p): nn.Dropout and F.dropout alike."""
    original = F.dropout
    F.dropout = lambda x, p=0.5, training=True, inplace=False: function(original, x, p, training)
    try:
        yield
    finally:
        F.dropout = original


def noting(masks):
    def function(original, x, p, training):
        masks.append(original(torch.ones_like(x), p, training))
        return x * masks[-1]

    return function


def replaying(masks):
    masks = iter(masks)
    return lambda original, x, p, training: x * next(masks)


def gradients_of(model, sum_gradients=lambda: None):
    loss = model.loss(*batch(SHAPE, 0))
    loss.backward()
    sum_gradients()
    return loss.detach(), snapshot(model)[0]


def step(mode, group):
    """(masks, loss, gradients, the random state afterwards), and the gradients with
    recomputed blocks."""
    masks, model = [], MODES[mode](gpt(SHAPE), group)
    torch.manual_seed(11)
    with dropout_by(noting(masks)):
        loss, gradients = gradients_of(model, model.sum_gradients)
    state = torch.get_rng_state()
    again = MODES[mode](gpt(SHAPE), group)
    again.blocks = torch.nn.ModuleList(Recomputed(block) for block in again.blocks)
    torch.manual_seed(11)
    _, recomputed = gradients_of(again, again.sum_gradients)
    model.eval()
    model.loss(*batch(SHAPE, 0))
    untouched = torch.equal(torch.get_rng_state(), state)
    return (
        masks,
        loss,
        gradients,
        state,
        {n.replace("module.", ""): g for n, g in recomputed.items()},
        untouched,
    )


def own_numbers(group):
    torch.manual_seed(5)
    before = torch.rand(3)
    with own_random_numbers(group):
        mine = torch.rand(3)
    with own_random_numbers(group, draws=False):
        after = torch.rand(3)
    drop = ShardedDropout(0.5, group)
    return before, mine, after, drop(torch.ones(64)), drop.eval()(torch.ones(4))


def everything():
    seen = {}
    for members, group in my_groups().items():
        if members in SIZES:
            seen[members] = {mode: step(mode, group) for mode in MODES}
            seen[members]["own numbers"] = own_numbers(group)
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240, ledger=False)


def parts(results, members, mode):
    return zip(*(results[member][members][mode] for member in members), strict=True)


@pytest.mark.parametrize("mode", MODES)
def test_masks_are_alike_where_numbers_are_and_different_where_they_are_not(results, mode):
    for members in SIZES:
        masks, *_ = parts(results, members, mode)
        for place, of_ranks in zip(PLACES, zip(*masks, strict=True), strict=True):
            alike = [torch.equal(mask, of_ranks[0]) for mask in of_ranks[1:]]
            assert not any(alike) if place == "weights" or mode != "tensor" else all(alike), (
                place,
                members,
            )
            assert all(set(mask.unique().tolist()) == {0.0, 1 / 0.7} for mask in of_ranks)


@pytest.mark.parametrize("mode", MODES)
def test_one_process_that_drops_the_same_numbers_has_the_same_gradients(results, mode):
    for members in SIZES:
        masks, losses, gradients, *_ = parts(results, members, mode)
        whole = []
        for place, of_ranks in zip(PLACES, zip(*masks, strict=True), strict=True):
            if place == "weights" or mode != "tensor":
                # heads of (B, H/tp, T, T), tokens of (B, T/tp, D)
                whole.append(torch.cat(of_ranks, 1))
            else:
                whole.append(of_ranks[0])
        with dropout_by(replaying(whole)):
            loss, want = gradients_of(gpt(SHAPE))
        assert all(abs(other - loss) < 1e-12 for other in losses)
        assert not differences(merge_state_dicts(gradients), want), members


@pytest.mark.parametrize("mode", MODES)
def test_random_states_are_alike_afterwards_and_eval_draws_nothing(results, mode):
    for members in SIZES:
        _, _, _, states, _, untouched = parts(results, members, mode)
        assert all(torch.equal(state, states[0]) for state in states) and all(untouched)


@pytest.mark.parametrize("mode", MODES)
def test_recomputation_drops_the_same_numbers_again(results, mode):
    for members in SIZES:
        _, _, gradients, _, recomputed, _ = parts(results, members, mode)
        for mine, again in zip(gradients, recomputed, strict=True):
            assert not differences(again, mine)


def test_own_numbers_differ_and_the_ones_after_do_not(results):
    for members in SIZES:
        before, mine, after, masks, evaluated = parts(results, members, "own numbers")
        for other in range(1, len(members)):
            assert torch.equal(before[other], before[0]) and torch.equal(after[other], after[0])
            assert not torch.equal(mine[other], mine[0]) and not torch.equal(masks[other], masks[0])
            assert torch.equal(evaluated[other], torch.ones(4))
