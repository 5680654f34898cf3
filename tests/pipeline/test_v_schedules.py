"""Stages placed in a V: ZB-V and DualPipeV are torch's lists, have their formula's bubble,
and run on ranks."""

import random
from types import SimpleNamespace

import pytest
import torch
from pipelines import CASES, any_valid_list, cut, differences, one_process, split_rows
from torch.distributed.pipelining import schedules as theirs

from lib import launch, ledger
from lib.pipeline import (
    ScheduleError,
    dualpipe_v,
    grid,
    interleaved,
    loop,
    messages,
    parse,
    recorded,
    simulate,
    times_of,
    v_shape,
    validate,
    zb_v,
)
from lib.pipeline.links import connect
from lib.pipeline.stage import Pipeline

ACCEPTED = [(p, m) for p in (1, 2, 3, 4, 8) for m in range(1, 4 * p + 1)]


def torchs(schedule, p, m, v=2):
    """The list of each rank as torch's class makes it; a pair that it overlaps is its two actions
    in their order."""
    lists = []
    for rank in range(p):
        stage = SimpleNamespace(group_size=p, group_rank=rank, num_stages=v * p, submod=None)
        order = [
            action for action in schedule([stage] * v, m).pipeline_order[rank] if action is not None
        ]
        lists.append([str(part) for action in order for part in action.sub_actions or [action]])
    return lists


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "torchs_class", "v", "placement"),
    [
        (zb_v, theirs.ScheduleZBVZeroBubble, 2, v_shape),
        (dualpipe_v, theirs.ScheduleDualPipeV, 2, v_shape),
        (lambda p, m: interleaved(p, m, 2), theirs.ScheduleInterleaved1F1B, 2, loop),
        (lambda p, m: interleaved(p, m, 3), theirs.ScheduleInterleaved1F1B, 3, loop),
    ],
    ids=["ZB-V", "DualPipeV", "interleaved, v = 2", "interleaved, v = 3"],
)
def test_action_by_action_the_lists_are_torchs_for_every_m_that_it_accepts_and_no_other(
    ours, torchs_class, v, placement
):
    accepted = 0
    for p in (2, 4, 8):
        for m in range(1, 4 * p + 1):
            try:
                wanted = torchs(torchs_class, p, m, v)
            except ValueError:
                with pytest.raises(ValueError, match=f"m = {m} micro-batches, p = {p} ranks"):
                    ours(p, m)
                continue
            got = validate(ours(p, m), m, v, placement)
            assert [[str(action) for action in actions] for actions in got] == wanted, (p, m)
            accepted += 1
    assert accepted > 20


def test_zb_v_as_drawn():
    assert grid(zb_v(2, 3)).splitlines() == [
        "rank 0 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2  .",
        "rank 1  .  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ]


def test_idle_time_and_memory_are_the_formulas():
    draw = random.Random(0)
    for p, m in ACCEPTED:
        run = simulate(zb_v(p, m))
        assert len(messages(run.schedule)) == 4 * (p - 1) * m
        assert run.peak_kept == [2 * p] * p if m >= 2 * p - 1 else max(run.peak_kept) <= 2 * p
        W, F, I = sorted(draw.randint(1, 12) for _ in range(3))
        if m >= 2 * p - 1:
            idle = simulate(zb_v(p, m), {"F": F, "I": I, "W": W}).makespan - 2 * m * (F + I + W)
            assert idle == (p - 1) * max(I, 2 * (I - W))
        if m >= 2 * p:
            F, I = I, F
            run = simulate(dualpipe_v(p, m), {"F": F, "B": I + W, "I": I, "W": W})
            assert run.makespan - 2 * m * (F + I + W) == (p - 1) * max(F + I - W, 2 * (F - W))
            assert run.peak_kept == [2 * p + 1] * p


def test_where_stages_live_is_read_off_the_lists_and_must_be_where_the_placement_says():
    assert loop(3, 6) == [0, 1, 2, 0, 1, 2] and v_shape(3, 9) == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    with pytest.raises(ScheduleError, match=r"rank 0 has 3F0, but stage 3 is on rank 1") as caught:
        validate(zb_v(2, 3), 3, 2)
    assert caught.value.kind == "wrong rank"
    validate(interleaved(1, 2, 2), 2, 2, v_shape)  # one rank: any placement is the other
    for seed in range(6):
        validate(any_valid_list(seed, 3, 3, 3, seed % 2, v_shape), 3, 3, v_shape)


def test_a_message_takes_time_between_ranks_and_none_at_the_turn_of_the_v():
    run = simulate(zb_v(2, 1), message=10)
    starts = {str(bar.action): bar.start for bar in run.bars}
    assert [starts[text] for text in ("0F0", "1F0", "2F0", "3F0", "3I0", "2I0", "1I0")] == [
        0,
        11,
        12,
        23,
        24,
        35,
        37,
    ]
    times, message = times_of(run.bars)
    assert (
        message == [10, 0, 10]
        and simulate(recorded(run.bars).schedule, times, message).bars == run.bars
    )


def test_a_whole_backward_waits_for_a_half_and_a_half_for_a_whole_one():
    parsed = lambda *rows: [[parse(text) for text in row.split()] for row in rows]
    for upper, lower in (("0B0", "1I0 1W0"), ("0I0 0W0", "1B0")):
        schedule = validate(parsed(f"0F0 {upper}", f"1F0 {lower}"), 1)
        starts = {str(bar.action): bar.start for bar in simulate(schedule).bars}
        assert starts[upper[:3]] == 2 + {"I": 1, "B": 2}[lower[1]]
    with pytest.raises(
        ScheduleError, match="rank 0 waits at 0B0 for 1I0, which rank 1 runs after 1F1"
    ):
        validate(parsed("0F0 0B0 0F1 0B1", "1F0 1F1 1I0 1W0 1B1"), 2)
    with pytest.raises(ScheduleError, match="rank 0 waits at 0I0 for 1B0, which is in no list"):
        simulate(parsed("0F0 0I0 2F0", ""))


# --- on ranks -------------------------------------------------------------------------------------

RANKS = {2: [3, 1], 4: [0, 1, 2, 3]}
RUNS = {
    (case, p, name, m): schedule
    for p in RANKS
    for name, schedule, m in (
        ("zb_v", zb_v(p, 2 * p + 1), 2 * p + 1),
        ("zb_v", zb_v(p, p - 1), p - 1),
        ("dualpipe_v", dualpipe_v(p, 2 * p), 2 * p),
        ("any list", any_valid_list(p, p, 3, 2, p == 2, v_shape), 3),
    )
    for case in ("gpt", "layers")
}


def run_each():
    """{run: (loss's relative error or None, differences, names of this rank's
    gradients, left over)}"""
    links_of, seen = {p: connect([ranks]) for p, ranks in RANKS.items()}, {}
    for run, schedule in RUNS.items():
        name, p, _, m = run
        if links_of[p] is None:
            continue
        case = CASES[name]
        module, stages = cut(case, 2 * p)
        xs, targets = split_rows(case.batch(2 * m - 1), m)
        first = links_of[p].rank == 0  # has the last stage, too
        pipeline = Pipeline(stages, links_of[p], xs if first else [None] * m, v_shape)
        ledger.mark(str(run))
        loss = pipeline.run(schedule, xs if first else None, targets if first else None, case.loss)
        ledger.mark("")
        mine = {id(q) for stage in pipeline.stages.values() for q in stage.module.parameters()}
        got = {n: q.grad for n, q in module.named_parameters() if id(q) in mine}
        want_loss, want = one_process(name, 2 * p, m)
        off = None if loss is None else (abs(loss - want_loss) / abs(want_loss)).item()
        left = sum(
            len(held) for stage in pipeline.stages.values() for held in (stage.live, stage.waiting)
        )
        seen[run] = off, differences(got, want), set(got), left
    return seen


def test_on_ranks_gradients_are_those_of_one_process_and_the_tied_weight_needs_no_message():
    results = launch.capture(run_each, backend="gloo", nproc=4, timeout=240)
    for run, schedule in RUNS.items():
        name, p, _, m = run
        everything = one_process(name, 2 * p, m)[1]
        seen = [results[rank][run] for rank in RANKS[p]]
        for place, (off, wrong, _, left) in enumerate(seen):
            assert not wrong, f"{run}, place {place}: {'; '.join(wrong[:3])}"
            assert (off is not None) == (place == 0), (
                "the V ends where it began: the loss is the first rank's"
            )
            assert off is None or off < 1e-14, run
            assert left == 0, f"{run}: something of a micro-batch is kept after its last action"
        assert set().union(*(names for _, _, names, _ in seen)) == set(everything), (
            f"{run}: all parameters"
        )
        sent = torch.zeros(4, 4, dtype=torch.int64)
        for action, to in messages(schedule):
            sent[
                RANKS[p][v_shape(p, 2 * p)[action.stage]], RANKS[p][v_shape(p, 2 * p)[to.stage]]
            ] += 1
        assert torch.equal(
            torch.from_numpy(results.ledger.section(str(run)).matrix("messages")), sent
        ), run
