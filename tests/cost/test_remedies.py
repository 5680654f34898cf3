"""What the planner says beside a ranking: how sure, GPU-hours, and what would make it fit; and with
how much work."""

import cProfile
import json
import pstats
import re
from dataclasses import replace

import pytest

from lib.cost.__main__ import main
from lib.cost.explain import hours, report
from lib.cost.hardware import gpu
from lib.cost.memory import FITS
from lib.cost.remedies import freed, impossible
from lib.cost.search import search, smallest
from lib.cost.shapes import load

A100 = gpu("A100-80GB")


@pytest.mark.parametrize(
    ("name", "device", "gpus", "batch", "seq"),
    [("gpt-1t", "A100-80GB", 3072, 3072, 2048), ("deepseek-v3", "H800", 2048, 15360, 4096)],
)
def test_large_jobs_are_planned_in_two_million_calls(name, device, gpus, batch, seq):
    """So many calls of functions take less than a second. They are counted and not timed, because a
    time would depend on what else the machine does."""
    profile = cProfile.Profile()
    text = profile.runcall(report, name, device, gpus, batch, seq)
    assert pstats.Stats(profile).total_calls < 2e6
    assert "plans fit" in text and "GPU-hours" in text and "MFU" in text


def test_ranges_and_hours_are_in_the_report():
    text = report("gpt-3-175b", "A100-80GB", 1024, 1536, show=1, tokens=300e9)
    seconds, low, high = map(
        float, re.search(r"([\d.]+) s +\(([\d.]+) - ([\d.]+)\)", text).groups()
    )
    assert low < seconds < high
    least, most = (
        float(n.replace(",", ""))
        for n in re.search(r"take ([\d,]+) to ([\d,]+) GPU-hours", text).groups()
    )
    assert (
        least == pytest.approx(low / seconds * hours(seconds, 1024, 1536 * 2048, 300e9), rel=0.01)
        and least < most
    )


def test_hours():
    assert hours(36.0, 100, 1e6, 1e9) == 1000 * 36 * 100 / 3600


def test_what_was_asked_for_is_kept_and_what_stands_in_the_way_is_named():
    model = load("gpt-3-175b")
    found = search(model, A100, 256, 1536, fixed={"tp": 4, "zero": 1})
    assert found and all(choice.plan.tp == 4 and choice.plan.zero == 1 for choice in found)
    text = impossible(model, A100, 256, 1536, fixed={"tp": 1, "pp": 4})
    assert (
        text.startswith("no plan with tp 1, pp 4 fits; these would:")
        and "tp other than 1: tp8" in text
    )
    assert "nor with one of these let go; tp" in impossible(
        model, A100, 256, 1536, fixed={"tp": 3, "pp": 7, "dp": 5}
    )
    assert len(freed(model, A100, 256, 1536, "bf16", {"tp": 1, "pp": 4})) == 2


def test_remedies_work():
    """Twice as many GPUs, more memory, a shorter sequence: each that is named fits, and half as
    much does not."""
    model, device = replace(load("llama3-405b"), seq=131072), gpu("H100-80GB")
    text = impossible(model, device, 64, 64)
    more = int(re.search(r"Use (\d+) GPUs", text)[1])
    larger = re.search(r"GPUs with more memory: ([\w, ]+)", text)[1].split(", ")
    fits = lambda n, device, model=model: (
        smallest(model, device, n, 64).memory <= FITS * device.memory
    )
    assert fits(more, device) and not fits(more // 2, device)
    assert larger and all(fits(64, gpu(name)) for name in larger)


def test_the_command_line_takes_what_is_fixed(capsys, monkeypatch):
    words = (
        "plan --model llama3-70b --gpu H100-80GB --gpus 64 --batch 128 --tp 4 --micro-batch 2 "
        "--recompute none"
    )
    monkeypatch.setattr("sys.argv", ["lib.cost", *words.split(), "--tokens", "2e12", "--show", "3"])
    main()
    out = capsys.readouterr().out
    assert all(
        "tp4" in line and "b2" in line
        for line in out.splitlines()
        if "recompute=none" in line and "GiB" in line
    )
    assert "2e+12 tokens take" in out


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"device": "A100-80GB", "precision": "fp8"}, "A100-80GB has no fp8: use bf16"),
        ({"precision": "fp4"}, "H100-80GB has no fp4: use fp8"),
        ({"seq": 0}, "0 tokens per sequence"),
        ({"seq": -5}, "-5 tokens per sequence"),
        ({"tokens": -3.0}, "both must be more than 0"),
        ({"tokens": float("nan")}, "both must be more than 0"),
        ({"show": 0}, "both must be more than 0"),
    ],
)
def test_requests_that_mean_nothing_are_refused(changed, says):
    with pytest.raises(ValueError, match=says):
        report(**{"name": "llama3-8b", "device": "H100-80GB", "gpus": 8, "batch": 64, **changed})


SMALL = {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 65536, "seq": 4096}


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({**SMALL, "colour": 3}, "colour is not known; use name, layers"),
        ({**SMALL, "layers": "24"}, "layers is '24': it should be a whole number above 0"),
        ({**SMALL, "layers": -24}, "layers is -24"),
        ({**SMALL, "heads": 0}, "hidden 2048 and heads 0"),
        ({**SMALL, "shared_ffn": 1024}, "shared_ffn is 1024, but experts is empty"),
        ({**SMALL, "experts": 8, "topk": 9, "ffn": 64}, "topk of at most experts"),
        (
            {**SMALL, "experts": 8, "topk": 2, "ffn": 64, "dense_layers": 3},
            "but dense_ffn is empty",
        ),
        ([SMALL], "should hold one model"),
        ({"layers": 24}, "lacks heads, hidden, seq, vocab"),
    ],
)
def test_a_file_that_describes_no_model_says_why(described, says, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(described))
    with pytest.raises(ValueError, match=says):
        report(str(path), "H100-80GB", 8, 64)
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load(str(path))
    path.write_text(json.dumps({**SMALL, "experts": None}))
    assert load(str(path)).experts == 0
