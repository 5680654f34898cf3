"""The stored comparison: what is stored fits its command; one process computes what ranks do; a
rerun begins alike."""

import platform

import pytest
import torch
import torch.distributed as dist

from lib import launch
from lib.data_parallel import diloco_comparison
from lib.data_parallel.diloco import outer_step
from lib.measuring import seeds
from lib.training import text as texts
from lib.training.model import GPT, cross_entropy


def test_what_is_stored_is_what_the_command_would_write():
    record, asked = diloco_comparison.STORED.stored(), diloco_comparison.STORED
    assert list(record["losses"]) == list(asked.runs)
    assert (record["seeds"], record["steps"]) == (list(asked.seeds), list(asked.steps))
    assert {(len(of), *{len(one) for one in of}) for of in record["losses"].values()} == {(3, 30)}
    assert (
        "3 seeds; validation loss after 600 steps:" in asked.heading()
        and record["date"] in asked.heading()
    )


def test_with_every_seed_data_parallelism_is_ahead_at_equal_steps_and_diloco_in_a_third_of_them():
    every, rarely = diloco_comparison.STORED.stored()["losses"].values()
    for a, b in zip(every, rarely, strict=True):
        # b[-1] is after 600 steps, a[9] after 200
        assert all(x < y for x, y in zip(a, b, strict=True)) and b[-1] < a[9]


def on_ranks(seed, steps):
    """What this rank's model is after `steps` of DiLoCo, as the notebook trains it: (n,)."""
    text, rank, N = texts.load(), dist.get_rank(), dist.get_world_size()
    model = GPT(diloco_comparison.shape_of(text), seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=diloco_comparison.RATE)
    start = [p.detach().clone() for p in model.parameters()]
    velocity = [torch.zeros_like(w) for w in start]
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        batch = texts.batch(
            text.train, step, rank, N, diloco_comparison.BATCH, diloco_comparison.SEQ_LEN, seed
        )
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        if step % diloco_comparison.RUNS["DiLoCo"] == 0:
            outer_step(model.parameters(), start, velocity, 1.0, 0.0)
    return seeds.validation_loss(model, *seeds.windows(text, diloco_comparison.SEQ_LEN), batch=256)


def test_one_process_computes_what_ranks_do_and_what_is_stored():
    (alone,) = diloco_comparison.train("DiLoCo", 1, steps=20)
    ranks = launch.run(on_ranks, 1, 20, nproc=4, ledger=False)
    assert list(ranks) == pytest.approx([alone] * 4, rel=1e-4)
    record = diloco_comparison.STORED.stored()
    if record["python"] != platform.python_version():
        pytest.skip(f"the text is Python's own: stored with {record['python']}")
    assert alone == pytest.approx(record["losses"]["DiLoCo"][1][0], abs=0.02)


def test_seeds_are_stored_with_their_date_and_read_back(tmp_path, capsys):
    kept = seeds.Seeds(tmp_path / "seeds.json", "a command", {"one": 1, "two": 2}, (0, 1), (10, 20))
    kept.store(lambda run, seed: [seed + 0.123456, {"one": 1.0, "two": 2.0}[run]])
    assert capsys.readouterr().out.splitlines()[1] == "two: validation losses 2.0000, 2.0000"
    record = kept.stored()
    assert record["losses"] == {
        "one": [[0.1235, 1.0], [1.1235, 1.0]],
        "two": [[0.1235, 2.0], [1.1235, 2.0]],
    }
    assert (record["seeds"], record["steps"], record["torch"]) == (
        [0, 1],
        [10, 20],
        seeds.stamp()["torch"],
    )
