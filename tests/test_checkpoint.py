"""Checkpoints: a kill at any moment leaves the former whole, ranks agree on what is loaded, every bit comes back."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import checkpoint, launch

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def state_at(step):
    return {"step": step, "weight": torch.full((100,), float(step))}


def save_at(folder, step):
    """This rank's part tells step and rank."""
    checkpoint.save(folder, step, state_at(step), own=torch.tensor([step, dist.get_rank()]))


def is_whole(folder, step):
    """Does `step` load, with what was saved at that step?"""
    shared, own, facts = checkpoint.load(folder)
    world_size = dist.get_world_size()
    return (
        (facts.step, facts.world_size) == (step, world_size)
        and shared["step"] == step
        and bool((shared["weight"] == step).all())
        and own.tolist() == [step, dist.get_rank()]
    )


# --- killed in the middle -------------------------------------------------------------------------------------------

CALLS = ["mkdir", "open", "fsync", "rename", "unlink", "rmdir"]  # of os: whatever changes a folder or brings it to disk


def die_before(number):
    """SIGKILL this process before its `number`-th such call, or in the middle of a file: torch.save counts too."""
    count = 0

    def counted(call, half=None):
        def die_or_call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number:
                if half is not None:
                    half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return die_or_call

    def half_a_file(state, file):
        whole = Path(f"{file.name}.whole")
        torch_save(state, whole)
        file.write(whole.read_bytes()[: whole.stat().st_size // 2])
        file.flush()
        whole.unlink()

    torch_save = torch.save
    torch.save = counted(torch_save, half_a_file)
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def in_a_child(run):
    """run() in a forked process; its exit status, negative for a signal. On one rank of gloo: no message under way."""
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_before_each_call(folder, step):
    """A save of `step` after those of 1 and 2, killed at every point: what is left, and what the next save makes."""
    folder, seen = Path(folder), []
    save_at(folder / "start", 1)
    save_at(folder / "start", 2)
    for number in range(1, 100):
        here = folder / str(number)
        shutil.copytree(folder / "start", here)

        def run(here=here, number=number):
            die_before(number)
            save_at(here, step)

        status = in_a_child(run)
        left = checkpoint.latest(here)
        seen.append({"status": status, "latest": left, "whole": is_whole(here, left), "left": names(here)})
        save_at(here, 4)
        seen[-1] |= {"after": names(here), "whole after": is_whole(here, 4)}
        if status == 0:
            return seen
    return seen


@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "the same step again"])
def test_killed_at_any_point_the_former_or_the_new_one_is_whole(tmp_path, step):
    (seen,) = launch.capture(killed_before_each_call, tmp_path, step, nproc=1, backend="gloo", ledger=False)
    *killed, ended = seen
    assert len(killed) > 10 and {point["status"] for point in killed} == {-signal.SIGKILL}
    assert ended["status"] == 0 and ended["latest"] == step
    assert all(point["whole"] and point["whole after"] for point in seen)
    latest = [point["latest"] for point in seen]
    assert latest == sorted(latest) and set(latest) == {2, step}
    suffixes = {Path(name).suffix for point in killed for name in point["left"]}
    assert {".unfinished", ".removed"} <= suffixes and (".replaced" in suffixes) == (step == 2)
    for point in seen:  # leftovers are gone with the next save, and two are kept
        assert point["after"] == [f"step_{point['latest']:08d}", "step_00000004"]


def killed_from_outside(folder):
    """A child saves one step after another and is killed at no particular moment, ten times; it goes on each time."""
    folder, seen = Path(folder), []
    for turn in range(10):
        before = checkpoint.latest(folder) or 0
        child = os.fork()
        if child == 0:
            step = before
            while True:
                step += 1
                save_at(folder, step)
        deadline = time.monotonic() + 100
        while (checkpoint.latest(folder) or 0) < before + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.0013 * turn)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left = checkpoint.latest(folder)
        seen.append(left >= before + 2 and is_whole(folder, left))
    return seen


def test_killed_from_outside_at_any_time(tmp_path):
    (seen,) = launch.capture(killed_from_outside, tmp_path, nproc=1, backend="gloo", timeout=200, ledger=False)
    assert seen == [True] * 10


def three_saves(folder, victim=None, number=None):
    """Steps 1, 2 and 3 on all ranks; `victim` is killed in the third."""
    for step in (1, 2, 3):
        if step == 3 and dist.get_rank() == victim:
            die_before(number)
        save_at(folder, step)


def go_on(folder):
    loaded = is_whole(folder, 2)
    save_at(folder, 3)
    return loaded, is_whole(folder, 3)


@pytest.mark.parametrize(
    ("victim", "number"),
    [(1, 1), (2, 2), (0, 4), (0, 8)],
    ids=["in its file", "before fsync", "in shared.pt", "before the rename"],
)
def test_one_rank_killed_between_files_leaves_the_former_to_all(tmp_path, victim, number):
    with pytest.raises(launch.RankError, match=f"rank {victim}"):
        launch.capture(three_saves, tmp_path, victim, number, nproc=3)
    assert names(tmp_path) == ["step_00000001", "step_00000002", "step_00000003.unfinished"]
    assert launch.capture(go_on, tmp_path, nproc=3) == [(True, True)] * 3
    assert names(tmp_path) == ["step_00000002", "step_00000003"]


def order_of_calls(folder):
    """What the operating system is asked, in order: fsync and rename, with the names."""
    log, fsync, rename = [], os.fsync, os.rename

    def noted_fsync(descriptor):
        log.append(("fsync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def noted_rename(source, target):
        inodes = {path.stat().st_ino for path in [Path(source), *Path(source).iterdir()]}
        log.append(("rename", Path(target).name, inodes))
        rename(source, target)

    os.fsync, os.rename = noted_fsync, noted_rename
    save_at(folder, 1)
    return log, Path(folder).stat().st_ino


def test_every_file_and_its_folder_are_on_disk_before_the_name_is_given(tmp_path):
    (log, folder) = launch.capture(order_of_calls, tmp_path, nproc=1, backend="gloo")[0]
    place = next(i for i, entry in enumerate(log) if entry[0] == "rename")
    _, name, inodes = log[place]
    assert name == "step_00000001" and len(inodes) == 3  # the folder, shared.pt, rank_0.pt
    assert inodes <= {inode for _, inode in log[:place]}
    assert ("fsync", folder) in log[place + 1 :]  # and then the name itself


# --- on ranks -------------------------------------------------------------------------------------------------------


def said(fn, *args, **kwargs):
    try:
        fn(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


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
        seen["on two"] = shared["step"], own, facts.world_size, [facts.own_of(r).tolist() for r in range(3)]
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
        assert seen["nothing"].startswith("FileNotFoundError") and "nothing has been saved there" in seen["nothing"]
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
    with pytest.raises(launch.RankError, match="rank 1 saves step 6, rank 0 step 5: all ranks save the same step"):
        launch.capture(different_steps, tmp_path, nproc=2)
    assert checkpoint.latest(tmp_path) is None


def test_what_is_sent(tmp_path):
    book = launch.capture(save_at, tmp_path, 1, nproc=2).ledger
    # a broadcast of 2 int64; two barriers, one byte from each rank
    assert [(e.numel, e.nbytes) for e in book.of(0) if e.op == "send"] == [(2, 16), (1, 1), (1, 1)]
    assert [(e.numel, e.nbytes) for e in book.of(1) if e.op == "send"] == [(1, 1), (1, 1)]


# --- what is in it --------------------------------------------------------------------------------------------------


def numbers(dtype):
    """Random bits, so that nan, inf and the smallest numbers are among them; (1000,)."""
    generator = torch.Generator().manual_seed(1)
    if dtype == torch.bool:
        return torch.randint(2, (1000,), generator=generator) == 1
    size = torch.empty((), dtype=dtype).element_size()
    return torch.randint(256, (1000 * size,), generator=generator, dtype=torch.uint8).view(dtype)


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8)


def contents(folder):
    """One rank: states go out and come back."""
    folder, seen = Path(folder), {}
    state = {str(dtype): numbers(dtype) for dtype in DTYPES}
    checkpoint.save(folder / "bits", 0, state)
    back = checkpoint.load(folder / "bits")[0]
    seen["bits"] = {
        name: back[name].dtype == x.dtype and torch.equal(bytes_of(back[name]), bytes_of(x))
        for name, x in state.items()
    }

    flat = torch.arange(100_000.0)
    turned = torch.arange(6.0).view(2, 3).t()
    checkpoint.save(folder / "shard", 0, {}, own={"shard": flat[10:20], "turned": turned})
    own, facts = checkpoint.load(folder / "shard")[1:]
    seen["shard"] = torch.equal(own["shard"], flat[10:20]) and torch.equal(own["turned"], turned)
    seen["size"] = (facts.path / "rank_0.pt").stat().st_size

    model = nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    everything = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "more": (1.5, None, [torch.float16]),
    }
    checkpoint.save(folder / "states", 0, everything)
    back = checkpoint.load(folder / "states")[0]
    other = nn.Linear(2, 3)
    other.load_state_dict(back["model"])
    fresh = torch.optim.AdamW(other.parameters())
    fresh.load_state_dict(back["optimizer"])
    seen["states"] = (
        all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))
        and str(fresh.state_dict()) == str(optimizer.state_dict())
        and back["more"] == (1.5, None, [torch.float16])
    )

    seen["refused"] = [
        said(checkpoint.save, folder / "refused", 0, {"a": [1, np.ones(2)]}),
        said(checkpoint.save, folder / "refused", 0, {}, own={"where": Path("x")}),
        said(checkpoint.save, folder / "refused", 0, {"rate": np.float64(0.1)}),
        said(checkpoint.save, folder / "refused", -1, {}),
    ]
    seen["refused left"] = (folder / "refused").exists()
    return seen


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return launch.capture(contents, tmp_path_factory.mktemp("one"), nproc=1, backend="gloo")[0]


def test_every_dtype_comes_back_bit_for_bit(one):
    assert one["bits"] == {str(dtype): True for dtype in DTYPES}


def test_a_shard_is_saved_without_what_it_is_cut_from(one):
    assert one["shard"] and one["size"] < 4000  # bytes; the whole has 400,000


def test_states_of_models_and_optimizers_come_back(one):
    assert one["states"]


def test_what_could_not_be_loaded_again_is_not_saved(one):
    array, path, number, step = one["refused"]
    assert array.startswith("TypeError: shared['a'][1] is a numpy.ndarray") and "torch.from_numpy" in array
    assert path.startswith("TypeError: own['where'] is a pathlib.PosixPath")
    assert number.startswith("TypeError: shared['rate'] is a numpy.float64")
    assert step == "ValueError: step is -1: steps count from 0"
    assert not one["refused left"]


def flip_a_bit(file):
    """In a tensor's contents, which torch.load takes as they are."""
    content = bytearray(file.read_bytes())
    content[content.index(torch.full((100,), 42.0).numpy().tobytes())] ^= 1
    file.write_bytes(content)
    torch.load(file, weights_only=True)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = [
    ("shared.pt", flip_a_bit, "checksum"), ("shared.pt", cut, "not a zip"), ("rank_0.pt", Path.unlink, "missing"),
    ("rank_0.pt", cut, "not a zip"), ("rank_0.pt", lambda file: file.write_bytes(b""), "not a zip"),
]  # fmt: skip


def damaged(folder):
    folder, seen = Path(folder), []
    save_at(folder / "start", 40)
    save_at(folder / "start", 42)
    for number, (name, damage, _) in enumerate(DAMAGES):
        here = folder / str(number)
        shutil.copytree(folder / "start", here)
        damage(here / "step_00000042" / name)
        error = said(checkpoint.load, here)
        older = checkpoint.load(here, step=40)[2].step
        shutil.rmtree(here / "step_00000042")
        cut(here / "step_00000040" / "shared.pt")
        seen.append((error, older, said(checkpoint.load, here)))
    return seen


def test_a_damaged_file_is_named_and_the_next_older_step(tmp_path):
    seen = launch.capture(damaged, tmp_path, nproc=1, backend="gloo")[0]
    for (name, _, reason), (error, older, last) in zip(DAMAGES, seen, strict=True):
        assert error is not None and error.startswith("RuntimeError"), (name, error)
        assert f"step_00000042/{name} is damaged (" in error and reason in error
        assert error.endswith("/step_00000042; the next older is step 40")
        assert older == 40
        assert last.endswith("/step_00000040; there is no older one")


# --- resumed --------------------------------------------------------------------------------------------------------


def draw():
    return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()


def resumed_draws(folder):
    """Each rank saves in the middle of its draws, goes on, and goes on again from the checkpoint."""
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
