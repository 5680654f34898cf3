"""The vocabulary of checks: numbers that explain themselves, collectives that note and never hang,
answers that end."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import mistakes
import pytest
import torch
import torch.distributed as dist

import lib.check
from lib import launch
from lib.check import causes, explain, fingerprints, framework
from lib.check.cases import Case, draw, own, owner, part, total
from lib.check.comm import Clash, Recorder
from lib.check.exercise import ADVERSARIAL, Claim, Exercise, Problem
from lib.check.exercises import EXERCISES, FUNCTIONS, MODULES
from lib.check.explain import fraction, narrowed, read_sum, shares, times, two
from lib.check.framework import evaluate, stand_in
from lib.check.guard import guarded
from lib.check.wire import Wire

MOVED = [(part, module) for module in MODULES for part in module.EXERCISE.parts]


# explain


@pytest.mark.parametrize(
    ("want", "got", "shown"),
    [
        (33.908412345, 33.908412999, ("33.9084123", "33.908413")),
        (0.4, 0.4 + 1e-16, ("0.4", "0.40000000000000013")),
        (425.0, 405.0, ("425.0", "405.0")),
        (3, 4, ("3", "4")),
    ],
)
def test_numbers_are_shown_with_as_many_digits_as_they_differ_in(want, got, shown):
    assert two(want, got) == shown


def test_a_ratio_near_one_is_not_shown_as_one():
    assert times(2520.0, 2520.015625) == "0.9999938 x expected"
    assert times(3060.0, 6120.0) == "0.5 x expected"


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_narrower_type_on_the_way_is_seen(dtype):
    case, want = Case((0, 1, 2, 3), 8, dtype), total(4, 8, dtype)
    through = want.float().to(dtype)
    assert not torch.equal(through, want) and narrowed(through, want)
    text, facts = read_sum(case, 2, through)
    assert facts["narrowed"] and f"narrower than {str(dtype)[6:]}" in text


def test_a_rank_that_is_missing_is_seen_in_every_dtype():
    for dtype in (torch.float32, torch.float64, torch.int64):
        for rank in range(8):
            _, facts = read_sum(
                Case(tuple(range(8)), 16, dtype), 0, total(8, 16, dtype) - part(rank, 16, dtype)
            )
            assert facts["absent"] == [rank] and not facts["narrowed"]


def test_whose_a_value_is():
    assert [owner(value, 4) for value in own(2, 3, torch.int64)] == [2, 2, 2]
    assert owner(torch.tensor(7.5), 4) is None


def test_shares_of_a_sum():
    parts = [draw(rank, 5) for rank in range(3)]
    assert {r: fraction(c) for r, c in shares(parts[0] / 2 + parts[2], parts).items()} == {
        0: "1/2",
        2: "1",
    }
    assert shares(torch.tensor([1.0, 7.0, 2.0, 9.0, 4.0]).double(), parts) is None
    assert explain.who([0, 1, 3]) == "ranks 0, 1 and 3"


# comm


def recorded(fn):
    """fn(recorder, group of ranks 1 and 2) on three ranks: [(what it returned, or the Clash's
    facts; calls; stray)]."""

    def on_rank():
        pair, recorder = dist.new_group([1, 2]), Recorder(Wire(range(3), ""))
        try:
            got = fn(recorder, pair)
        except Clash as clash:
            got = clash.problem.facts
        recorder.end()
        return got, [call.op for call in recorder.calls], recorder.stray

    return launch.capture(on_rank, nproc=3, backend="gloo", timeout=60)


def test_the_recorder_does_as_lib_does():
    def all_of_them(recorder, pair):
        rank = dist.get_rank()
        x = torch.arange(6, dtype=torch.float64) + 10 * rank
        summed = recorder.all_reduce(x.clone())
        chunk = recorder.reduce_scatter(x)
        whole = recorder.all_gather(chunk)
        sent = recorder.broadcast(x.clone(), 1)
        counts = [[0, 1, 2], [1, 0, 2], [0, 0, 3]]
        rows = torch.full((sum(counts[rank]), 2), float(rank))
        blocks = recorder.all_to_all(rows, None, counts[rank], [counts[i][rank] for i in range(3)])
        empty = recorder.all_reduce(torch.zeros(0))
        # rank 0 is over before
        pairs = recorder.all_reduce(x.clone(), pair)[0].item() if rank > 0 else None
        return summed, whole, sent, blocks[:, 0].tolist(), len(empty), pairs

    results = recorded(all_of_them)
    want = torch.arange(6).double() * 3 + 30
    for rank, ((summed, whole, sent, blocks, empty, pairs), calls, stray) in enumerate(results):
        assert torch.equal(summed, want) and torch.equal(whole, want)
        assert torch.equal(sent, torch.arange(6).double() + 10)
        assert (empty, pairs, stray) == (0, None if rank == 0 else 30.0, None)
        assert blocks == [[1.0], [0.0], [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0]][rank]
        assert calls == [
            "all_reduce",
            "reduce_scatter",
            "all_gather",
            "broadcast",
            "all_to_all",
            "all_reduce",
        ] + ["all_reduce"] * (rank > 0)


@pytest.mark.parametrize(
    ("call", "over"),
    [
        (lambda recorder, rank: recorder.all_reduce(torch.zeros(3)) if rank else None, [0]),
        (lambda recorder, rank: recorder.all_reduce(torch.zeros(3 + rank)), []),
        (
            lambda recorder, rank: recorder.all_reduce(
                torch.zeros(3, dtype=[torch.float32, torch.float64][rank % 2])
            ),
            [],
        ),
        (
            lambda recorder, rank: (
                recorder.all_reduce(torch.zeros(3)) if rank else recorder.all_gather(torch.zeros(3))
            ),
            [],
        ),
    ],
)
def test_calls_that_do_not_fit_clash_and_do_not_hang(call, over):
    results = recorded(lambda recorder, pair: call(recorder, dist.get_rank()))
    facts = [got for got, _, _ in results if got is not None]
    assert facts and all(one["over"] == over for one in facts)


def test_a_clash_in_the_background_is_noted_and_the_call_goes_on():
    def without_rank_0(recorder, pair):
        recorder.raises = False
        return recorder.reduce_scatter(torch.ones(3)).item() if dist.get_rank() else None

    assert [got for got, _, _ in recorded(without_rank_0)] == [None, 3.0, 3.0]


def test_a_call_for_another_group_is_noted_and_does_not_hang():
    def strays(recorder, pair):
        recorder.allowed = [(0, 1, 2)]
        return recorder.all_reduce(torch.ones(1), pair if dist.get_rank() else None).item()

    assert [(got, stray) for got, _, stray in recorded(strays)] == [
        (3.0, None), (3.0, ("all_reduce", (1, 2))), (3.0, ("all_reduce", (1, 2))),
    ]  # fmt: skip


# guard, framework


def plain(measure=lambda fn: fn()):
    right = Claim(
        "it is one",
        1,
        "",
        lambda runs: None if runs[0].results == [1] else Problem("value", "not 1"),
    )
    hints = causes.FIRST + causes.GENERIC
    return Exercise("one", measure, (), (right,), hints, reference=lambda: 1, leaves_out={})


def never_returns():
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def test_an_answer_that_never_returns_is_ended_though_it_catches_everything():
    with guarded(cpus=0.2, seconds=0.3) as run:
        never_returns()
    assert run.problem.kind == "endless" and "test_vocabulary.py" in run.problem.text


@pytest.mark.parametrize(
    ("answer", "kind"), [(lambda: sys.exit(3), "exited"), (lambda: 1 / 0, "raised")]
)
def test_an_answer_that_exits_or_raises_is_judged(answer, kind):
    outcome = evaluate(plain(), answer)
    assert (outcome.points, outcome.problem.kind) == (0, kind)


def interrupts():
    raise KeyboardInterrupt


def test_an_answer_that_interrupts_is_judged():
    assert evaluate(plain(), interrupts).hint == "exits"


def test_an_error_of_the_checks_own_is_not_shown_as_the_students():
    outcome = evaluate(plain(lib.check.products.multiply_adds), None)
    assert outcome.problem.kind == "unreadable" and "no line of yours failed" in "\n".join(
        outcome.lines
    )


def prints_and_is_wrong():
    print("h is", 3)
    return 3


def test_what_a_check_makes_before_an_answer_is_no_time_of_the_answers(monkeypatch):
    monkeypatch.setattr(framework, "guarded", lambda: guarded(cpus=0.3, seconds=0.3))
    late = replace(plain(), before=lambda: time.sleep(0.5))
    assert evaluate(late, lambda: 1).passed
    late = replace(plain(), before=lambda: print("4 ranks"))
    assert "It printed" not in "\n".join(evaluate(late, lambda: 2).lines)


def test_what_an_answer_prints_is_shown_where_a_claim_fails(capsys):
    assert "        h is 3" in evaluate(plain(), prints_and_is_wrong).lines
    assert capsys.readouterr().out == ""


def test_libs_function_runs_with_one_line_a_cell(capsys, monkeypatch):
    kernel = type("Kernel", (), {"execution_count": 7})()
    monkeypatch.setitem(
        sys.modules, "IPython", type("IPython", (), {"get_ipython": lambda: kernel})
    )
    for _ in range(3):
        stand_in(plain(), lambda: 2)
    assert capsys.readouterr().out.count("running lib's one") == 1
    kernel.execution_count = 8
    stand_in(plain(), lambda: 2)
    assert "running lib's one" in capsys.readouterr().out


def uses_what_has_not_passed(*given, **named):
    from lib import check

    for name in ("ring_all_reduce", "broadcast", "ring_all_reduce"):
        check.use(type(name, (), {}))
    print("h is", 3)


def test_a_verdict_says_once_that_libs_function_runs_however_often_it_was_called():
    for exercise in (plain(), FUNCTIONS["ring_all_gather"]):  # here, and on ranks
        shown = "\n".join(evaluate(exercise, uses_what_has_not_passed).lines)
        assert shown.count("running lib's ring_all_reduce") == 1, shown
        assert shown.count("running lib's broadcast") == 1, shown
        assert "h is 3" in shown


# exercises


def test_no_file_of_the_vocabulary_hides_a_check():
    assert not {path.stem for path in Path(lib.check.__file__).parent.glob("*.py")} & set(EXERCISES)


def test_what_is_left_out_has_a_reason():
    for exercise, _ in MOVED:
        assert set(exercise.leaves_out) < set(ADVERSARIAL) or not exercise.worlds
        assert all(len(why) > 5 for why in exercise.leaves_out.values())


def test_what_another_processor_leaves_of_zero_is_no_part_of_a_fingerprint():
    claim = FUNCTIONS["broadcast"].claims[0]
    seen = [
        fingerprints.of(claim, Problem("value", "", {}, [0.5, left]))
        for left in (-5.9e-17, 1.2e-17, 0.0, 1e-3)
    ]
    assert len(set(seen[:3])) == 1 and seen[3] != seen[0]


def test_fingerprints_are_made_of_todays_sources():
    assert mistakes.stale(MOVED) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [e.name for e, module in MOVED if mistakes.mistakes_of(e, module)])
def test_fingerprints_made_anew_are_those_that_ship(name):
    module = next(module for e, module in MOVED if e.name == name)
    assert mistakes.table_of(FUNCTIONS[name], module) == fingerprints.table(FUNCTIONS[name])
