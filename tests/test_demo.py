"""The demo trains what one process would train, sends what the formula says, and leaves its
proof in a folder."""

import json
import os
import subprocess
import sys

import pytest
import torch

from lib import demo, launch
from lib.training import text
from lib.training.model import GPT


def run_demo(*arguments, timeout=600):
    """As a visitor runs it, but without a terminal."""
    command = [sys.executable, "-m", "lib.demo", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "80"},
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    done = run_demo("--ranks", 2, "--steps", 10, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, out, json.loads((out / "demo.json").read_text())


@pytest.mark.slow
def test_it_leaves_figures_and_numbers(tiny):
    _, out, record = tiny
    assert sorted(p.name for p in out.iterdir()) == ["demo.json", "loss.png", "traffic.png"]
    assert all(
        (out / name).read_bytes().startswith(b"\x89PNG") for name in ("loss.png", "traffic.png")
    )
    assert (record["ranks"], record["steps"]) == (2, 10)
    assert len(record["loss"]["training"]) == 10
    assert record["tokens_per_second"] == pytest.approx(10 * 2 * 8 * 64 / record["seconds"])


def test_it_learns(tiny):
    losses = tiny[2]["loss"]
    assert losses["training"][0] == pytest.approx(4.63, abs=0.1)  # ln 103
    assert losses["training"][-1] < losses["training"][0] - 0.3
    assert losses["validation"][0][0] == 0 and losses["validation"][-1][0] == 9  # [step, loss]
    assert losses["validation"][-1][1] < losses["validation"][0][1] - 0.3


def test_every_rank_sent_the_formula_to_its_right_neighbour_and_nothing_else(tiny):
    _, _, record = tiny
    n = record["traffic"]["n"]
    assert n == record["parameters"] + 2  # even already
    # 2(N-1)/N = 1 for two ranks
    assert record["traffic"]["matrix_bytes"] == [[0, n * 4 * 10], [n * 4 * 10, 0]]
    assert record["traffic"]["equal"]


def test_losses_are_those_of_one_process(tiny):
    """Computed here anew, in float64 where the demo is in float32, by a loop of its own."""
    _, _, record = tiny
    pages = text.load()
    model = GPT(demo.shape_for(pages)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.05)
    for step, reported in enumerate(record["loss"]["training"]):
        tokens, targets = text.batch(pages.train, step, batch_size=16, seq_len=64)
        loss = model.loss(tokens, targets)
        assert reported == pytest.approx(loss.item(), abs=2e-4), step
        optimizer.zero_grad()
        loss.backward()
        used = (step + 1) / 10
        optimizer.param_groups[0]["lr"] = 4e-3 * (step + 1) / 20 * (1 - 0.95 * used)
        optimizer.step()
    assert record["one_process"]["equal"] and record["hashes"]["equal"]
    assert record["one_process"]["gradients_apart"] < 1e-5


def test_the_printed_story_is_short_and_plain(tiny):
    done, out, record = tiny
    lines = done.stdout.replace(str(out), "results").splitlines()  # whatever folder was asked for
    assert len(lines) < 60 and max(map(len, lines)) <= 100
    assert "\r" not in done.stdout and "\x1b" not in done.stdout  # no terminal, no bar
    assert "training 100 %" in done.stdout and "NOT EQUAL" not in done.stdout
    assert f"{record['traffic']['formula_bytes_per_rank']:,}" in done.stdout
    assert f"in {out}: loss.png" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_any_number_of_ranks_sends_exactly_the_formula(world_size, tmp_path):
    """Padding makes N divide n, so that 2(N-1)/N * n is whole and the same for every rank."""
    pages = text.load()
    results = launch.capture(
        demo.train, pages, None, 2, str(tmp_path / "progress"), nproc=world_size
    )
    n = demo.buffer_size(GPT(demo.shape_for(pages)), world_size)
    assert n % world_size == 0
    assert [results.ledger.sent("elements", r) for r in range(world_size)] == [
        2 * (world_size - 1) * n // world_size * 2
    ] * world_size
    assert len({r["hash"] for r in results}) == 1
    losses, gradients = demo.one_process(pages, world_size, results[0]["rates"])
    assert results[0]["losses"] == pytest.approx(losses, abs=1e-5)
    for mean, one in zip(results[0]["first_means"], gradients, strict=True):
        torch.testing.assert_close(mean, one, rtol=0, atol=1e-6 * one.abs().max().item())


def test_a_run_by_the_clock_ends_on_the_same_step_on_every_rank(tmp_path):
    results = launch.capture(
        demo.train, text.load(), 0.5, None, str(tmp_path / "progress"), nproc=2
    )
    assert len(results[0]["losses"]) == len(results[1]["losses"]) >= 1
    assert results[0]["losses"] == results[1]["losses"]
    assert results[0]["hash"] == results[1]["hash"]
    used, step, loss = (tmp_path / "progress").read_text().splitlines()[-1].split()
    assert (float(used), int(step), float(loss)) == (
        1.0,
        len(results[0]["losses"]),
        results[0]["losses"][-1],
    )


@pytest.mark.slow
def test_a_wrong_run_is_called_wrong(tmp_path, capsys):
    """The claims can fail: results in which rank 1 drifted, and the gradient was never divided."""
    pages = text.load()
    results = launch.capture(demo.train, pages, None, 2, str(tmp_path / "progress"), nproc=2)
    assert demo.report(pages, 2, results, tmp_path)
    results[1]["hash"] = "0" * 12
    assert not demo.report(pages, 2, results, tmp_path)
    results[1]["hash"] = results[0]["hash"]
    results[0]["first_means"] = [2 * mean for mean in results[0]["first_means"]]
    capsys.readouterr()
    assert not demo.report(pages, 2, results, tmp_path)
    assert "apart by 1e+00 of the largest at most   NOT EQUAL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ranks", "0"], "--ranks 0 leaves nothing to run"),
        (["--seconds", "-5"], "--seconds -5 leaves nothing to run"),
        (["--steps", "0"], "--steps 0 leaves nothing to run"),
        (["--steps", "3", "--seconds", "3"], "not allowed with argument"),
        (["--text", "no/such.txt"], "no/such.txt does not exist: give the path of a text file"),
        (["--out", __file__], "there is a file of that name"),
        (["--out", __file__ + "/below"], "there is a file of that name"),
        (["--out", "/sys/results"], "--out /sys/results cannot be written to ("),
    ],
)
def test_bad_options_say_what_to_do(arguments, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        demo.main(arguments)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_your_own_text_is_trained_on(tmp_path):
    (tmp_path / "mine.txt").write_text("Ein Ring, sie zu knechten. " * 200, encoding="utf-8")
    arguments = [
        "--ranks",
        2,
        "--steps",
        3,
        "--text",
        tmp_path / "mine.txt",
        "--out",
        tmp_path / "out",
    ]
    assert demo.main([*map(str, arguments)]) == 0
    record = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert record["text"]["characters"] == 27 * 200
    assert set(record["sample"]) <= set("Ein Ring, sie zu knechten. ")
