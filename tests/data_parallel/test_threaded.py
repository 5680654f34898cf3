"""Threads in one process: outputs and gradients are the plain module's, on any number of replicas,
for any batch."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.data_parallel.threaded import (
    ThreadedDataParallel,
    gather,
    parallel_apply,
    replicate,
    scatter,
)
from lib.training.model import GPT, Shape

STEPS = 5
GPUS = torch.cuda.device_count()


class Net(nn.Module):
    """A tied parameter, a frozen one, one that nobody uses, and one of which replicas hold a list
    (as an LSTM does)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(6, 6, dtype=torch.float64) for _ in range(3))
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(6, 6, dtype=torch.float64).requires_grad_(False)
        self.never = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.lstm = nn.LSTM(6, 6, dtype=torch.float64, batch_first=True)

    def forward(self, x, scale):
        """x (b, 6), scale (b, 1) -> (b, 6)."""
        h = self.frozen(self.b(self.a(x).tanh()).tanh()) * scale
        return self.c(self.lstm(h[:, None])[0][:, 0])


def batch(step, rows, device="cpu"):
    """x (B, 6), scale (B, 1), targets (B, 6)."""
    generator = torch.Generator().manual_seed(step)
    draw = lambda columns: torch.randn(rows, columns, dtype=torch.float64, generator=generator).to(
        device
    )
    return draw(6), draw(1), draw(6)


def train(model, rows, device="cpu"):
    """Five steps; outputs, every gradient and every parameter after each, the
    input's gradient too."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(STEPS):
        x, scale, y = batch(step, rows, device)
        x.requires_grad_()
        optimizer.zero_grad()
        output = model(x, scale)
        F.mse_loss(output, y).backward()
        optimizer.step()
        tensors = {"output": output.detach(), "input's gradient": x.grad}
        for name, p in model.named_parameters():
            name = name.removeprefix("module.")
            tensors |= {
                name: p.detach().clone(),
                f"{name}'s gradient": None if p.grad is None else p.grad.clone(),
            }
        seen.append(tensors)
    return seen


def assert_equal(seen, expected, tolerance=1e-12):
    """Each tensor to `tolerance` of its own largest value."""
    for step, (got, want) in enumerate(zip(seen, expected, strict=True)):
        assert got.keys() == want.keys()
        for name in want:
            assert (got[name] is None) == (want[name] is None), f"step {step}, {name}"
            if want[name] is not None:
                off, scale = (got[name] - want[name]).abs().max(), want[name].abs().max()
                assert off <= tolerance * scale, (
                    f"step {step}, {name}: off by {off:.3g} of {scale:.3g}"
                )


# 7 rows for 4 replicas: 2, 2, 2, 1. 5 rows for 4: 2, 2, 1, and a replica idle. 2 rows for 4: 1, 1.
@pytest.mark.parametrize(
    ("replicas", "rows"), [(1, 7), (2, 8), (2, 7), (3, 7), (4, 7), (4, 5), (4, 2), (2, 1)]
)
def test_five_steps_are_those_of_the_plain_module(replicas, rows):
    assert_equal(train(ThreadedDataParallel(Net(), ["cpu"] * replicas), rows), train(Net(), rows))


def test_a_gpt_with_its_tied_head():
    torch.manual_seed(0)
    plain = GPT(Shape(vocab_size=11, seq_len=8, n_layers=2, hidden=16, n_heads=4)).double()
    threaded = ThreadedDataParallel(copy.deepcopy(plain), ["cpu"] * 3)
    tokens, targets = torch.randint(11, (2, 7, 8))
    largest = 0
    for model in (plain, threaded):
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        largest = max(largest, *(p.grad.abs().max() for p in model.parameters()))
    for (name, p), q in zip(plain.named_parameters(), threaded.parameters(), strict=True):
        # a key's bias has a true gradient of zero: no scale of its own
        scale = largest if name.endswith("k.bias") else p.grad.abs().max()
        assert (p.grad - q.grad).abs().max() <= 1e-12 * scale, name


def test_scatter_cuts_rows_as_evenly_as_ceil_allows():
    x, y = torch.arange(7), torch.arange(14).view(7, 2)
    shares = scatter((x, y), ["cpu"] * 4)
    assert [a.tolist() for a, _ in shares] == [[0, 1], [2, 3], [4, 5], [6]]
    assert torch.equal(torch.cat([b for _, b in shares]), y)
    assert [len(a) for (a,) in scatter((torch.zeros(2),), ["cpu"] * 4)] == [1, 1]
    assert gather([a for a, _ in shares], "cpu").tolist() == x.tolist()


def test_the_first_replica_is_the_module_and_the_others_are_copies_joined_by_autograd():
    module = Net()
    first, *others = replicate(module, ["cpu"] * 3)
    assert first is module
    for other in others:
        assert (
            other.b.weight is other.a.weight
            and other.a.weight.data_ptr() != module.a.weight.data_ptr()
        )
        assert other.frozen.weight.requires_grad is False and other.a.weight.grad_fn is not None
    # three copies used with the weights 1, 10 and 100: the gradient of each element is their sum
    sum(
        k * replica.a.weight.sum()
        for k, replica in zip((1, 10, 100), (first, *others), strict=True)
    ).backward()
    assert torch.equal(module.a.weight.grad, torch.full((6, 6), 111.0, dtype=torch.float64))
    assert module.c.weight.grad is None


def test_each_replica_runs_in_a_thread_of_its_own_at_the_same_time():
    meeting, threads = threading.Barrier(3), []

    class Meets(nn.Module):
        def forward(self, x):
            # passes when all are here, and breaks if one must end before another begins
            meeting.wait(timeout=120)
            threads.append(threading.current_thread())
            return x

    assert ThreadedDataParallel(Meets(), ["cpu"] * 3)(torch.arange(6)).tolist() == list(range(6))
    assert len(set(threads)) == 3 and threading.main_thread() not in threads


class Sees(nn.Module):
    """Returns its rows, and keeps in `seen` what a thread could have lost."""

    seen = ()  # the class's, which all replicas share

    def forward(self, x):
        kind = x.device.type
        seen = (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            self.training,
        )
        Sees.seen += (seen,)
        return x


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_threads_take_over_grad_mode_autocast_and_train_or_eval(grad, autocast, training):
    Sees.seen, model = (), ThreadedDataParallel(Sees(), ["cpu"] * 2).train(training)
    before = torch.get_autocast_dtype("cpu")
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.float16, enabled=autocast):
        model(torch.ones(4))
    for seen_grad, seen_autocast, dtype, seen_training in Sees.seen:
        assert (seen_grad, seen_autocast, seen_training) == (grad, autocast, training)
        assert dtype == torch.float16 if autocast else before
    assert len(Sees.seen) == 2


def test_without_gradients_nothing_is_kept_for_backward():
    x, scale, _ = batch(0, 7)
    model = ThreadedDataParallel(Net(), ["cpu"] * 2)
    with torch.no_grad():
        output = model(x, scale)
    assert output.grad_fn is None and not output.requires_grad
    assert torch.allclose(output, Net()(x, scale), rtol=1e-12, atol=1e-14)


def test_the_first_replicas_buffers_stay_and_the_others_are_lost():
    norm = nn.BatchNorm1d(6).double()
    alone, x = copy.deepcopy(norm), batch(0, 8)[0]
    model = ThreadedDataParallel(norm, ["cpu"] * 3)
    for _ in range(2):
        model(x)
        alone(x[:3])  # ceil(8/3) rows
    for name, buffer in alone.named_buffers():
        assert torch.equal(dict(norm.named_buffers())[name], buffer), name
    assert norm.num_batches_tracked == 2
    model.eval()
    # all replicas use the first one's averages
    assert torch.allclose(model(x), alone.eval()(x), rtol=1e-12, atol=0)


class Fails(nn.Module):
    def forward(self, x):
        if (x == 5).any():
            raise ZeroDivisionError("of the fifth row")
        return x


def test_an_error_in_a_thread_is_raised_with_its_replica():
    with pytest.raises(ZeroDivisionError, match="of the fifth row") as caught:
        ThreadedDataParallel(Fails(), ["cpu"] * 3)(torch.arange(8))
    assert caught.value.__notes__ == ["in replica 1 of 3, on cpu, given (3,)"]
    assert "forward" in [entry.name for entry in caught.traceback]
    with pytest.raises(ZeroDivisionError) as caught:  # two fail: the first is told
        parallel_apply(
            [Fails()] * 3, [(torch.ones(1),), (torch.full((2,), 5),), (torch.full((4,), 5),)]
        )
    assert caught.value.__notes__ == ["in replica 1 of 3, on cpu, given (2,)"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ThreadedDataParallel(Net(), []),
            'devices is empty: give one per replica, such as .*"cpu", "cpu"',
        ),
        (
            lambda: ThreadedDataParallel(nn.Linear(2, 2), ["meta", "cpu"]),
            r"weight is on cpu, .* meta: module.to\(",
        ),
        (lambda: scatter((torch.ones(3), 2.0), ["cpu"]), "input 1 is a float, which has no rows"),
        (lambda: scatter((torch.tensor(1.0),), ["cpu"]), r"input 0 is a tensor of shape \(\)"),
        (
            lambda: scatter((torch.ones(3), torch.ones(4)), ["cpu"]),
            r"the inputs have \[3, 4\] rows",
        ),
        (lambda: scatter((), ["cpu"]), r"the inputs have \[\] rows: give at least one"),
        (
            lambda: gather([torch.tensor(1.0)] * 2, "cpu"),
            r"a tensor of shape \(\), which has no rows .* take the loss",
        ),
        (lambda: gather([(torch.ones(2),)], "cpu"), "a replica returned a tuple"),
    ],
)
def test_what_cannot_be_shared_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 1, reason="needs a GPU, and this machine has none")
@pytest.mark.parametrize("devices", [["cuda", "cuda"], ["cuda", "cpu"]], ids=str)
def test_on_one_gpu(devices):
    threaded = ThreadedDataParallel(Net().to("cuda"), devices)
    assert_equal(train(threaded, 7, "cuda"), train(Net().to("cuda"), 7, "cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 2, reason=f"nn.DataParallel needs 2 GPUs, and this machine has {GPUS}")
def test_on_all_gpus_beside_torchs_data_parallel():
    devices = [f"cuda:{i}" for i in range(GPUS)]
    rows = 2 * GPUS + 1
    ours = train(ThreadedDataParallel(Net().to("cuda"), devices), rows, "cuda")
    assert_equal(ours, train(nn.DataParallel(Net().to("cuda")), rows, "cuda"))
    assert_equal(ours, train(Net().to("cuda"), rows, "cuda"))
