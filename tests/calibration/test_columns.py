"""Every column of a row: used, said in the note, or the row is refused. Nothing is
left out in silence."""

import csv
import re

import pytest

from lib.calibration import fit
from lib.calibration.metrics import TIME_METRICS
from lib.calibration.predict import predict, predict_file
from lib.calibration.rows import COLUMNS, job
from lib.cost.hardware import gpu
from lib.cost.kept import layer_bytes
from lib.cost.plan import Plan
from lib.cost.shapes import shape
from lib.cost.stacks import stacks

ROWS = fit.table_as_text("rows")
first = lambda **cells: next(
    row for row in ROWS if all(row[key] == cell for key, cell in cells.items())
)
DENSE = first(source="vtrain-multi")  # 3.6B on 64 GPUs, tp 1, pp 1, 8 sequences a micro-batch
LLAMA = first(source="torchtitan-202412", metric="peak_mem", model="llama3-8b")
# 4 layers, pp 2, ep 4
MIXTURE = {**first(source="simumax-b200", experts="256", metric="peak_mem"), "recompute": "none"}
QWEN = first(source="mbridge-26.04", model="qwen3-235b-a22b")
STATES = first(metric="model_state_mem")
BUBBLE = first(metric="bubble_rate")


@pytest.mark.parametrize(
    ("row", "changed", "says"),
    [
        (DENSE, {"dp": "3"}, r"dp is 3, but 64 GPUs / \(tp 1 x pp 1 x cp 1\) leave 64"),
        (DENSE, {"ep": "2"}, "ep 2 does not divide 0 experts"),
        (DENSE, {"vp": "2"}, "v 2 stages per rank need a pipeline"),
        (DENSE, {"micro_batch": "999"}, "is not a multiple of dp 64 x micro-batch 999"),
        (DENSE, {"micro_batch": "3"}, "is not a multiple of dp 64 x micro-batch 3"),
        (
            DENSE,
            {"global_batch": "1000"},
            "is not a multiple of dp 64 x micro-batch 8 = 512: use 512 or 1024",
        ),
        (DENSE, {"params_b": "1"}, "its columns make 3.55B parameters, and params_b says 1"),
        (DENSE, {"kv_heads": "3"}, "kv_heads 3 does not divide 32 heads"),
        (DENSE, {"kv_heads": "64"}, "kv_heads 64 does not divide 32 heads"),
        (
            DENSE,
            {"precision": "int8"},
            "precision is 'int8': it should name one of bf16, fp16, fp8, fp4",
        ),
        (DENSE, {"precision": "fp8"}, "A100-80GB has no fp8: use bf16"),
        (
            DENSE,
            {"recompute": "sometimes"},
            "recompute is 'sometimes': sometimes is not one of full, selective",
        ),
        (
            DENSE,
            {"recompute": "mlp,core_attn"},
            "recompute of the mlp alone is not modelled for a dense model",
        ),
        (DENSE, {"zero_stage": "4"}, "zero_stage is 4: there are 0, 1, 2, 3"),
        (DENSE, {"unit": "ms"}, "unit is 'ms': step_time is predicted in s"),
        (DENSE, {"shared_ffn": "1024"}, "shared_ffn is 1024, but experts is empty"),
        (DENSE, {"gated": "2"}, "gated is 2: it should be 1 or 0"),
        (DENSE, {"head_dim": "-64"}, "head_dim is -64: it should be a whole number above 0"),
        (DENSE, {"ffn": "0"}, "ffn is 0"),
        (DENSE, {"hidden": "0", "layers": ""}, "hidden is 0, not a whole number above 0"),
        (
            DENSE,
            {"layers": "1e6", "pp": "1e6", "n_gpus": "1e6", "dp": ""},
            r"layers is 1e\+06: at most 10,000",
        ),
        (
            DENSE,
            {"hidden": "1e200", "ffn": "1e200", "params_b": ""},
            r"hidden is 1e\+200: at most 1,000,000,000",
        ),
        (DENSE, {"global_batch": "1e300"}, r"global_batch is 1e\+300: at most"),
        (DENSE, {"recompute": "full,selective"}, "none and full exclude all others"),
        (
            DENSE,
            {"metric": "step time"},
            "metric 'step time' is not modelled: use one of step_time, ",
        ),
        (DENSE, {"metric": ""}, "metric '' is not modelled: use one of"),
        (DENSE, {"n_gpus": ""}, "n_gpus is empty: give GPUs"),
        (DENSE, {"experts": "0", "topk": "2"}, "experts is empty and topk 2"),
        (
            DENSE,
            {"experts": "8", "topk": "2", "layers": ""},
            "params_b does not tell the layers of a mixture",
        ),
        (LLAMA, {"params_b": "70"}, "its columns make 8.03B parameters, and params_b says 70"),
        (LLAMA, {"params_b": "eight"}, "params_b is 'eight', not a number"),
        (MIXTURE, {"params_b": "70"}, "and params_b says 70"),
        (
            MIXTURE,
            {"experts": "0", "topk": "0", "ffn": ""},
            "ffn is empty: it should be the width of the MLP",
        ),
        (MIXTURE, {"ep": "3"}, "ep 3 does not divide 256 experts"),
        (MIXTURE, {"dense_layers": "5"}, "dense_layers is 5, of 4 layers"),
        (QWEN, {"dense_ffn": "64"}, "dense_ffn is 64, but dense_layers is empty"),
        (MIXTURE, {"shared_ffn": "2048.5"}, "shared_ffn is 2048.5: it should be a whole number"),
        (STATES, {"unit": "ms"}, "unit 'ms' is not one of GB"),
        (STATES, {"zero_stage": "9"}, "zero_stage is 9"),
        (STATES, {"precision": "fp32"}, "precision is 'fp32'"),
        (STATES, {"ep": "8"}, "ep is more than 1"),
        (STATES, {"n_gpus": "64"}, "dp is 1, but 64 GPUs"),
        (BUBBLE, {"unit": "ms"}, "bubble_rate is predicted in fraction of makespan"),
        (
            BUBBLE,
            {"global_batch": "600"},
            "says m is 32, global_batch 600 and micro_batch 6 that it is 100",
        ),
        (BUBBLE, {"row": ""}, "names no schedule"),
        (
            BUBBLE,
            {"row": "1.5B-1f1b", "global_batch": "600000"},
            "100000 micro-batches: the clock takes at most 1024",
        ),
        (BUBBLE, {"row": "1.5B--m-mx"}, "names no schedule"),
    ],
)
def test_what_cannot_be_is_refused(row, changed, says):
    value, low, high, note = predict({**row, **changed})
    assert value is None and low is None and high is None
    assert re.search(says, note), note


def test_what_a_row_leaves_open_is_said():
    note = predict({**DENSE, "pp": "", "cp": "", "precision": ""}).note
    assert "assumed: gated 0, tied 1, pp 1, cp 1, precision bf16" in note
    assert "ep 1" in predict({**MIXTURE, "ep": ""}).note and "ep" not in note.split("assumed")[1]
    assert "precision fp8" in predict({**LLAMA, "precision": "BF16/FP8 (not stated)"}).note
    assert "head_dim 128, gated 1 as data/models.csv" in predict(LLAMA).note
    assert (
        "head_dim 43" in predict({**DENSE, "heads": "70", "kv_heads": "70", "hidden": "3072"}).note
    )
    assert "recompute none for norm,act" in predict({**LLAMA, "recompute": "norm,act"}).note
    assert "precision fp8 for fp8+nvfp4" in predict({**QWEN, "precision": "fp8+nvfp4"}).note
    assert "no window, as this stack keeps all scores" in predict({**DENSE, "window": "128"}).note
    assert "kv_heads without meaning" in predict({**MIXTURE, "kv_heads": "8"}).note
    assert (
        "zb-1p"
        in predict({**DENSE, "row": "x-zb-1p", "pp": "2", "dp": "", "micro_batch": "1"}).note
    )
    assert "of params_b, whatever other columns say" in predict({**STATES, "layers": "7"}).note
    few = {key: LLAMA[key] for key in ("model", "seq", "gpu", "n_gpus", "tp", "global_batch")}
    assert "assumed: stack megatron-core, layers 32" in predict({**few, "metric": "step_time"}).note
    llama = {**LLAMA, "experts": "8", "topk": "2", "params_b": "", "ffn": "14336"}
    assert "no shared expert, no dense first layers, no latent attention" in predict(llama).note
    assert predict(llama).value > predict(LLAMA).value


def test_a_stack_of_which_no_step_was_measured_is_named():
    row = {**MIXTURE, "source": "deepseek-v3-run", "metric": "step_time", "unit": "s"}
    assert "factor 1, as no step of deepseek was measured" in predict(row).note
    assert "factor 1" not in predict(DENSE).note


def test_columns_that_mean_nothing_here_are_named(tmp_path):
    assert (
        "not used: offload, comment"
        in predict({**DENSE, "offload": "1", "comment": "x", "blank": ""}).note
    )
    misspelt = {("TP" if key == "tp" else key): cell for key, cell in DENSE.items()}
    # a refusal names them, too
    assert re.search("give tp, .*; not used: TP", predict(misspelt).note)
    assert predict({**DENSE, "note": "", "low": "1", "q_rank": ""}).note == predict(DENSE).note
    assert set(ROWS[0]) <= set(COLUMNS)
    rows = tmp_path / "rows.csv"
    lines = [",".join(DENSE), ",".join(DENSE.values()) + ",1,2", ",".join(DENSE.values())]
    rows.write_text("\n".join(lines), encoding="utf-8-sig")  # as spreadsheets save it
    assert predict_file(rows, tmp_path / "out.csv") == (1, 1)
    assert "more cells than the first line names columns" in (tmp_path / "out.csv").read_text()


HEAD, LINE = ",".join(DENSE), ",".join(DENSE.values())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty: its first line must name the columns"),
        ("\n\n", "is empty"),
        (f"{HEAD};{LINE}".replace(",", ";"), "with commas between them"),
        (f"{HEAD},tp\n{LINE},8", "more than one column tp: which one counts"),
        (f'{HEAD}\n"{LINE}\n{LINE}', "look for a quote that is left open"),
        (f"{HEAD}\n{'x' * 200_000}{LINE}", "field larger than field limit"),
        (f"{HEAD}\n{LINE}".encode("utf-16"), r"is not UTF-8 \(byte 0\): save it as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content, says, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=says):
        predict_file(rows, tmp_path / "out.csv")


def test_blanks_line_ends_and_a_mark_at_the_front_do_not_count(tmp_path):
    """Spaces around names and cells, CRLF, a byte-order mark, empty columns at the right: as
    spreadsheets write."""
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    rows.write_text(
        f"{HEAD},,\r\n{LINE},,\r\n".replace(",", " , "), encoding="utf-8-sig", newline=""
    )
    assert predict_file(rows, out) == (1, 0)
    with open(out, newline="") as file:
        assert next(csv.DictReader(file))["note"] == predict(DENSE).note


@pytest.mark.parametrize("cells", [("0", "0"), ("1", "1"), ("1", ""), ("0", "")])
def test_no_expert_and_one_expert_are_a_dense_model(cells):
    row = {**DENSE, "experts": cells[0], "topk": cells[1]}
    assert predict(row)[:3] == predict(DENSE)[:3] and job(row).model.experts == 0


def test_each_metric_has_its_unit():
    for row in ROWS:
        assert TIME_METRICS.get(row["metric"], row["unit"]) == row["unit"], row["row"]


def test_states_are_divided_by_every_degree():
    ask = lambda **cells: predict({**STATES, "params_b": "8", "n_gpus": "", **cells}).value
    assert ask(dp="4", zero_stage="0") == 128 and ask(tp="2", pp="4", dp="1", zero_stage="0") == 16
    assert ask(tp="2", pp="1", dp="4", zero_stage="1") == pytest.approx(8 * (4 + 12 / 4) / 2)
    row = {**MIXTURE, "metric": "weight_grad_opt_mem"}
    held = {ep: predict({**row, "ep": ep}).value for ep in ("1", "2", "4")}
    assert held["1"] > 1.4 * held["2"] > 1.6 * held["4"]
    assert predict({**row, "zero_stage": "0"}).value > held["4"]


def test_experts_are_kept_where_scores_are_too():
    """By hand, 4 h in the norms' place 10 h; attention 8 h; scores 5 a s; two experts' copies and
    GeLU of width f."""
    h, a, s, f = 64, 4, 32, 128
    stack, plan = stacks()["megatron-2022"], Plan(1, recompute="none")
    dense = shape("dense", layers=2, hidden=h, heads=a, vocab=100, seq=s, ffn=f, gated=0)
    assert layer_bytes(dense, plan, stack) == 10 * h + 8 * h + 4 * f + 5 * a * s
    mixture = shape(
        "mixture", layers=2, hidden=h, heads=a, vocab=100, seq=s, ffn=f, gated=0, experts=8, topk=2
    )
    assert layer_bytes(mixture, plan, stack) == 10 * h + 8 * h + 2 * (4 * h + 4 * f) + 5 * a * s
    grouped = shape(
        "grouped", layers=2, hidden=h, heads=a, kv_heads=1, vocab=100, seq=s, ffn=f, gated=1
    )
    assert layer_bytes(grouped, plan, stack) == 10 * h + (4 * h + 4 * h / a) + 6 * f + 5 * a * s


def test_a_gpu_without_a_format_says_so():
    lacks = {
        name: [kind for kind in ("bf16", "fp8", "fp4") if gpu(name).lacks(kind)]
        for name in ("A100", "H100", "B200")
    }
    assert lacks == {"A100": ["fp8", "fp4"], "H100": ["fp4"], "B200": []}


def test_interleaved_stages_count_embedding_and_head_as_a_layer_each():
    """22 layers in 24 stages, as Qi et al. 2024 ran them."""
    model = shape("1.5B", layers=22, hidden=2304, heads=24, vocab=50000, seq=1024)
    assert Plan(48, pp=8, v=3, micro_batch=6).problem(model) is None
    assert "32 stages, but there are 22 layers" in Plan(48, pp=8, v=4, micro_batch=6).problem(model)
