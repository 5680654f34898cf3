"""Checkpoints: ranks agree on what is loaded, and random numbers go on where they stood."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from checkpoints import is_whole, names, said, save_at

from lib import launch
from lib.training import checkpoint


def on_three_ranks(folder):
    """Everything that three ranks can show in one launch."""
    folder, rank, seen = Path(folder), dist.get_rank(), {}
    pair = dist.new_group([1, 2])
    seen["nothing"] = said(checkpoint.load, folder)
    for step in (40, 41, 42):
        save_at(folder, step)
    seen["kept"], seen["latest"] = names(folder), checkpoint.latest(folder)
    seen["whole"] = is_whole(folder, 42)
    seen["rank 0 decides"] = checkpoint.load(folder, step=41 if rank == 0 else 42)[2].step
    seen["no such step"] = said(checkpoint.load, folder, step=7)
    seen["earlier"] = said(save_at, folder, 17), names(folder)
    dist.barrier()  # every rank has looked before another writes there

    if rank > 0:  # the rank within the group counts
        shared, own, facts = checkpoint.load(folder, group=pair)
        seen["on two"] = (
            shared["step"],
            own,
            facts.world_size,
            [facts.own_of(r).tolist() for r in range(3)],
        )
        seen["no rank 3"] = said(facts.own_of, 3)
        checkpoint.save(folder / "pair", 0, {}, own=f"of {dist.get_rank(pair)}", group=pair)
        seen["pair"] = checkpoint.load(folder / "pair", group=pair)[:2]
    dist.barrier()

    checkpoint.save(folder / "again", 5, {"try": 1}, own=[rank])
    checkpoint.save(folder / "again", 5, {"try": 2}, own=[rank + 10])
    seen["again"] = checkpoint.load(folder / "again")[:2], names(folder / "again")
    return seen


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    return launch.capture(on_three_ranks, folder, nproc=3)


def test_all_ranks_get_the_latest_and_their_own(three):
    for seen in three:
        assert seen["whole"] and seen["latest"] == 42


def test_the_last_two_are_kept(three):
    assert [seen["kept"] for seen in three] == [["step_00000041", "step_00000042"]] * 3


def test_rank_0_decides_which_step_is_loaded(three):
    assert [seen["rank 0 decides"] for seen in three] == [41] * 3


def test_what_is_not_there_is_named_on_every_rank(three):
    for seen in three:
        assert (
            seen["nothing"].startswith("FileNotFoundError")
            and "nothing has been saved there" in seen["nothing"]
        )
        assert "no whole checkpoint of step 7: it holds steps 41, 42" in seen["no such step"]


def test_a_step_before_the_latest_is_refused_and_nothing_is_touched(three):
    for seen in three:
        error, left = seen["earlier"]
        assert "holds step 42, after 17: load it, remove it, or save to another folder" in error
        assert left == ["step_00000041", "step_00000042"]


def test_on_another_number_of_ranks_the_shared_part_comes_and_own_is_none(three):
    assert three[1]["on two"] == three[2]["on two"] == (42, None, 3, [[42, 0], [42, 1], [42, 2]])
    for seen in three[1:]:
        assert "was saved on 3 ranks, 0 to 2: no 3" in seen["no rank 3"]


def test_in_a_group_the_ranks_of_the_group_count(three):
    assert [seen["pair"] for seen in three[1:]] == [({}, "of 0"), ({}, "of 1")]


def test_the_same_step_again_replaces_the_former(three):
    for rank, seen in enumerate(three):
        assert seen["again"] == (({"try": 2}, [rank + 10]), ["step_00000005"])


def different_steps(folder):
    checkpoint.save(folder, 5 + dist.get_rank(), {})


def test_ranks_that_save_different_steps_are_told(tmp_path):
    with pytest.raises(
        launch.RankError, match="rank 1 saves step 6, rank 0 step 5: all ranks save the same step"
    ):
        launch.capture(different_steps, tmp_path, nproc=2)
    assert checkpoint.latest(tmp_path) is None


def test_what_is_sent(tmp_path):
    log = launch.capture(save_at, tmp_path, 1, nproc=2).ledger
    # a broadcast of 2 int64; two barriers, one byte from each rank
    assert [(e.numel, e.nbytes) for e in log.of(0) if e.op == "send"] == [(2, 16), (1, 1), (1, 1)]
    assert [(e.numel, e.nbytes) for e in log.of(1) if e.op == "send"] == [(1, 1), (1, 1)]


def draw():
    return (
        torch.rand(3).tolist(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
    )


def resumed_draws(folder):
    """Each rank saves in the middle of its draws, goes on, and goes on again from
    the checkpoint."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    draw()  # an odd number of normal numbers: the generators keep one back
    checkpoint.save(folder, 1, {}, own=checkpoint.random_state())
    expected = [draw() for _ in range(3)]
    checkpoint.set_random_state(checkpoint.load(folder)[1])
    return expected, [draw() for _ in range(3)]


def test_random_numbers_go_on_where_they_stood_on_each_rank(tmp_path):
    (first, first_again), (second, second_again) = launch.capture(resumed_draws, tmp_path, nproc=2)
    assert first == first_again and second == second_again and first != second


def test_the_random_state_of_a_gpu_is_not_set_on_the_cpu():
    state = checkpoint.random_state() | {"cuda": torch.zeros(16, dtype=torch.uint8)}
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="a run on a GPU, and this rank is on the CPU"):
        checkpoint.set_random_state(state)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_that_is_not_there_has_no_latest(tmp_path):
    assert checkpoint.latest(tmp_path / "nowhere") is None
    (tmp_path / "step_00000007.unfinished").mkdir()
    (tmp_path / "step_notes").mkdir()
    assert checkpoint.latest(tmp_path) is None
