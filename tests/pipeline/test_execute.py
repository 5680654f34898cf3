"""What the executor promises beside values: sends do not block, refusals come before any message,
nothing hangs."""

import ast
import importlib
import os
import pathlib
import time
import types

import pytest
import torch
import torch.distributed as dist
from pipelines import CASES, cut, split_rows
from torch import nn

import lib.pipeline
from lib import launch, ledger
from lib.pipeline import gpipe, parse, zb_h1
from lib.pipeline.links import connect
from lib.pipeline.split import split_gpt, split_layers
from lib.pipeline.stage import Pipeline

M = 4


def of_three():
    """The "layers" case on 3 stages: (stages, its micro-batches, their targets, loss)."""
    case = CASES["layers"]
    xs, targets = split_rows(case.batch(2 * M - 1), M)
    return cut(case, 3)[1], xs, targets, case.loss


def said(fn):
    """(type, text) of the error that fn raises."""
    try:
        fn()
    except ValueError as error:
        return type(error).__name__, str(error)
    return None


def lists(*rows):
    return [[parse(text) for text in row.split()] for row in rows]


def refused(links):
    """{what: what was said}, and the loss of a run after all that."""
    stages, xs, targets, loss_fn = of_three()
    pipeline, of_two = Pipeline(stages, links, xs), Pipeline(stages, links, xs[:2])
    in_the_middle = [nn.Linear(3, 3) for _ in range(3)]
    in_the_middle[1].weight = in_the_middle[0].weight
    circle = lists("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1")
    run = lambda pipeline, schedule, xs=xs: pipeline.run(schedule, xs, targets[: len(xs)], loss_fn)
    ledger.mark("refused")
    seen = {
        "missing": said(lambda: run(pipeline, gpipe(3, M - 1))),
        "circle": said(lambda: run(of_two, circle, xs[:2])),
        "ranks": said(lambda: run(pipeline, gpipe(2, M))),
        "stages": said(lambda: Pipeline(stages[:2], links, xs)),
        "tie": said(lambda: Pipeline(in_the_middle, links, [torch.zeros(2, 3)])),
        "places": said(lambda: connect([[0, 1], [1, 2]])),
    }
    ledger.mark("")
    return seen, run(pipeline, gpipe(3, M))


class Noisy(nn.Module):
    """Draws random numbers and keeps running averages when it trains; a part of it is always in
    evaluation mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.dropout, self.still = (
            nn.BatchNorm1d(4),
            nn.Dropout(0.5),
            nn.BatchNorm1d(4).eval(),
        )

    def forward(self, x):
        return self.still(self.dropout(self.norm(x)))


def shape_inference(links):
    """{what: is it as it was before?}"""
    stages = [Noisy() for _ in range(3)]
    mine = stages[links.rank]
    random, buffers = torch.get_rng_state(), [b.clone() for b in mine.buffers()]
    ledger.mark("shape inference")
    Pipeline(stages, links, [torch.ones(3, 4), torch.ones(3, 4), torch.ones(2, 4)])
    ledger.mark("")
    return {
        "random state": torch.equal(random, torch.get_rng_state()),
        "buffers": all(torch.equal(a, b) for a, b in zip(buffers, mine.buffers(), strict=True)),
        "modes": [mine.training, mine.dropout.training, mine.still.training] == [True, True, False],
    }


def on_three_ranks():
    links = connect()
    return refused(links), shape_inference(links)


@pytest.fixture(scope="module")
def three():
    return launch.capture(on_three_ranks, backend="gloo", nproc=3)


def test_what_cannot_run_is_refused_on_every_rank_before_any_message(three):
    for rank in range(3):
        seen, loss = three[rank][0]
        assert seen["missing"][0] == "ScheduleError" and "never runs 0F3" in seen["missing"][1]
        assert (
            seen["circle"][0] == "ScheduleError"
            and "rank 0 waits at 0B0 for 1B0" in seen["circle"][1]
        )
        assert (
            seen["ranks"][1] == "a schedule of 2 ranks, but this pipeline has 3: make it with p = 3"
        )
        assert seen["stages"][1] == "2 stages on 3 ranks: each rank has v, so use 3, 6 or 9"
        assert seen["tie"][1].startswith(
            "stage 0's weight and stage 1's weight are one parameter on ranks [0, 1]: only"
        )
        said = "ranks [1] are listed twice in [[0, 1], [1, 2]]: a rank is in one pipeline, once"
        assert seen["places"][1] == said
        assert (loss is not None) == (rank == 2), "and after all that it still runs"
    assert len(three.ledger.section("refused").entries) == 0


def test_shape_inference_sends_a_message_per_pair_of_stages_and_leaves_nothing_behind(three):
    for rank in range(3):
        assert three[rank][1] == {"random state": True, "buffers": True, "modes": True}
    log = three.ledger.section("shape inference")
    assert log.matrix("messages").tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert log.sent("elements") == 2 * 3 * 10


def test_a_stage_returns_one_floating_point_tensor_and_stages_hold_all_layers_in_order():
    def alone():
        links = connect()
        return [
            said(
                lambda module=module: Pipeline(
                    [module], links, [torch.zeros(2, 3, dtype=torch.int64)]
                )
            )
            for module in (nn.Identity(), _Pair())
        ]

    ((one, pair),) = launch.capture(alone, backend="gloo", nproc=1)
    assert one[1].startswith(
        "stage 0 returns torch.int64 (2, 3) for (2, 3): a stage returns one tensor"
    )
    assert pair[1].startswith("stage 0 returns tuple for (2, 3)")
    for wrong in ([range(1), range(2, 3)], [range(2), range(1, 3)], [range(2)], []):
        with pytest.raises(ValueError, match="not 0 to 2 in order"):
            split_layers([nn.Identity()] * 3, wrong)
    with pytest.raises(ValueError, match="the stages' blocks are"):
        split_gpt(CASES["gpt"].build(3), [range(1, 3), range(1)])


class _Pair(nn.Module):
    def forward(self, x):
        return x, x


# Sends do not block.


class Waits(nn.Module):
    """In training: waits until a file is there, if it `waits`; writes it at its forward
    number `writes_at`."""

    def __init__(self, folder, waits=False, writes_at=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.file, self.waits, self.writes_at, self.n = (
            os.path.join(folder, "there"),
            waits,
            writes_at,
            0,
        )

    def forward(self, x):
        if self.training:
            self.n += 1
            give_up = time.monotonic() + 100
            while self.waits and not os.path.exists(self.file):
                assert time.monotonic() < give_up, "the other rank waits for this one"
                time.sleep(0.002)
            if self.n == self.writes_at:
                open(self.file, "w").close()
        return x * self.weight


def rank_1_waits_for_rank_0s_last_forward(folder):
    stages = [Waits(folder, writes_at=M), Waits(folder, waits=True)]
    xs = [torch.ones(1, 3)] * M
    pipeline = Pipeline(stages, connect(), xs)
    return pipeline.run(gpipe(2, M), xs, [torch.zeros(1, 3)] * M, nn.functional.mse_loss)


def test_a_rank_computes_on_while_nobody_receives_what_it_sent(tmp_path):
    """Rank 1 takes nothing in before rank 0 has run its last forward: had a send waited for it, it
    would never run."""
    losses = launch.capture(
        rank_1_waits_for_rank_0s_last_forward, str(tmp_path), backend="gloo", nproc=2, timeout=150
    )
    assert losses == [None, 1.0]


# An error on one rank.


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        if self.training and x[0, 0] == 2:
            raise ArithmeticError("micro-batch 2 is bad")
        return x * self.weight


def one_rank_fails():
    stages = [nn.Linear(3, 3), Fails(), nn.Linear(3, 3)]
    with torch.no_grad():
        stages[0].weight.copy_(torch.eye(3))
        stages[0].bias.zero_()
    xs = [torch.full((1, 3), float(j)) for j in range(M)]
    pipeline = Pipeline(stages, connect(), xs)
    pipeline.run(zb_h1(3, M), xs, xs, nn.functional.mse_loss)


def test_an_error_in_one_stage_is_the_verdict():
    with pytest.raises(
        launch.RankError, match="rank 1 raised ArithmeticError: micro-batch 2 is bad"
    ) as caught:
        launch.capture(one_rank_fails, backend="gloo", nproc=3)
    assert caught.value.kind == "raised", "and not at the timeout"


def returns_early():
    stages, xs, targets, loss_fn = of_three()
    pipeline = Pipeline(stages, connect(), xs)
    if dist.get_rank() != 1:
        pipeline.run(gpipe(3, M), xs, targets, loss_fn)


def test_a_rank_that_does_not_run_is_the_verdict():
    with pytest.raises(launch.RankError, match="rank 1 has returned") as caught:
        launch.capture(returns_early, backend="gloo", nproc=3)
    assert caught.value.kind in ("deadlock", "no progress"), "and not at the timeout"


def test_no_file_of_the_room_hides_a_function_of_its_name():
    """A file named as a function of `lib.pipeline` would take its place, once imported."""
    room = pathlib.Path(lib.pipeline.__file__)
    for file in room.parent.glob("[a-z]*.py"):
        importlib.import_module(f"lib.pipeline.{file.stem}")
    imports = [
        node for node in ast.parse(room.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    for name in [alias.name for node in imports for alias in node.names]:
        assert not isinstance(getattr(lib.pipeline, name), types.ModuleType), name
