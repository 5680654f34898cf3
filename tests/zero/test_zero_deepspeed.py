"""DeepSpeed's ZeRO, torch's FSDP2 and ours train the same model: equal losses, and bytes and volume
that add up.

Where DeepSpeed is not installed its own run is skipped; what is stored of it is compared with ours,
run now, anyhow. That is slow: in `make test` Lab 4's notebook does it.
"""

import re

import pytest

from lib.cost.zero import rank_state, sent_elements
from lib.demo import beside
from lib.demo.beside import rows as beside_rows
from lib.demo.beside.deepspeed_zero import keeps
from lib.demo.beside.job import SHAPE, STEPS
from lib.demo.beside.rows import MICROBATCHES, OURS, REDUCE, THEIRS, WORLDS
from lib.demo.beside.table import root_elements
from lib.training.model import GPT

CLOSE = 1e-6
PSI = GPT(SHAPE).num_parameters()


def find(rows, **wanted):
    """The rows whose fields are these."""
    return [
        row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())
    ]


def apart(row, other):
    """The largest distance between two rows' losses."""
    assert len(row.losses) == len(other.losses) == STEPS
    return max(abs(a - b) for a, b in zip(row.losses, other.losses, strict=True))


@pytest.fixture(scope="module")
def record():
    return beside.stored()


@pytest.fixture(scope="module")
def now():
    """{N: ours and torch's, run now}."""
    return {N: beside.our_rows(N) for N in WORLDS}


@pytest.fixture(scope="module")
def live():
    """{N: DeepSpeed's rows, run now}, where it is installed."""
    if not beside.installed():
        pytest.skip(
            "DeepSpeed is not installed (make setup EXTRAS=deepspeed): only what is stored of it "
            "is tested"
        )
    return {N: beside.deepspeed_rows(N) for N in WORLDS}


# --- what is stored -------------------------------------------------------------------------------


def test_every_run_is_stored_once_with_its_versions_and_no_place(record):
    runs = {
        (who, stage, N, k) for who, stage in OURS + THEIRS for N in WORLDS for k in MICROBATCHES
    }
    found = [(row.who, row.stage, row.N, row.k) for row in record["rows"][1:]]
    assert set(found) == runs and len(found) == len(runs) and record["rows"][0].who == "one process"
    assert record["deepspeed"] == "0.19.8" and re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert re.fullmatch(r"2\.1[1-3]\.\d", record["torch"]) and record["python"].startswith("3.")
    assert not re.search(r"/(home|root|tmp|work|usr)|://", beside_rows.FILE.read_text())
    for row in record["rows"][1:]:
        assert 0 < row.after_step <= row.after_backward and row.sent > 0 and row.given


def test_stored_losses_are_one_process_s_and_training_moves_them(record):
    alone, *rows = record["rows"]
    assert alone.losses[0] - alone.losses[-1] > 0.1
    for row in rows:
        assert apart(row, alone) < CLOSE, row


@pytest.mark.slow
def test_ours_run_now_still_give_what_is_stored_of_deepspeed(record, now):
    for N in WORLDS:
        for row in now[N][1:]:
            theirs = [r for r in find(record["rows"], N=N, k=row.k) if r.who in dict(THEIRS)]
            assert len(theirs) == len(THEIRS)
            assert max(apart(row, r) for r in theirs) < CLOSE, row


# --- bytes and volume -----------------------------------------------------------------------------


@pytest.mark.slow
def test_ours_keep_the_formula_s_bytes_and_send_its_elements(now):
    for N in WORLDS:
        for row in find(now[N], who="ours"):
            state = rank_state(PSI, row.stage, N, "fp32")
            # averaged: stage 1 keeps its shard too
            shard = state.gradient / N if row.stage == 1 else state.gradient
            assert row.after_backward == pytest.approx(
                state.total - state.gradient + shard, rel=0.01
            ), row
            assert row.after_step == pytest.approx(state.total - state.gradient, rel=0.01), row
            root = root_elements() if row.stage == 3 else 0
            assert row.sent == pytest.approx(
                sent_elements(PSI, row.stage, N, row.k, root), rel=0.001
            ), row
            assert set(row.given) == {"send"}


def check_deepspeed(row):
    """Bytes by its own table, elements by what it calls."""
    after_backward, after_step = keeps(PSI, row.stage, row.N)
    assert row.after_step == pytest.approx(after_step, rel=0.01), row
    # a cut parameter's gradient is whole
    assert row.after_backward == pytest.approx(after_backward, rel=0.05), row
    k, unit = row.k, (row.N - 1) / row.N * PSI
    if row.stage == 3:
        # what is still there is not gathered again
        assert 2.5 * k * unit < row.sent < 3 * k * unit, row
    else:
        passes = {1: 2, 2: k + 1} if row.who == REDUCE else {0: 2, 1: 2 + 1, 2: 2 * k + 1}
        assert row.sent == pytest.approx(passes[row.stage] * unit, rel=0.001), row


def test_stored_rows_of_deepspeed_add_up(record):
    for row in record["rows"]:
        if row.who in dict(THEIRS):
            check_deepspeed(row)


# --- live, and how it is shown --------------------------------------------------------------------


@pytest.mark.slow
def test_deepspeed_here_gives_ours_losses_and_the_stored_bytes_and_elements(record, now, live):
    for N in WORLDS:
        assert [(row.who, row.stage) for row in find(live[N], k=1)] == THEIRS
        for row in live[N]:
            assert max(apart(row, ours) for ours in now[N][1:]) < CLOSE, row
            check_deepspeed(row)
            (as_stored,) = find(record["rows"], who=row.who, stage=row.stage, N=N, k=row.k)
            assert row.given == pytest.approx(as_stored.given), row
            assert row.after_step == pytest.approx(as_stored.after_step, rel=0.001), row


@pytest.mark.slow
def test_without_deepspeed_the_stored_rows_are_shown_and_said_to_be(
    record, now, monkeypatch, capsys
):
    monkeypatch.setattr(beside_rows, "installed", lambda: False)
    monkeypatch.setattr(beside_rows, "our_rows", lambda N, complete: now[N])
    rows = beside.results(4)
    said = capsys.readouterr().out
    assert (
        said.count("\n") == 2
        and "not installed" in said
        and "stored" in said
        and record["date"] in said
    )
    theirs = rows[len(now[4]) :]
    assert theirs == [row for row in record["rows"] if row.N == 4 and row.who in dict(THEIRS)]
    with pytest.raises(ValueError, match="nothing is stored for 3 ranks: use 2 or 4"):
        beside.results(3)


def test_the_table_has_a_line_for_each_side_and_the_formula(record):
    alone, *rows = record["rows"]
    lines = beside.table([alone, *find(rows, N=4)])
    assert len(lines) == 3 + 4 + len(OURS) + len(THEIRS)
    assert all(len(line) <= 120 for line in lines)
    for row in find(rows, N=4, k=1):
        numbers = [
            f"{row.losses[-1]:.6f}",
            f"{row.after_backward / PSI:.2f}",
            f"{row.after_step / PSI:.2f}",
        ]
        assert any(
            row.who in line and all(number in line for number in numbers) for line in lines
        ), row
