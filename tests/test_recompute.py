"""Recomputation keeps inputs only, gives the same gradients, dropout included, and composes with
every schedule."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from lib import launch
from lib.pipeline import gpipe, interleaved, kept, one_f_one_b, relay, simulate, zb_h1
from lib.pipeline.links import connect
from lib.pipeline.split import split_gpt
from lib.pipeline.stage import Pipeline, Stage
from lib.training.model import GPT, Shape, cross_entropy
from lib.training.recompute import Recomputed, SavedBytes, recompute


def gpt(dropout=0.0, n_layers=4):
    shape = Shape(
        vocab_size=11,
        seq_len=5,
        n_layers=n_layers,
        hidden=8,
        n_heads=2,
        n_kv_heads=1,
        dropout=dropout,
    )
    return GPT(shape).double()


def batch(rows):
    tokens = torch.randint(11, (rows, 6), generator=torch.Generator().manual_seed(rows))
    return tokens[:, :-1], tokens[:, 1:]


def step(model, run):
    """(loss, {name: gradient}, random state afterwards), with run(part, x) in place of
    part(x) for each part."""
    torch.manual_seed(7)
    tokens, targets = batch(3)
    x = tokens
    for part in (model.embedding, *model.blocks):
        x = run(part, x)
    loss = cross_entropy(model.head(model.norm(x)), targets)
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters()}, torch.get_rng_state()


def test_gradients_are_the_same_bits_with_dropout_and_nobody_else_s_random_numbers_change():
    want_loss, want, state = step(gpt(dropout=0.3), lambda part, x: part(x))
    loss, got, after = step(gpt(dropout=0.3), recompute)
    assert torch.equal(loss, want_loss) and torch.equal(after, state)
    assert got.keys() == want.keys() and all(torch.equal(got[n], g) for n, g in want.items())
    assert any(not torch.equal(g, want[n]) for n, g in step(gpt(dropout=0.0), recompute)[1].items())


def test_forward_runs_twice_first_without_a_graph_then_with_one():
    modes = []

    def f(x):
        modes.append((torch.is_grad_enabled(), x.requires_grad))
        return x.square()

    x = torch.tensor([3.0], requires_grad=True)
    y = recompute(f, recompute(f, x))
    assert modes == [(False, True), (False, True)]
    y.backward()
    assert x.grad.item() == 4 * 27 and modes[2:] == [(True, True), (True, True)]


def test_gradcheck():
    linear = nn.Linear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: recompute(lambda x: linear(x).tanh(), x), x)


@pytest.mark.parametrize("backward_inside", [False, True])
def test_the_second_forward_runs_under_the_autocast_of_the_first(backward_inside):
    """As torch's checkpoint does: a weight that is used twice, and gradients of the same bits."""

    def gradients(run):
        torch.manual_seed(0)
        linear, x, seen = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True), []

        def f(x):
            y = linear(linear(x).relu())
            seen.append(y.dtype)
            return y

        with torch.autocast("cpu", torch.bfloat16):
            loss = run(f, x).float().sum()
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        assert set(seen) == {torch.bfloat16}
        return linear.weight.grad, x.grad

    for got, want in zip(gradients(recompute), gradients(lambda f, x: f(x)), strict=True):
        assert torch.equal(got, want)


def test_autocast_that_was_off_in_the_first_forward_stays_off():
    seen = []
    y = recompute(
        lambda x: seen.append((x @ x).dtype) or x @ x, torch.ones(2, 2, requires_grad=True)
    )
    with torch.autocast("cpu", torch.bfloat16):
        y.sum().backward()
    assert seen == [torch.float32] * 2


def test_a_recomputed_block_takes_names_tuples_and_several_tensors_and_returns_several():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, scale=1.0, mask=None, positions=None):
            cos, sin = positions
            y = self.linear(x) * scale * cos + sin
            return (y if mask is None else y.masked_fill(mask, 0.0)), x.sum(-1), mask

    block = Block()
    leaves = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
    mask = torch.tensor([[True, False, False]])

    def gradients(block):
        x, cos, sin = leaves
        y, total, same_mask = block(x, scale=2.0, mask=mask, positions=(cos, sin))
        assert same_mask.dtype == torch.bool
        return torch.autograd.grad((y.square().sum() + total.prod()), leaves)

    for got, want in zip(gradients(Recomputed(block)), gradients(block), strict=True):
        assert torch.equal(got, want)


def test_tokens_and_frozen_parts():
    """Tokens need no gradient, their embedding does; where nothing does, backward just passes."""
    embedding = nn.Embedding(5, 3)
    recompute(embedding, torch.tensor([1, 1, 4])).sum().backward()
    assert embedding.weight.grad[:, 0].tolist() == [0, 2, 0, 0, 1]
    embedding.requires_grad_(False).weight.grad = None
    recompute(embedding, torch.tensor([1])).sum().backward()
    assert embedding.weight.grad is None


# What is kept.


def test_only_the_input_is_kept():
    model, (tokens, targets) = gpt(), batch(3)
    block, x = model.blocks[0], torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    with SavedBytes(besides=model.parameters()) as saved:
        y = recompute(block, x)
        assert saved.nbytes() == x.nbytes == 3 * 5 * 8 * 8
        y.sum().backward()
        assert saved.nbytes() == 0
        plain = block(x)
        assert saved.nbytes() > 10 * x.nbytes
        del plain
        assert saved.nbytes() == 0, "a graph that is dropped keeps nothing"
        loss = model.loss(tokens, targets)
        assert saved.nbytes() > 4 * 10 * x.nbytes
        loss.backward()
        assert saved.nbytes() == 0


def test_memory_that_tensors_share_counts_once_and_what_exists_anyway_not_at_all():
    x, w = (
        torch.randn(10, dtype=torch.float64, requires_grad=True),
        torch.randn(10, dtype=torch.float64),
    )
    with SavedBytes(besides=[w]) as saved:
        y = (x * x).view(2, 5) * w.view(2, 5)  # saves x twice; and w, a view
        assert saved.nbytes() == 80
        z = y.tanh()  # noqa: F841  its own result is saved
        assert saved.nbytes() == 160
        assert saved.nbytes(also=[w[:3], torch.zeros(1, dtype=torch.float64), x[2:]]) == 168


# On ranks: the bytes after every action are the simulator's count, recomputed or not.

RANKS, M, ROWS = 3, 5, 2
SCHEDULES = {
    "relay": (relay(RANKS, M), 1),
    "gpipe": (gpipe(RANKS, M), 1),
    "1f1b": (one_f_one_b(RANKS, M), 1),
    "zb-h1": (zb_h1(RANKS, M), 1),
    "interleaved": (interleaved(RANKS, 2 * RANKS, 2), 2),
}


def cut(v, wrap):
    """A GPT with a block per stage, and its stages, whole ones recomputed if `wrap`
    is Recomputed."""
    model = gpt(n_layers=RANKS * v)
    return model, [
        wrap(stage) for stage in split_gpt(model, [range(s, s + 1) for s in range(RANKS * v)])
    ]


def one_microbatch(stage, is_last, targets, splits, besides):
    """(bytes kept after F, bytes kept after I) of one micro-batch, from the stage alone."""
    runner = Stage(stage.module, stage.is_first)
    x = (
        torch.zeros(ROWS, 5, dtype=torch.int64)
        if stage.is_first
        else torch.zeros(ROWS, 5, 8, dtype=torch.float64)
    )
    besides = [*besides, x] if stage.is_first else besides
    with SavedBytes(besides) as saved:
        y = runner.forward(0, x, splits, (lambda y: cross_entropy(y, targets)) if is_last else None)
        live = saved.nbytes(also=runner.held())
        if not splits:
            return live, 0
        runner.input_gradient(0, torch.ones_like(y))
        waiting = saved.nbytes(also=runner.held())
    stage.module.zero_grad()
    return live, waiting


class Measured(NamedTuple):
    """One schedule with one wrapper, on one rank."""

    each: dict  # {stage: a micro-batch's (live, waiting) bytes}
    sizes: list  # bytes after each action
    gradients: dict


def measure_each():
    """{(schedule, wrapper): Measured}."""
    links, wraps = connect(), (Recomputed, nn.Sequential)
    return {
        (name, wrap.__name__): measure(links, name, wrap) for name in SCHEDULES for wrap in wraps
    }


def measure(links, name, wrap):
    schedule, v = SCHEDULES[name]
    model, stages = cut(v, wrap)
    m, splits = sum(a.kind == "F" for a in schedule[0]) // v, "zb" in name
    tokens, targets = batch(ROWS * m)
    xs, wanted = tokens.split(ROWS), targets.split(ROWS)
    pipeline = Pipeline(stages, links, xs)
    anyway = [*model.parameters(), tokens, targets]
    each = {
        s: one_microbatch(stage, s == pipeline.last, wanted[0], splits, anyway)
        for s, stage in pipeline.stages.items()
    }
    sizes = []
    with SavedBytes(anyway) as saved:
        after = lambda bar: sizes.append(
            saved.nbytes(also=[t for stage in pipeline.stages.values() for t in stage.held()])
        )
        pipeline.run(schedule, xs, wanted, cross_entropy, record=after)
    mine = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return Measured(each, sizes, mine)


@pytest.fixture(scope="module")
def results():
    return launch.capture(measure_each, backend="gloo", nproc=RANKS, timeout=120, ledger=False)


def expected(actions, each):
    """Bytes after each action of a rank: what `simulate.kept` counts of each stage, times a
    micro-batch's bytes."""
    totals = []
    for i in range(len(actions)):
        total = 0
        for s, (live_bytes, waiting_bytes) in each.items():
            live, waiting = ([(0, 0)] + kept([a for a in actions[: i + 1] if a.stage == s]))[-1]
            total += live * live_bytes + waiting * waiting_bytes
        totals.append(total)
    return totals


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("wrapper", ["Recomputed", "Sequential"])
def test_bytes_after_every_action_are_the_simulators_count_times_those_of_a_micro_batch(
    results, name, wrapper
):
    schedule, v = SCHEDULES[name]
    run = simulate(schedule)
    for rank, actions in enumerate(schedule):
        each, sizes, _ = results[rank][name, wrapper]
        assert sizes == expected(actions, each), rank
        assert sizes[-1] == 0 and (max(sizes) > 0 or (wrapper == "Recomputed" and rank == 0)), (
            "tokens exist anyway"
        )
        if v == 1 and name != "zb-h1":
            ((live_bytes, _),) = each.values()
            assert max(sizes) == run.peak_live[rank] * live_bytes
        if name == "zb-h1":
            ((live_bytes, waiting_bytes),) = each.values()
            assert run.peak_kept[rank] * min(live_bytes, waiting_bytes) <= max(sizes)
            assert max(sizes) <= run.peak_kept[rank] * max(live_bytes, waiting_bytes)


def test_a_recomputed_stage_keeps_its_input_alone(results):
    activation = ROWS * 5 * 8 * 8
    for name, (_, v) in SCHEDULES.items():
        for rank in range(RANKS):
            for s, (live_bytes, _) in results[rank][name, "Recomputed"].each.items():
                plain, _ = results[rank][name, "Sequential"].each[s]
                if s == RANKS * v - 1:  # the loss is computed outside of it
                    logits = ROWS * 5 * 11 * 8
                    assert activation + logits <= live_bytes < plain
                else:
                    assert live_bytes == (activation if s else 0) and plain > 10 * activation


@pytest.mark.parametrize("name", SCHEDULES)
def test_recomputed_stages_have_the_same_gradients_in_every_schedule(results, name):
    v = SCHEDULES[name][1]
    m = M if v == 1 else 2 * RANKS
    model, (tokens, targets) = gpt(n_layers=RANKS * v), batch(ROWS * m)
    model.loss(tokens, targets).backward()
    want = {n: p.grad for n, p in model.named_parameters()}
    for wrapper in ("Recomputed", "Sequential"):
        seen = {}
        for rank in range(RANKS):
            seen |= results[rank][name, wrapper].gradients
        assert seen.keys() == want.keys()
        for n, g in seen.items():
            # the key bias's true gradient is zero
            scale = want[n.replace("k.bias", "k.weight")].abs().max()
            assert (g - want[n]).abs().max() <= 1e-12 * scale, (n, wrapper)


def test_a_second_derivative_is_refused_with_what_to_do_instead():
    x = torch.ones(2, requires_grad=True)
    y = recompute(lambda x: x.square().sum(), x)
    with pytest.raises(
        RuntimeError, match=r"cannot be differentiated twice .* Call the function itself"
    ):
        torch.autograd.grad(y, x, create_graph=True)
