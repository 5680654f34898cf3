"""A placement's price by hand: which axis crosses, who shares the card, and what
each part of a step is."""

import pytest

from lib.cost.placement import (
    Link,
    compute_of,
    doubling_time,
    gradient_messages,
    largest_errors,
    links_of,
    placed_seconds,
    placed_step,
)
from lib.cost.volume import cut_parameters, held_parameters, whole_parameters
from lib.training.model import Shape

SHAPE = Shape(vocab_size=32, seq_len=16, n_layers=4, hidden=64, n_heads=4)
M, ROWS = 4, 2
COMPUTE, ACROSS = (8e-3, 16e-3), (1e-3, 1e-8)
FREE = (0.0, 0.0)
ACTIVATION = 4 * ROWS * 16 * 64  # bytes
CUBE = {order: dict.fromkeys(order.split(), 2) for order in ("pp dp tp", "dp pp tp", "tp pp dp")}


def step(sizes, ranks_per_node, across=ACROSS):
    return placed_step(
        SHAPE, sizes, M, ROWS, COMPUTE, links_of(sizes, ranks_per_node, FREE, across)
    )


@pytest.mark.parametrize("order", CUBE)
def test_the_slowest_axis_crosses_two_nodes_and_no_other_does(order):
    links, first = links_of(CUBE[order], 4, FREE, ACROSS), order.split()[0]
    assert links == {
        axis: Link(*ACROSS, 4) if axis == first else Link(*FREE, 1) for axis in order.split()
    }
    assert all(link == Link(*FREE, 1) for link in links_of(CUBE[order], 8, FREE, ACROSS).values())
    # each rank a node
    assert all(link.alpha == 1e-3 for link in links_of(CUBE[order], 1, FREE, ACROSS).values())


def test_who_shares_a_card():
    assert Link(1e-3, 1e-8, 4).of(1) == (1e-3, 1e-8)
    assert Link(1e-3, 1e-8, 4).of(2) == (1e-3, 2e-8)
    assert Link(1e-3, 1e-8, 4).of(8) == (1e-3, 4e-8)  # no more than cross
    # a group of 4 with 2 in each node of 8: 4 groups leave a node
    assert links_of({"dp": 2, "tp": 4, "pp": 4}, 8, FREE, ACROSS)["tp"] == Link(*ACROSS, 4)


def test_in_one_node_only_the_pipeline_is_left():
    parts = step(CUBE["pp dp tp"], 8)
    assert parts == {
        "pipeline": pytest.approx((M + 1) * 2 * 12e-3),
        "tensor": 0,
        "tied": 0,
        "gradients": 0,
    }


def test_compute_is_what_a_step_in_one_node_takes():
    sizes = CUBE["pp dp tp"]
    assert compute_of(step(sizes, 8)["pipeline"], SHAPE.n_layers, sizes, M) == pytest.approx(
        COMPUTE
    )
    assert compute_of(12.0, 2, {"pp": 1, "dp": 4, "tp": 1}, 2) == (1.0, 2.0)


def test_tensor_ranks_across_pay_four_all_reduces_a_layer_and_two_beside():
    alone = {"tp": 2, "dp": 1, "pp": 1}
    parts, R = step(alone, 1), doubling_time(ACTIVATION, 2, ACROSS)
    loss = 2 * 1e-3 + 4 * 3 * ROWS * 16 * 1e-8  # two messages, three numbers per token
    assert parts["pipeline"] == pytest.approx(M * 4 * 12e-3)
    assert parts["tensor"] == pytest.approx(M * ((4 * 4 + 2) * R + loss))
    # the slowest of two stages: 4 in each of two layers, and one beside; and one slot more than
    # micro-batches
    parts = step(CUBE["tp pp dp"], 4)
    assert M * 8 * R < parts["tensor"] <= (M + 1) * ((8 + 2) * R + loss)


def test_a_card_carries_no_more_than_it_can():
    slow = (0.0, 1e-6)  # a second per MB: nothing else counts
    parts = step(CUBE["tp pp dp"], 4, slow)
    # bytes of a node: 4 ranks, half of them of each stage
    sent = 4 * M * (4 * 4 + 2) / 2 * ACTIVATION
    assert parts["pipeline"] + parts["tensor"] == pytest.approx(sent * 1e-6)


def test_stages_across_send_the_copies_of_all_tensor_ranks_at_once():
    sizes, message = CUBE["pp dp tp"], 1e-3 + 2 * ACTIVATION * 1e-8
    added = step(sizes, 4)["pipeline"] - step(sizes, 8)["pipeline"]
    # there and back once; each one at the most
    assert 2 * message <= added + 1e-12 and added <= 2 * M * message
    assert step(sizes, 4)["tied"] == pytest.approx(doubling_time(4 * 32 * 64 / 2, 2, (1e-3, 4e-8)))


def test_data_ranks_across_share_the_card_for_gradients():
    parts = step(CUBE["dp pp tp"], 4)
    messages = gradient_messages(SHAPE, 2, 2)
    assert parts["gradients"] == pytest.approx(
        sum(doubling_time(4 * n, 2, (1e-3, 4e-8)) for n in messages)
    )
    assert len(messages) == 3 and parts["tensor"] == parts["tied"] == 0


def test_gradients_are_of_all_parameters():
    assert sum(gradient_messages(SHAPE, 1, 1)) == held_parameters(SHAPE)
    cut, whole = gradient_messages(SHAPE, 1, 4)
    assert (cut, whole) == (cut_parameters(SHAPE) / 4, whole_parameters(SHAPE))


def test_tensor_ranks_across_are_the_worst_and_stages_across_the_best():
    orders = ["pp dp tp", "dp pp tp", "tp pp dp"]
    seconds = [sum(step(CUBE[order], 4, (2e-3, 1 / 32e6)).values()) for order in orders]
    assert seconds == sorted(seconds)


def test_a_placement_is_predicted_from_a_step_in_one_node():
    sizes, one_node = CUBE["pp dp tp"], 0.5
    assert placed_seconds(SHAPE, sizes, 8, M, ROWS, one_node, ACROSS) == pytest.approx(one_node)
    compute = compute_of(one_node, SHAPE.n_layers, sizes, M)
    parts = placed_step(SHAPE, sizes, M, ROWS, compute, links_of(sizes, 4, FREE, ACROSS))
    across = placed_seconds(SHAPE, sizes, 4, M, ROWS, one_node, ACROSS)
    assert across == pytest.approx(sum(parts.values())) and across > one_node


def test_the_largest_error_is_that_of_the_worst_prediction_in_each_round():
    seconds = {"one node": [1.0, 2.0], "pp across": [2.2, 4.0], "tp across": [2.0, 5.0]}
    predicted = lambda name, one_node: one_node * (1 if name == "one node" else 2)
    assert largest_errors(seconds, predicted) == pytest.approx([0.1, 0.25])
