"""Rows of models that the tables do not know: used as they say, completed aloud, or refused."""

import pytest

from lib.calibration import fit
from lib.calibration.described import EXTRAS, Unpredictable, model_of
from lib.calibration.predict import predict
from lib.calibration.rows import assumed, job
from lib.cost.memory import peak_bytes
from lib.cost.shapes import known, load

SIMUMAX = next(
    r for r in fit.table_as_text("rows") if r["source"] == "simumax-b200" and "deepseek" in r["row"]
)
MIXTURE = {
    **SIMUMAX, "model": "house-moe", "row": "house", "layers": "24", "hidden": "2048",
    "heads": "16", "kv_heads": "4",
    "ffn": "1024", "vocab": "65536", "experts": "64", "topk": "4", "metric": "peak_mem",
    "unit": "GiB",
}  # fmt: skip


def test_an_unknown_mixture_is_what_its_columns_say():
    model = model_of(MIXTURE)
    assert (model.experts, model.topk, model.ffn, model.gated) == (64, 4, 1024, True)
    assert (
        model.parameters
        == 24 * (model.attention_parameters + 64 * 3 * 2048 * 1024 + 2048 * 64) + 2 * 65536 * 2048
    )
    value, low, high, note = predict(MIXTURE)
    assert low < value < high
    assert (
        "assumed: gated 1, tied 0, no shared expert, no dense first layers, no latent attention"
        in note
    )
    assert "house-moe" not in known()


def test_more_columns_are_used_too():
    more = {
        "shared_ffn": "2048",
        "dense_layers": "1",
        "dense_ffn": "8192",
        "head_dim": "96",
        "tied": "1",
    }
    model = model_of({**MIXTURE, **more})
    assert all(getattr(model, key) == float(value) for key, value in more.items())
    assert set(more) < set(EXTRAS)
    assert "no shared expert" not in predict({**MIXTURE, **more}).note
    assert predict({**MIXTURE, **more}).value > predict(MIXTURE).value


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"topk": ""}, "experts is 64 and topk empty: a mixture needs both"),
        ({"experts": ""}, "experts is empty and topk 4"),
        ({"topk": "65"}, "topk of at most experts"),
        ({**SIMUMAX, "topk": "300"}, "experts is 256 and topk 300"),
        ({"ffn": ""}, "ffn is empty: it should be the width of one of the 64 experts"),
        (
            {"params_b": "40"},
            r"its columns make 10.2B parameters, and params_b says 40: something is left out",
        ),
    ],
)
def test_a_mixture_that_is_not_described_is_refused(changed, says):
    value, *_, note = predict({**MIXTURE, **changed})
    assert value is None and says in note
    with pytest.raises(Unpredictable):
        job({**MIXTURE, **changed})


def test_a_known_name_with_another_width_is_another_model():
    """Not DeepSeek-V3 with its width exchanged: its shared expert and latent
    attention are not put in."""
    row = {
        **SIMUMAX,
        "model": "deepseek-v3-mini",
        "hidden": "2048",
        "heads": "16",
        "kv_heads": "16",
        "layers": "4",
    }
    assert model_of(row).kv_rank == model_of(row).shared_ffn == 0
    assert "no latent attention" in ", ".join(assumed(row, job(row)))
    same = model_of(SIMUMAX)
    assert same.kv_rank == 512 and same.layers == 4 and same.dense_layers == 1
    assert "4 of 61 layers" in ", ".join(assumed(SIMUMAX, job(SIMUMAX)))


def test_the_longest_name_wins():
    bare = dict.fromkeys(("hidden", "heads", "kv_heads", "experts", "topk"), "")
    name = lambda model: model_of({**SIMUMAX, **bare, "model": model}).experts
    assert (name("deepseek-v2-x"), name("deepseek-v2-lite-x"), name("DeepSeek-V2")) == (
        160,
        64,
        160,
    )


def test_a_complete_row_assumes_nothing():
    row = next(r for r in fit.table_as_text("rows") if r["source"] == "megatron2021-t1")
    assert assumed(row, job(row)) == ["gated 0", "tied 1"]  # an MLP of 4 h is GeLU's
    row = {**row, "gated": "0", "tied": "1"}
    assert assumed(row, job(row)) == [] and "assumed" not in predict(row).note
    row = {**row, "vocab": "", "micro_batch": "", "zero_stage": "", "recompute": ""}
    assert assumed(row, job(row)) == ["vocab 51200", "micro-batch 16", "zero 0", "recompute full"]


# Rows that are not in the data, and no number was set on: SimuMax
# docs/b200/b200_release_v1.2_summary.md (DeepSeek-V2 with 4 layers on 8 B200), torchtitan
# benchmarks/llama3_h100_202412_torchtitan.md, tables 2, 5. tp, pp, ep or cp; GiB
DEEPSEEK_V2 = [(1, 1, 8, 45.63), (1, 2, 4, 44.70)]
LONG = [(1, 83.9), (2, 84.2), (4, 84.0), (8, 84.5)]


@pytest.mark.parametrize(("tp", "pp", "ep", "gib"), DEEPSEEK_V2)
def test_deepseek_v2_s_peak(tp, pp, ep, gib):
    row = {
        **SIMUMAX, "model": "deepseek-v2-4l", "layers": "4", "hidden": "5120", "heads": "128",
        "kv_heads": "128",
        "ffn": "1536", "vocab": "102400", "experts": "160", "topk": "6", "tp": tp, "pp": pp,
        "ep": ep, "dp": 8 // pp,
        "global_batch": 4 * 8 // pp, "metric": "peak_mem", "unit": "GiB",
    }  # fmt: skip
    assert predict(row).value == pytest.approx(gib, rel=0.05)


@pytest.mark.parametrize(("cp", "gib"), LONG)
def test_long_sequences_in_fp8_with_full_recomputation(cp, gib):
    """Llama 3 8B on 8 H100, 32,768 tokens on each: logits, and their gradients, are
    half of the memory."""
    row = next(
        r
        for r in fit.table_as_text("rows")
        if r["row"] == "t1-compile-fp8" and r["metric"] == "peak_mem"
    )
    row = {
        **row, "row": f"long-{cp}", "cp": cp, "dp": 8 // cp, "seq": 32768 * cp, "micro_batch": 1,
        "global_batch": 8 // cp, "recompute": "full",
    }  # fmt: skip
    assert predict(row).value == pytest.approx(gib, rel=0.02)


def test_stages_of_405b():
    """512 H100, tp 8, pp 8, FSDP 8, local batch 32: torchtitan cuts it into 8 micro-batches of 4.
    82.5 GiB, 100 tokens per second and GPU."""
    row = next(
        r
        for r in fit.table_as_text("rows")
        if r["row"] == "t5-interleaved" and r["metric"] == "peak_mem"
    )
    row = {**row, "row": "t5-1f1b"}
    task = job(row)
    assert (task.plan.micro_batch, task.plan.micro_batches, task.plan.v) == (4, 8, 1)
    assert peak_bytes(task.model, task.plan, task.stack) / 2**30 == pytest.approx(82.5, rel=0.06)
    speed = predict({**row, "metric": "tokens_per_s_per_gpu", "unit": "tok/s/GPU"})
    assert speed.value == pytest.approx(100, rel=0.15) and speed.low < 100 < speed.high


def test_a_described_mixture_can_be_planned_for(tmp_path):
    path = tmp_path / "mixture.json"
    path.write_text(
        '{"layers": 24, "hidden": 2048, "heads": 16, "vocab": 65536, "seq": 4096, "experts": 64, '
        '"topk": 4}'
    )
    with pytest.raises(ValueError, match="experts 64, topk 4, ffn None: a mixture needs all three"):
        load(str(path))
    path.write_text(path.read_text().replace("}", ', "ffn": 1024}'))
    assert load(str(path)).experts == 64
