"""On a GPU: every mode of tensor parallelism has the gradients of one process, and sends
what the formulas say."""

import functools

import pytest
import torch

from lib import launch, ledger
from lib.tensor_parallel import (
    merge_state_dicts,
    own_random_numbers,
    parallel_gpt,
    plain_gpt,
    regathered_column_parallel,
    sequence_parallel_gpt,
)
from lib.training.model import GPT, Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --backend nccl"),
]

TOLERANCE = 1e-11  # float64, relative to a gradient's largest number
ROWS, STEPS = 3, 2
MODES = {
    "tensor": parallel_gpt,
    "sequence": sequence_parallel_gpt,
    "regathered": functools.partial(
        sequence_parallel_gpt, column_linear=regathered_column_parallel
    ),
}


@pytest.fixture
def setting(nccl):
    """(backend, ranks): NCCL with a rank per GPU, 1, 2 or 4 of them, or two ranks on one."""
    gpus = torch.cuda.device_count()
    return nccl, 2 if nccl == "nccl-shared" else max(tp for tp in (1, 2, 4) if tp <= gpus)


SHAPE = Shape(
    vocab_size=20, seq_len=8, n_layers=2, hidden=16, n_heads=8, n_kv_heads=4, mlp_hidden=12
)


def train(model):
    """[(loss, {name: gradient})] of STEPS steps of SGD."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(STEPS):
        draw = torch.Generator("cpu").manual_seed(step)
        both = torch.randint(
            SHAPE.vocab_size, (2, ROWS, SHAPE.seq_len), generator=draw, device="cpu"
        )
        tokens, targets = both.to(torch.get_default_device())
        optimizer.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()
        if hasattr(model, "sum_gradients"):
            model.sum_gradients()
        seen.append((loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}))
        optimizer.step()
    return seen


def run_each():
    """{mode: (losses and gradients, does the plain model come back?)}, one process's, and
    random numbers."""
    seen = {"one process": train(GPT(SHAPE).double())}
    for mode, make in MODES.items():
        model = make(GPT(SHAPE).double())
        pairs = zip(plain_gpt(model).parameters(), GPT(SHAPE).double().parameters(), strict=True)
        back = all(torch.equal(a, b) for a, b in pairs)
        ledger.mark(mode)
        seen[mode] = train(model), back
        ledger.mark("")
    torch.manual_seed(1)
    with own_random_numbers():
        mine = torch.rand(8)
    seen["random"] = mine, torch.rand(8), mine.is_cuda
    return seen


def test_every_mode_has_the_gradients_of_one_process(setting):
    name, nproc = setting
    results = launch.capture(run_each, nproc=nproc, backend=name, timeout=300)
    for mode in MODES:
        for step, (want_loss, want) in enumerate(results[0]["one process"]):
            losses, gradients = zip(*(seen[mode][0][step] for seen in results), strict=True)
            assert all(((loss - want_loss) / want_loss).abs() < TOLERANCE for loss in losses), (
                mode,
                step,
            )
            for n, gradient in merge_state_dicts(gradients).items():
                # the key bias's true gradient is zero
                scale = want[n.replace("k.bias", "k.weight")].abs().max()
                assert (gradient - want[n]).abs().max() < TOLERANCE * scale, (mode, step, n)
        assert all(seen[mode][1] for seen in results), mode
        L, (T, D) = SHAPE.n_layers, (SHAPE.seq_len, SHAPE.hidden)
        units = 2 * (4 * L + 2) + (2 * L + 1 if mode == "regathered" else 0)
        elements = units * ROWS * T * D + 2 * 3 * ROWS * T
        elements += 0 if mode == "tensor" else 2 * (6 * D * L + 2 * D + T * D)
        sent = results.ledger.section(mode).sent("bytes")
        assert sent == STEPS * 8 * (nproc - 1) * elements, mode


def test_random_numbers_differ_where_they_should_on_the_gpu_s_generator(setting):
    name, nproc = setting
    results = launch.capture(run_each, nproc=nproc, backend=name, timeout=300)
    for rank, (mine, after, on_gpu) in enumerate(seen["random"] for seen in results):
        assert on_gpu and torch.equal(after, results[0]["random"][1])
        assert rank == 0 or not torch.equal(mine, results[0]["random"][0])
