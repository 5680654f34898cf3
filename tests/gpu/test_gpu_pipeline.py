"""On a GPU: every schedule, recomputed or not, has the gradients of one process, and its messages
are NCCL's.

Recomputation runs forward again inside backward, which a GPU has on autograd's own thread. What is
delayed to W must be delayed there, too; else I computes all of it, the gradients are still right,
and W has nothing to do.
"""

import pytest
import torch
import torch.distributed as dist

from lib import launch, ledger
from lib.pipeline import gpipe, interleaved, messages, one_f_one_b, zb_h1
from lib.pipeline.asynchronous import PipeDream
from lib.pipeline.links import connect
from lib.pipeline.split import split_gpt, split_layers
from lib.pipeline.stage import Pipeline
from lib.training.model import GPT, Shape, cross_entropy
from lib.training.recompute import Recomputed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --backend nccl"),
]

TOLERANCE = 1e-11  # float64, relative to a gradient's largest number


@pytest.fixture
def setting(nccl):
    """(backend, ranks): NCCL with a rank per GPU, or two ranks on one."""
    return nccl, 2 if nccl == "nccl-shared" else min(4, torch.cuda.device_count())


def schedules(p):
    """{name: (schedule, micro-batches, stages per rank)}"""
    return {
        "gpipe": (gpipe(p, p + 1), p + 1, 1),
        "1f1b": (one_f_one_b(p, p + 2), p + 2, 1),
        "zb-h1": (zb_h1(p, p + 2), p + 2, 1),
        "interleaved": (interleaved(p, 2 * p, 2), 2 * p, 2),
    }


def gpt(n_stages, wrap):
    """A GPT with a block per stage, and its stages."""
    shape = Shape(vocab_size=11, seq_len=5, n_layers=n_stages, hidden=8, n_heads=2)
    model = GPT(shape).double()
    stages = split_gpt(model, [range(s, s + 1) for s in range(n_stages)])
    return model, [Recomputed(stage) for stage in stages] if wrap else stages


def batch(rows):
    tokens = torch.randint(
        11, (rows, 6), generator=torch.Generator("cpu").manual_seed(rows), device="cpu"
    )
    tokens = tokens.to(torch.get_default_device())
    return tokens[:, :-1], tokens[:, 1:]


def run_each():
    """{(schedule, recomputed): ({parameter: difference}, difference of the loss, actions, linears
    left for each W)}"""
    links, seen = connect(), {}
    for name, (schedule, m, v) in schedules(dist.get_world_size()).items():
        n_stages, (tokens, targets) = dist.get_world_size() * v, batch(2 * m - 1)
        one, _ = gpt(n_stages, wrap=False)
        loss_of_one = one.loss(tokens, targets)
        loss_of_one.backward()
        want = {n: q.grad for n, q in one.named_parameters()}
        for recomputed in (False, True):
            model, stages = gpt(n_stages, recomputed)
            xs, wanted = tokens.split(2), targets.split(2)
            pipeline = Pipeline(stages, links, xs)
            bars, left = [], left_for_w(pipeline)
            ledger.mark(f"{name} {recomputed}")
            loss = pipeline.run(schedule, xs, wanted, cross_entropy, bars.append)
            ledger.mark("")
            off = {}
            for n, q in model.named_parameters():
                if q.grad is not None:
                    # the key bias's true gradient is zero
                    scale = want[n.replace("k.bias", "k.weight")].abs().max()
                    off[n] = ((q.grad - want[n]).abs().max() / scale).item()
            off_loss = 0.0 if loss is None else ((loss - loss_of_one).abs() / loss_of_one).item()
            seen[name, recomputed] = off, off_loss, [bar.action for bar in bars], left
    return seen


def left_for_w(pipeline):
    """A list that gets, at each W of this rank, how many linear functions I has left to it."""
    left = []
    for stage in pipeline.stages.values():
        plain = stage.weight_gradients

        def counted(j, stage=stage, plain=plain):
            left.append(len(stage.waiting[j]))
            plain(j)

        stage.weight_gradients = counted
    return left


def asynchronous():
    """The losses of PipeDream, and on the last rank."""
    p = dist.get_world_size()
    layers = [torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(p)]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            layer.weight.copy_(torch.eye(4) * (1 + i / 10))
            layer.bias.zero_()
    xs = [torch.full((1, 4), j / 10, dtype=torch.float64) for j in range(6)]
    stages = split_layers(layers, [range(i, i + 1) for i in range(p)])
    pipeline = PipeDream(
        stages, connect(), xs, lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )
    losses = pipeline.run(xs, xs, torch.nn.functional.mse_loss)
    return losses and [loss.item() for loss in losses], pipeline.most_versions


def test_every_schedule_has_the_gradients_of_one_process(setting):
    name, nproc = setting
    results = launch.capture(run_each, nproc=nproc, backend=name, timeout=300)
    for run, (schedule, m, v) in schedules(nproc).items():
        for recomputed in (False, True):
            covered = set()
            for rank in range(nproc):
                off, off_loss, actions, left = results[rank][run, recomputed]
                assert max(off.values()) < TOLERANCE and off_loss < TOLERANCE, (
                    run,
                    recomputed,
                    rank,
                    off,
                )
                assert actions == schedule[rank]
                assert len(left) == sum(action.kind == "W" for action in actions) and all(left), (
                    run,
                    recomputed,
                    left,
                )
                covered |= set(off)
            assert covered == {n for n, _ in gpt(nproc * v, wrap=False)[0].named_parameters()}, run
            sent = results.ledger.section(f"{run} {recomputed}").sent("bytes")
            # of activations and of gradients, all edges
            rows = 2 * (2 * m - 1) * (nproc * v - 1) if nproc > 1 else 0
            tied = 2 * 11 * 8 if nproc > 1 else 0
            assert sent == 8 * (rows * 5 * 8 + tied), (run, recomputed)
            assert nproc == 1 or len(messages(schedule)) == 2 * (nproc * v - 1) * m


def test_pipedream_on_a_gpu_is_pipedream_on_the_cpu(setting):
    name, nproc = setting
    on_gpu = launch.capture(asynchronous, nproc=nproc, backend=name, timeout=120)
    on_cpu = launch.capture(asynchronous, nproc=nproc, backend="gloo")
    assert on_gpu[-1][0] == pytest.approx(on_cpu[-1][0], rel=1e-12) and len(on_gpu[-1][0]) == 6
    assert [versions for _, versions in on_gpu] == [versions for _, versions in on_cpu]
