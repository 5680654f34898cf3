"""Prediction of rows: every metric comes back in its own unit, and no row stops the run."""

import csv
import random

import pytest

from lib.calibration import fit
from lib.calibration.metrics import TIME_METRICS, from_seconds, to_seconds
from lib.calibration.predict import predict, predict_file
from lib.calibration.rows import Unpredictable, job, number

ROWS = fit.table_as_text("rows")
NOT_PREDICTED = {  # and why
    "mcore-h100-strong": "the plan is not known",
    "moezoo-h100-bf16": "hidden and heads empty",
    "nemo-longseq": "without context parallelism|dp is 4, but 1024 GPUs",
}


def test_nearly_every_published_row_is_predicted_and_the_rest_says_why():
    left = [(row, predict(row).note) for row in ROWS if predict(row)[0] is None]
    assert len(left) <= 12
    for row, note in left:
        assert any(reason in note for reason in NOT_PREDICTED[row["source"]].split("|")), (
            row["row"],
            note,
        )


def test_metrics_of_one_row_are_one_step_time():
    """Seconds, tokens/s, TFLOP/s, MFU and days of a source that prints several: the same
    step, to its rounding."""
    checked = 0
    first = {}
    for row in ROWS:
        if row["metric"] not in TIME_METRICS or row["source"].startswith(
            ("bigscience", "bloom", "llmfoundry-h100-80gb-fp8")
        ):
            continue  # BigScience counts its operations otherwise, by 7 to 12 %
        try:
            task = job(row)
        except Unpredictable:
            continue
        seconds = to_seconds(row["metric"], row["source"], task, float(row["value"]))
        same = first.setdefault((row["source"], row["row"]), (row["metric"], seconds))
        if same[0] != row["metric"] and not row["source"].startswith(("mbridge", "moezoo")):
            assert seconds == pytest.approx(same[1], rel=0.075), (
                row["source"],
                row["row"],
                row["metric"],
                same[0],
            )
            checked += 1
    assert checked > 150


def test_there_and_back():
    for metric in TIME_METRICS:
        task = job(next(row for row in ROWS if row["source"] == "korthikanti2022-t5"))
        assert to_seconds(
            metric, "x", task, from_seconds(metric, "x", task, 12.5)
        ) == pytest.approx(12.5)


def test_a_file_comes_back_with_four_columns_more(tmp_path):
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    chosen = [
        row
        for row in ROWS
        if row["source"] in ("korthikanti2022-t5", "nemo-longseq", "zerobubble-t4")
    ]
    with open(rows, "w", newline="") as file:
        writer = csv.DictWriter(file, ROWS[0].keys())
        writer.writeheader()
        writer.writerows({**row, "value": ""} for row in chosen)  # values are not read
    done, left = predict_file(rows, out)
    with open(out, newline="") as file:
        back = list(csv.DictReader(file))
    assert list(back[0]) == [*ROWS[0], "predicted", "low", "high", "note"]
    assert done + left == len(back) == len(chosen) and left > 0
    for row, asked in zip(back, chosen, strict=True):
        assert not row["predicted"] or float(row["low"]) <= float(row["predicted"]) <= float(
            row["high"]
        )
        assert bool(row["predicted"]) == (predict(asked)[0] is not None) and row["note"]
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="is empty: its first line must name the columns"):
        predict_file(tmp_path / "empty.csv", out)


def test_damaged_rows_get_a_reason_and_never_a_crash():
    draw = random.Random(0)
    junk = ["", "x", "-1", "0", "nan", "1e400", "3.5", "1000000", None]
    for row in draw.sample(ROWS, 150):
        for column in draw.sample(sorted(set(row) - {"value"}), 6):
            value, low, high, note = predict({**row, column: draw.choice(junk)})
            assert isinstance(note, str) and note
            assert (value is None and low is None) or 0 <= low <= value <= high
        short = {key: row[key] for key in draw.sample(sorted(row), 20)}
        assert isinstance(predict(short).note, str)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"gpu": "TPUv4"}, "no GPU 'TPUv4'"),
        ({"seq": ""}, "seq is empty"),
        ({"tp": "7"}, "tp 7 x pp 1 x cp 1 does not divide 8 GPUs"),
        ({"global_batch": "many"}, "global_batch is 'many', not a number"),
        ({"metric": "loss"}, "metric 'loss' is not modelled"),
        ({"hidden": "", "model": "new"}, "model 'new': hidden empty"),
    ],
)
def test_reasons_name_the_column(changed, says):
    row = next(
        row for row in ROWS if row["source"] == "korthikanti2022-t5" and row["n_gpus"] == "8"
    )
    value, *_, note = predict({**row, **changed})
    assert value is None and says in note


def test_numbers_in_cells():
    assert (
        number({"a": " 8.0 "}, "a") == 8
        and number({"a": ""}, "a", 3) == 3
        and number({}, "a") is None
    )
    with pytest.raises(Unpredictable):
        number({"a": "inf"}, "a")
