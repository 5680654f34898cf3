"""The whole GPT with its sequence over the ranks: the loss and every gradient are one process's."""

import functools

import torch
import torch.distributed as dist
from watching import off

from lib import launch, ledger
from lib.collectives import all_reduce
from lib.tensor_parallel.context_parallel import context_parallel_gpt, shard
from lib.tensor_parallel.layouts import contiguous, zigzag
from lib.training.model import GPT, Shape

LAYERS, K, d = 2, 2, 4
SHAPE = Shape(vocab_size=11, seq_len=17, n_layers=LAYERS, hidden=4 * d, n_heads=4, n_kv_heads=K)
GROUPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 3)]
RUNS = [
    (name, T, members) for name, T in [("contiguous", 12), ("zigzag", 17)] for members in GROUPS
]
LAYOUTS = {"contiguous": contiguous, "zigzag": zigzag}
B, STEPS = 3, 2


def batch(step, T):
    """tokens, targets (B, T): the whole batch, on every rank."""
    generator = torch.Generator("cpu").manual_seed(step)
    tokens = torch.randint(SHAPE.vocab_size, (B, T + 1), generator=generator, device="cpu")
    tokens = tokens.to(torch.get_default_device())
    return tokens[:, :-1], tokens[:, 1:]


def trained(gpt, loss_of):
    """[(loss, {name: gradient}, {name: parameter}), ...] of steps of SGD; loss_of(step) has
    done backward."""
    optimizer, seen = torch.optim.SGD(gpt.parameters(), lr=0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(step)
        gradients = {name: p.grad.clone() for name, p in gpt.named_parameters()}
        optimizer.step()
        seen.append(
            (loss, gradients, {name: p.detach().clone() for name, p in gpt.named_parameters()})
        )
    return seen


@functools.cache
def one_process(T):
    gpt = GPT(SHAPE, seed=5).double()

    def loss_of(step):
        loss = gpt.loss(*batch(step, T))
        loss.backward()
        return loss.detach()

    return trained(gpt, loss_of)


def on_a_ring(layout, T, group, label):
    plain = GPT(SHAPE, seed=5).double()
    gpt = context_parallel_gpt(plain, layout, group)
    assert gpt.head.weight is gpt.embedding.token.weight is not plain.head.weight

    def loss_of(step):
        tokens, targets = (shard(x, layout, group) for x in batch(step, T))
        ledger.mark(label)
        loss = gpt.loss(tokens, targets)
        loss.backward()
        ledger.mark(f"gradients {label}")
        gpt.sum_gradients()
        ledger.mark("")
        return all_reduce(loss.detach(), group)

    return trained(gpt, loss_of)


def run_each():
    groups, seen = {members: dist.new_group(members) for members in GROUPS}, {}
    for name, T, members in RUNS:
        if dist.get_rank() in members:
            ours = on_a_ring(
                LAYOUTS[name](T, len(members)), T, groups[members], str((name, T, members))
            )
            seen[name, T, members] = worst = {}
            for (loss, gradients, parameters), right in zip(ours, one_process(T), strict=True):
                assert list(gradients) == list(right[1])  # the same names, in the same order
                worst["loss"] = max(worst.get("loss", 0), off(loss, right[0]))
                for key, gradient in gradients.items():
                    # the key bias's true gradient is zero
                    scale = right[1][key.replace("k.bias", "k.weight")]
                    worst[key] = max(worst.get(key, 0), off(gradient, right[1][key], scale))
                    worst[key] = max(
                        worst[key],
                        off(parameters[key], right[2][key], right[2][key] + scale.abs().max()),
                    )
    return seen


@functools.cache
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=240)


def test_loss_gradients_and_parameters_are_one_processs():
    names = {"loss", *dict(GPT(SHAPE).named_parameters())}
    for run in RUNS:
        for rank in run[-1]:
            worst = results()[rank][run]
            assert set(worst) == names
            assert max(worst.values()) < 1e-12, (
                run,
                rank,
                max(worst.items(), key=lambda item: item[1]),
            )


def test_keys_values_and_their_gradients_travel_and_then_the_parameters_gradients():
    for run in RUNS:
        _, T, members = run
        cp = len(members)
        log = results().ledger.section(str(run))
        assert log.sent("bytes") == STEPS * LAYERS * 3 * (cp - 1) * 2 * B * K * T * d * 8, run
        assert log.sent("messages") == STEPS * LAYERS * 3 * (cp - 1) * cp
        gradients = results().ledger.section(f"gradients {run}").sent("elements")
        assert gradients >= STEPS * 2 * (cp - 1) * GPT(SHAPE).num_parameters() and (
            cp > 1 or gradients == 0
        )


def refused():
    layout, said = contiguous(8, 1), []
    for attempt in (
        lambda: context_parallel_gpt(GPT(SHAPE), contiguous(18, 1)),
        lambda: context_parallel_gpt(GPT(Shape(11, 8, 1, 4, 1, dropout=0.1)), layout),
        lambda: context_parallel_gpt(GPT(SHAPE), layout)(torch.zeros(1, 9, dtype=torch.int64)),
    ):
        try:
            attempt()
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_does_not_fit_is_refused_with_its_numbers():
    (said,) = launch.capture(refused, backend="gloo", nproc=1, timeout=300)
    assert said[0] == "the layout has position 17, the model positions 0 to 16: use fewer tokens"
    assert said[1].startswith("dropout is 0.1: ") and said[1].endswith("use dropout=0.0")
    assert (
        said[2] == "9 tokens for 8 positions: pass shard(tokens, layout, group)" and len(said) == 3
    )
