"""Sharded checkpoints: saved on N ranks, loaded on M, whole after a crash in the
middle of a save."""

import os
import signal
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from replicas import differences, same_bits, share
from sweeps import sweep
from zero_cases import MODELS, ZeroRun, case_of, single_process

from lib import launch
from lib.training import checkpoint
from lib.training.checkpoint.sharded import recut, shard_size
from lib.zero import FSDP, OffloadedOptimizer, Zero2, load_shards, save_shards
from lib.zero.state import torch_optimizer

NAME, HALF, STEPS = "gpt float64", 2, 3
STAGES = ["zero1", "zero2", "fsdp", "prefetching"]
SAVED = [("gpt float64", stage, "adamw") for stage in STAGES] + [
    ("paths float64", "fsdp", "adamw"),
    ("gpt float64", "fsdp", "sgd"),
    ("mixed", "fsdp", "adamw"),
    ("mixed", "zero1", "adamw"),
]
SAVED = sweep(SAVED, always=SAVED[:1])


class Facts(NamedTuple):
    """What a checkpoint says besides weights and state."""

    shared: dict
    own: int | None
    step: int
    saved_on: int


class Resumed(NamedTuple):
    """The other half of a training, from a checkpoint."""

    steps: list
    facts: Facts
    loaded: dict  # parameters


class Seen(NamedTuple):
    """What a rank of four saw."""

    resumed: dict  # {(at, world size): Resumed}
    other_layouts: tuple
    offloaded: dict
    uninterrupted: dict  # {at: (parameters saved, the other half)}


def inner(run):
    """What the checkpoint takes the state from."""
    return run.sharded.optimizer if run.stage in ("zero1", "zero2") else run.optimizer


def steps(run, case, group, numbers):
    seen = []
    for step in numbers:
        run.optimizer.zero_grad()
        case.loss(
            run.net, share(case.batch(step), dist.get_rank(group), dist.get_world_size(group))
        ).backward()
        run.sharded.average_gradients()
        gradients = run.gradients()
        run.clip(0.3)
        run.optimizer.step()
        seen.append((gradients, run.parameters()))
    return seen


def begin(folder):
    """On four ranks: half of the training, a checkpoint, the other half. {at: (parameters saved,
    the other half)}."""
    rank, seen = dist.get_rank(), {}
    for at in SAVED:
        run, here = ZeroRun(*at, case_of(at[0]).build(0)), folder / "-".join(at)
        steps(run, case_of(at[0]), None, range(HALF))
        save_shards(here, HALF, run.sharded.flats, inner(run), shared={"seen": HALF}, own=rank)
        seen[at] = run.parameters(), steps(run, case_of(at[0]), None, range(HALF, STEPS))
    return seen


def load_run(folder, at, group):
    """A run from another seed, with the checkpoint's weights and state."""
    run = ZeroRun(*at, case_of(at[0]).build(7), group)
    shared, own, facts = load_shards(folder, run.sharded.flats, inner(run), group=group)
    if run.stage in ("zero1", "zero2"):
        run.sharded.gather_parameters()
    return run, Facts(shared, own, facts.step, facts.world_size)


def go_on(folder):
    """On one, two, three and four ranks: the other half."""
    rank, seen = dist.get_rank(), {}
    for members in [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]:
        group = dist.new_group(members) if len(members) < dist.get_world_size() else None
        for at in SAVED:
            if rank in members and (len(members) != 2 or at[1] == "fsdp"):
                run, facts = load_run(folder / "-".join(at), at, group)
                loaded = run.parameters()
                half = steps(run, case_of(at[0]), group, range(HALF, STEPS))
                seen[at, len(members)] = Resumed(half, facts, loaded)
    return seen


def other_layouts(folder):
    """What loading into something else says; and the settings that come back."""
    errors, at = [], SAVED[0]
    run = ZeroRun(*at, case_of(at[0]).build(0), capacity=3000)
    try:
        load_shards(folder / "-".join(at), run.sharded.flats, inner(run))
    except ValueError as error:
        errors.append(str(error))
    run = ZeroRun(*at, case_of(at[0]).build(0))
    for group in inner(run).param_groups:
        group["lr"], group["weight_decay"] = 9.0, 9.0
    load_shards(folder / "-".join(at), run.sharded.flats, inner(run))
    settings = [(g["lr"], g["weight_decay"]) for g in torch_optimizer(inner(run)).param_groups]
    try:
        checkpoint.save_sharded(folder / "x", 0, {"w": torch.zeros(3)}, {"w": 20})
    except ValueError as error:
        errors.append(str(error))
    return errors, settings


def offloaded_alike(folder):
    """Zero2 and FSDP with their state on the CPU train as without, and go on from a checkpoint."""
    case, off = case_of(NAME), {}

    def train(make, zero, numbers, folder=None, save=None):
        net = case.build(0)
        if zero:
            sharded = Zero2(net.parameters(), make)
            optimizer = sharded
        else:
            sharded = FSDP(net, net.blocks)
            optimizer = make(sharded.groups)
        state_of = sharded.optimizer if zero else optimizer
        if folder is not None:
            load_shards(folder, sharded.flats, state_of)
            if zero:
                sharded.gather_parameters()
        for step in numbers:
            optimizer.zero_grad()
            case.loss(net, share(case.batch(step), dist.get_rank(), 4)).backward()
            sharded.average_gradients()
            optimizer.step()
        if save is not None:
            save_shards(save, 1, sharded.flats, state_of)
        return [shard.detach().clone() for shard in sharded.shards]

    adamw = lambda groups: torch.optim.AdamW(groups, lr=0.01, eps=1e-3)
    on_cpu = lambda groups: OffloadedOptimizer(groups, adamw)
    for zero in (True, False):
        here = folder / f"offloaded {zero}"
        plain = train(adamw, zero, range(4))
        away = train(on_cpu, zero, range(4))
        train(on_cpu, zero, range(2), save=here)
        resumed = train(on_cpu, zero, range(2, 4), folder=here)
        off[zero] = [
            max((a - b).abs().max().item() for a, b in zip(plain, x, strict=True))
            for x in (away, resumed)
        ]
    return off


def on_four(folder):
    uninterrupted = begin(folder)
    return Seen(go_on(folder), other_layouts(folder), offloaded_alike(folder), uninterrupted)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return launch.capture(
        on_four, tmp_path_factory.mktemp("four"), nproc=4, backend="gloo", timeout=600, ledger=False
    )


@pytest.mark.parametrize("at", [at for at in SAVED if at[0] != "mixed"], ids=str)
def test_saved_on_four_ranks_it_goes_on_on_any_number_as_one_process_would(results, at):
    for world_size in (1, 2, 3, 4):
        if world_size == 2 and at[1] != "fsdp":
            continue
        for rank in range(world_size):
            seen = results[rank].resumed[at, world_size]
            want = single_process(at[0], at[2]).steps[HALF:]
            assert differences(seen.steps, want, MODELS[at[0]].tolerance) == []
            own = rank if world_size == 4 else None
            assert seen.facts == Facts({"seen": HALF}, own, step=HALF, saved_on=4)


@pytest.mark.parametrize("at", SAVED, ids=str)
def test_every_bit_comes_back_masters_and_state_too(results, at):
    resumed, (saved, uninterrupted) = results[0].resumed, results[0].uninterrupted[at]
    for (where, _), run in resumed.items():
        if where == at:
            assert all(torch.equal(run.loaded[name], x) for name, x in saved.items())
    assert same_bits(resumed[at, 4].steps, uninterrupted)


def test_other_flats_are_refused_and_settings_come_back(results):
    (other, wrong_size), settings = results[0].other_layouts
    assert "build model, units or buckets, and groups as in the run that saved it" in other
    assert "w has 20 numbers over 4 ranks, a shard of (5,), but this one is (3,)" in wrong_size
    assert settings == [(0.01, 0.0), (0.02, 0.1)]


def test_offloaded_it_is_the_same_training_and_the_same_checkpoint(results):
    for rank in range(4):
        assert results[rank].offloaded == {True: [0.0, 0.0], False: [0.0, 0.0]}


# --- a crash in the middle of a save --------------------------------------------------------------

CRASH = ("gpt float64", "fsdp", "adamw")


def crash_in_the_second_save(folder):
    """Saves after step 2, and again after step 3, in which rank 1 is killed while its file
    is half written."""
    case = case_of(CRASH[0])
    run = ZeroRun(*CRASH, case.build(0))
    steps(run, case, None, range(HALF))
    save_shards(folder, HALF, run.sharded.flats, run.optimizer)
    steps(run, case, None, [HALF])
    if dist.get_rank() == 1:
        torch.save = half_a_file
    save_shards(folder, HALF + 1, run.sharded.flats, run.optimizer)


def half_a_file(state, file):
    file.write(b"half a file")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def go_on_after_the_crash(folder):
    run, facts = load_run(folder, CRASH, None)
    return steps(run, case_of(CRASH[0]), None, range(HALF, STEPS)), facts


def test_killed_in_the_middle_of_a_save_the_one_before_is_loaded_on_fewer_ranks(tmp_path):
    with pytest.raises(launch.RankError, match="rank 1"):
        launch.capture(crash_in_the_second_save, tmp_path, nproc=3, backend="gloo", timeout=300)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step_00000002",
        "step_00000003.unfinished",
    ]
    for seen, facts in launch.capture(
        go_on_after_the_crash, tmp_path, nproc=2, backend="gloo", timeout=300
    ):
        assert facts == (None, None, HALF, 3)
        assert differences(seen, single_process(CRASH[0], CRASH[2]).steps[HALF:], 1e-12) == []


# --- cutting a line -------------------------------------------------------------------------------


def shards(n, world_size):
    line = torch.zeros(world_size * shard_size(n, world_size))
    line[:n] = 1 + torch.arange(n)
    return line.chunk(world_size)


def test_a_line_cut_for_n_ranks_is_cut_for_m():
    for n in (1, 2, 7, 12, 13):
        for saved_on in range(1, 6):
            for world_size in range(1, 6):
                for rank, expected in enumerate(shards(n, world_size)):
                    piece = recut(n, shards(n, saved_on).__getitem__, saved_on, rank, world_size)
                    assert torch.equal(piece, expected), (n, saved_on, world_size, rank)


def test_only_the_files_with_numbers_of_this_rank_are_read():
    read = []
    recut(16, lambda r: read.append(r) or shards(16, 8)[r], 8, 1, 4)
    assert set(read) == {2, 3}
