"""What a student predicts is read in the units that students use, and never gets in the way."""

import numpy as np
import pytest

from lib.measuring import predictions
from lib.measuring.predictions import read, show_prediction


def line(capsys, *args, **found):
    show_prediction(*args, **found)
    return capsys.readouterr().out


@pytest.mark.parametrize("nothing", [None, "", "  ", ...])
def test_where_nothing_was_typed_nothing_is_shown_of_it(capsys, nothing):
    told = line(capsys, "rank 0 sends", nothing, "kB", formula=24, measured=24.1)
    assert told == "rank 0 sends: formula 24 kB, measured 24.1 kB\n"


@pytest.mark.parametrize("zero", [0, "0", "0 kB", 0.0])
def test_zero_is_a_prediction(capsys, zero):
    assert line(capsys, "rank 0 sends", zero, "kB", formula=24).startswith(
        "rank 0 sends: you 0 kB, formula 24 kB"
    )


@pytest.mark.parametrize(
    ("typed", "unit", "number"),
    [
        (24, "kB", 24), ("24", "kB", 24), ("24 kB", "kB", 24), ("24KB", "kB", 24),
        ("24,000 bytes", "kB", 24), ("24_000 B", "kB", 24), ("0.024 MB", "kB", 24),
        ("1 KiB", "kB", 1.024), ("about 24 kB", "kB", 24), ("~24", "kB", 24), ("2.4e1", "kB", 24),
        ("2 ms", "s", 0.002), ("2 ms", "µs", 2000), ("5 us", "µs", 5), ("1.5 s.", "ms", 1500),
        ("30 %", "%", 30), ("30%", "%", 30), ("3/4", "", 0.75), ("75 %", "", 0.75),
        ("1/3", "%", 100 / 3), ("1/3", "kB", 1 / 3), ("4 times", "", 4),
        ("2.4k", "tokens", 2400), ("2.4k tokens", "tokens", 2400), ("12 messages", "messages", 12),
        ("1,200", "messages", 1200), ("7B", "parameters", 7e9), ("2 days", "h", 48), ("-3", "", -3),
    ],
)  # fmt: skip
def test_units_that_a_student_would_type_are_read(typed, unit, number):
    assert read(typed, unit) == pytest.approx(number)


@pytest.mark.parametrize("typed", ["1/0", " 1.2.3", "..3", "many", "1e999"])
def test_what_is_no_number_is_returned_as_it_was_typed(typed):
    assert read(typed, "kB") == typed.strip()


@pytest.mark.parametrize(
    ("typed", "unit"),
    [
        ("as many", "kB"),
        ("24 ms", "kB"),
        ("half", "%"),
        ("24 apples", "kB"),
        ("k", "tokens"),
        ("2 k m", ""),
    ],
)
def test_what_cannot_be_read_is_shown_as_it_was_typed(capsys, typed, unit):
    assert line(capsys, "it", typed, unit, formula=24).startswith(f"it: you {typed}, formula 24")


def test_a_share_has_no_space_before_its_sign_and_names_are_words(capsys):
    told = line(capsys, "hidden", "1/3", "%", by_the_formula=33.3, measured=30.04)
    assert told == "hidden: you 33.3%, by the formula 33.3%, measured 30%\n"


def test_pairs_numpy_and_large_numbers_are_written_so_that_they_can_be_read(capsys):
    told = line(capsys, "links", (24, 36.0), "kB", counted=np.float32(1234567.0))
    assert told == "links: you 24 kB and 36 kB, counted 1,234,567 kB\n"
    assert line(capsys, "loss", None, "", found=0.0001234) == "loss: found 0.000123\n"
    assert line(capsys, "wall", None, "s", found=float("inf")) == "wall: found inf s\n"


@pytest.mark.parametrize(
    ("typed", "unit", "right", "said"),
    [
        (24_000, "kB", 24, "too much by a factor of 1,000: did you mean bytes?"),
        (25_000, "KiB", 24, "too much by a factor of 1,024: did you mean bytes?"),
        (0.02, "ms", 19, "too little by a factor of 1,000: did you mean s?"),
        (21e6, "ms", 19, "too much by a factor of 1,000,000: did you mean ns?"),
        (0.019, "s", 19, "too little by a factor of 1,000"),
    ],
)
def test_a_number_in_another_unit_is_recognised(capsys, typed, unit, right, said):
    assert f"({said})" in line(capsys, "a run", typed, unit, measured=right)


@pytest.mark.parametrize(
    ("typed", "unit", "right"),
    [(24, "kB", 24), (240, "kB", 24), (24_000, "messages", 24), (0.24, "%", 24), ("dp", "", "tp")],
)
def test_what_is_only_wrong_gets_no_advice_on_units(capsys, typed, unit, right):
    assert "(" not in line(capsys, "a run", typed, unit, measured=right)


def test_the_good_ones_are_counted(capsys, monkeypatch):
    monkeypatch.setattr(predictions, "_good", {})
    assert predictions.in_words() == ""
    show_prediction("a", None, "kB", formula=24)
    show_prediction("b", "dp", found="tp")
    assert predictions.in_words() == ""
    show_prediction("c", 20, "kB", formula=24)
    assert predictions.in_words() == "Your one prediction was within 20 %."
    show_prediction("d", 10, "kB", formula=24, measured=11)
    show_prediction("e", 10, "kB", formula=24)
    show_prediction("f", 24_000, "kB", formula=24)
    assert predictions.in_words() == "3 of your 4 predictions were within 20 %."
    show_prediction("c", 2, "kB", formula=24)  # typed anew: the last one counts
    assert predictions.in_words() == "2 of your 4 predictions were within 20 %."
