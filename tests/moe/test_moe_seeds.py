"""The stored comparison: what is stored fits its command, the runs are what their table says, a
rerun begins alike."""

import platform
import re

import pytest
import torch

from lib.moe import seeds
from lib.training import text as texts


def test_what_is_stored_is_what_the_command_would_write():
    record = seeds.stored()
    assert list(record["losses"]) == list(seeds.RUNS) and record["seeds"] == list(seeds.SEEDS)
    assert record["steps"] == list(range(seeds.EVERY, seeds.STEPS + 1, seeds.EVERY))
    shapes = {(len(of), len(of[0])) for of in record["losses"].values()}
    assert shapes == {(len(seeds.SEEDS), len(record["steps"]))}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])


@pytest.mark.parametrize("run", seeds.RUNS)
def test_the_table_tells_the_parameters(run):
    table = seeds.__doc__.split("used per token\n")[1].split("\n\n")[0]
    (line,) = [line for line in table.splitlines() if re.match(rf"    {re.escape(run)}  ", line)]
    parameters = f"{sum(p.numel() for p in seeds.make(run, 0).parameters()):,}"
    assert re.findall(r"\d+,\d\d\d", line)[0] == parameters


def test_windows_are_all_of_the_validation_part_and_each_rank_its_own():
    text, T = texts.load(), seeds.SHAPE.seq_len
    tokens, targets = seeds.windows(text)
    assert len(text.validation) - 1 - T < tokens.numel() <= len(text.validation) - 1
    assert torch.equal(tokens.flatten(), text.validation[: tokens.numel()])
    assert torch.equal(targets.flatten(), text.validation[1 : tokens.numel() + 1])
    parts = [seeds.windows(text, slice(rank, None, 2))[0] for rank in range(2)]
    assert all(torch.equal(part, tokens[rank::2]) for rank, part in enumerate(parts))


def test_the_loss_is_the_mean_over_all_characters():
    model, (tokens, targets) = seeds.make("8 experts", 0), seeds.windows(texts.load(), slice(40))
    with torch.no_grad():  # 32 windows, then 8: each set has slots of its own
        parts = [(model(tokens[i]), targets[i])
                 for i in (slice(32), slice(32, 40))]  # fmt: skip
        whole = torch.cat([torch.nn.functional.cross_entropy(x.flatten(0, 1), y.flatten(),
            reduction="none")
                           for x, y in parts]).mean()  # fmt: skip
    assert seeds.validation_loss(model, tokens, targets) == pytest.approx(whole.item(), rel=1e-5)


def test_a_rerun_begins_as_what_is_stored():
    record = seeds.stored()
    if record["python"] != platform.python_version():
        pytest.skip(f"the text is Python's own: stored with {record['python']}")
    (loss,) = seeds.train("dense", 0, steps=seeds.EVERY)
    assert loss == pytest.approx(record["losses"]["dense"][0][0], abs=0.02)
