"""The parallel GPT is the plain one: logits, loss, every gradient and parameter of two
steps, in every mode."""

import functools

import pytest
import torch
import torch.distributed as dist
from parallels import GROUPS, MODES, SHAPES, batch, differences, gpt, my_groups, train
from sweeps import sweep

from lib import collectives, launch
from lib.tensor_parallel import merge_state_dicts, parallel_gpt, plain_gpt
from lib.training.recompute import Recomputed

FROZEN = ("norm1.weight", "attention.q.weight", "attention.q.bias", "mlp.down.bias")
TRANSPORTS = {
    "ring": collectives.ring_all_reduce,
    "torch": lambda tensor, group: dist.all_reduce(tensor, group=group),  # returns nothing
}
RUNS = sweep(
    (
        (shape, tied, mode, members)
        for shape in SHAPES
        for tied in (True, False)
        for mode in MODES
        for members in GROUPS
        if members == (0, 1, 2, 3) or (shape, tied) == ("heads", True)
    ),
    always=[("heads", True, "tensor", (0, 1, 2, 3))],
)


def freeze(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith(FROZEN))
    return model


def everything():
    mine, seen = my_groups(), {}
    for run in RUNS:
        name, tied, mode, members = run
        if members in mine:
            model = MODES[mode](gpt(SHAPES[name], tied), mine[members])
            seen[run] = train(model, SHAPES[name], model.sum_gradients)
    shape, group = SHAPES["grouped-query"], None
    for transport, all_reduce in TRANSPORTS.items():
        seen[transport] = train(parallel_gpt(gpt(shape), group, all_reduce), shape)
    for mode in MODES:
        model = MODES[mode](freeze(gpt(shape)), group)
        seen["frozen", mode] = train(model, shape, model.sum_gradients)
        model = MODES[mode](gpt(shape), group)
        model.blocks = torch.nn.ModuleList(Recomputed(block) for block in model.blocks)
        trained = train(model, shape, model.sum_gradients)
        rename = lambda tensors: {name.replace("module.", ""): t for name, t in tensors.items()}
        seen["recomputed", mode] = [
            (logits, loss, rename(g), rename(p)) for logits, loss, g, p in trained
        ]
    seen["short"] = short_sequences(shape)
    seen["bfloat16"] = in_bfloat16(shape)
    seen["plain"] = {tied: back_and_forth(SHAPES["heads"], tied, group) for tied in (True, False)}
    return seen


def short_sequences(shape):
    """Half of seq_len: the loss, and the gradient of the positions' table."""
    seen = []
    for mode in MODES:
        model = MODES[mode](gpt(shape))
        loss = model.loss(*batch(shape, 0, shape.seq_len // 2))
        loss.backward()
        model.sum_gradients()
        seen.append((loss.detach(), model.embedding.position.weight.grad))
    return seen


def in_bfloat16(shape):
    model = parallel_gpt(gpt(shape, dtype=torch.bfloat16))
    tokens, targets = batch(shape, 0)
    loss = model.loss(tokens, targets)
    loss.backward()
    return loss.dtype, {p.grad.dtype for p in model.parameters()}, loss.item()


def back_and_forth(shape, tied, group):
    """The plain model that the parts make, its state and its tie."""
    model = freeze(gpt(shape, tied))
    plain = plain_gpt(parallel_gpt(model, group))
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    alike = [torch.equal(p, q) and p.requires_grad == q.requires_grad for p, q in pairs]
    return alike, plain.head.weight is plain.embedding.token.weight


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240, ledger=False)


@functools.cache
def single_process(name, tied, frozen=False):
    model = gpt(SHAPES[name], tied)
    return train(freeze(model) if frozen else model, SHAPES[name])


def compare(run, parts, want):
    """parts: what each rank of the group saw, in order; want: what one process saw."""
    for step, (right_logits, right_loss, right_gradients, right_parameters) in enumerate(want):
        logits, losses, gradients, parameters = zip(*(part[step] for part in parts), strict=True)
        where = f"{run}, step {step}"
        assert all(torch.equal(loss, losses[0]) for loss in losses), where
        found = {"logits": torch.cat(logits, -1), "loss": losses[0]}
        wrong = differences(found, {"logits": right_logits, "loss": right_loss})
        # merge_state_dicts raises where what every rank has all of is not the same bits on all of
        # them
        wrong += [
            f"gradient {w}" for w in differences(merge_state_dicts(gradients), right_gradients)
        ]
        wrong += [
            f"parameter {w}" for w in differences(merge_state_dicts(parameters), right_parameters)
        ]
        assert not wrong, f"{where}: " + "; ".join(wrong[:4])


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_every_gradient_and_parameter_of_two_steps_is_the_single_process_s(results, run):
    compare(run, [results[member][run] for member in run[3]], single_process(*run[:2]))


def test_the_comparison_would_see_a_missing_bias_and_a_sum_over_ranks():
    right = single_process("heads", True)
    twice = [
        (z, loss, {n: g * (1 + 1e-11) for n, g in grads.items()}, params)
        for z, loss, grads, params in right
    ]
    with pytest.raises(AssertionError, match="gradient"):
        compare("twice", [twice], right)
    wrong = differences(*(step[0][2] for step in (twice, right)))
    # all but the two key biases, whose gradient is rounding
    assert len(wrong) == len(right[0][2]) - 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_any_all_reduce_drives_it(results, transport):
    compare(transport, [seen[transport] for seen in results], single_process("grouped-query", True))


@pytest.mark.parametrize("mode", MODES)
def test_frozen_parameters_have_no_gradient_and_leave_the_others_alone(results, mode):
    compare(
        mode,
        [seen["frozen", mode] for seen in results],
        single_process("grouped-query", True, frozen=True),
    )
    assert not [n for n in results[0]["frozen", mode][0][2] if n.endswith(FROZEN)]


@pytest.mark.parametrize("mode", MODES)
def test_recomputed_blocks_communicate_again_and_give_the_same(results, mode):
    compare(
        mode, [seen["recomputed", mode] for seen in results], single_process("grouped-query", True)
    )


def test_sequences_shorter_than_the_table_of_positions(results):
    shape = SHAPES["grouped-query"]
    model = gpt(shape)
    loss = model.loss(*batch(shape, 0, shape.seq_len // 2))
    loss.backward()
    want = {"loss": loss.detach(), "positions": model.embedding.position.weight.grad}
    for seen in results:
        for got in seen["short"]:
            assert not differences(dict(zip(want, got, strict=True)), want)


def test_bfloat16_stays_bfloat16_and_its_loss_is_summed_in_float32(results):
    shape = SHAPES["grouped-query"]
    want = gpt(shape).loss(*batch(shape, 0)).item()
    for dtype, gradients, loss in (seen["bfloat16"] for seen in results):
        assert dtype == torch.float32 and gradients == {torch.bfloat16}
        assert loss == pytest.approx(want, rel=0.05)


def test_the_parts_make_the_plain_model_again_tie_and_frozen_included(results):
    for seen in results:
        for tied, (alike, is_tied) in seen["plain"].items():
            assert all(alike) and is_tied is tied
