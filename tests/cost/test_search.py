"""The planner: every plan that fits, ranked; monotone in memory and bandwidth; clear about
what cannot be."""

from dataclasses import replace

import pytest

from lib.cost import explain
from lib.cost.__main__ import main
from lib.cost.hardware import GIB, gpu
from lib.cost.memory import FITS, peak_bytes
from lib.cost.plan import Plan
from lib.cost.search import DEFAULT_STACK, chunks, depths, plans, search
from lib.cost.shapes import load
from lib.cost.stacks import stacks
from lib.cost.step import split, step_seconds

A100, STACK = gpu("A100-80GB"), stacks()[DEFAULT_STACK]


@pytest.fixture(scope="module")
def gpt3():
    return search(load("gpt-3-175b"), A100, 1024, 1536)


def test_every_plan_uses_all_gpus_and_can_be_laid_out(gpt3):
    model = load("gpt-3-175b")
    assert len(gpt3) > 100
    for choice in gpt3:
        assert choice.plan.gpus == 1024 and choice.plan.problem(model) is None
        assert choice.plan.micro_batches * choice.plan.micro_batch * choice.plan.dp == 1536
        assert choice.memory <= FITS * A100.memory
    assert [choice.seconds for choice in gpt3] == sorted(choice.seconds for choice in gpt3)


def test_of_each_layout_the_fastest_is_kept(gpt3):
    degrees = lambda plan: (plan.tp, plan.pp, plan.dp, plan.cp, plan.ep)
    kept = explain.layouts(gpt3)
    assert kept[0] == gpt3[0] and 1 < len(kept) < len(gpt3)
    assert {degrees(c.plan) for c in kept} == {degrees(c.plan) for c in gpt3}
    assert len({degrees(c.plan) for c in kept}) == len(kept)
    assert [c.seconds for c in kept] == sorted(c.seconds for c in kept)


def test_no_plan_is_listed_twice(gpt3):
    assert len({choice.plan for choice in gpt3}) == len(gpt3)


def test_the_ranking_s_numbers_are_those_of_the_model(gpt3):
    model = load("gpt-3-175b")
    for choice in gpt3[:3] + gpt3[-3:]:
        assert choice.seconds == pytest.approx(
            sum(step_seconds(model, choice.plan, A100, STACK).values())
        )
        assert choice.memory == peak_bytes(model, choice.plan, STACK)


def test_the_best_is_at_least_as_fast_as_the_published_plan(gpt3):
    """Megatron-LM's README: GPT-3 175B on 1024 A100, tp 8, pp 16, batch 1536."""
    published = Plan(1536, 1, tp=8, pp=16, dp=8, recompute="full", sequence_parallel=True)
    seconds = sum(step_seconds(load("gpt-3-175b"), published, A100, STACK).values())
    assert any(choice.plan.tp == 8 and choice.plan.pp == 16 for choice in gpt3)
    assert gpt3[0].seconds <= seconds


def test_a_trillion_parameters_on_3072_gpus():
    """Tensor parallelism fills a node and the pipeline is deep, as in Narayanan et al. 2021."""
    found = search(load("gpt-1t"), A100, 3072, 3072)
    assert found and found[0].plan.tp == 8 and found[0].plan.pp >= 16
    assert len(list(plans(load("gpt-1t"), A100, 3072, 3072, STACK))) > 500


def test_layers_that_no_stage_count_divides():
    """Llama 3's 405B: 126 layers on 16 stages, embedding and head counted as a layer each (arXiv
    2407.21783, section 3.3.2). With divisors of 126 alone, the best is an eighth slower."""
    model = load("llama3-405b")
    found = search(model, gpu("H100-80GB"), 512, 512)
    even = [choice for choice in found if 126 % choice.plan.pp == 0]
    assert len(even) < 20 < 200 < len(found)
    assert found[0].plan.pp == 16 and found[0].seconds < 0.9 * even[0].seconds
    assert all(choice.plan.problem(model) is None for choice in found)
    counts = split(126, 16)
    assert counts == [7, *[8] * 14, 7]
    assert (
        depths(126, 64) == [1, 2, 4, 8, 16, 32, 64]
        and depths(2, 8) == [1, 2]
        and 96 not in depths(126, 96)
    )
    assert (
        chunks(126, 16, 32) == [1, 2, 4]
        and chunks(126, 16, 24) == [1]
        and chunks(126, 32, 64) == [1, 2]
    )
    # 128 slots on 12 ranks: some have one more, so stages cannot be equal
    assert chunks(126, 12, 24) == [1]


def test_more_memory_never_gives_fewer_plans():
    model, before = load("llama3-70b"), set()
    for memory in (40, 60, 80, 120, 200):
        fit = {choice.plan for choice in search(model, A100._replace(memory=memory * GIB), 64, 128)}
        assert before <= fit
        before = fit
    assert len(before) > 100


def test_more_bandwidth_never_makes_the_best_slower():
    model = load("llama3-70b")
    best = search(model, A100, 64, 128)[0].seconds
    for field in ("link", "nic", "hbm", "bf16"):
        assert (
            search(model, A100._replace(**{field: 2 * getattr(A100, field)}), 64, 128)[0].seconds
            <= best
        )


def test_experts_are_spread():
    found = search(replace(load("qwen3-30b-a3b"), seq=4096), gpu("H100-80GB"), 16, 256)
    assert found and any(choice.plan.ep > 1 for choice in found)
    for choice in found:
        assert (choice.plan.dp * choice.plan.tp * choice.plan.cp) % choice.plan.ep == 0


def test_the_report_says_why(capsys):
    text = explain.report("gpt-3-175b", "A100-80GB", 1024, 1536, show=5)
    assert "174.6B parameters" in text and "plans fit" in text
    assert "It spends" in text and "takes" in text and "longer:" in text and "it loses" in text


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            ("gpt-3-175b", "A100-80GB", 1024, 1537),
            "global batch 1537 is not divisible: .* use 1536 or 15",
        ),
        (
            ("gpt-3-175b", "A100-80GB", 8, 64),
            r"nothing fits: .* GiB on its fullest GPU, .* Use 64 GPUs",
        ),
        (("gpt-3-175b", "A100-80GB", 0, 64), "0 GPUs and a batch of 64: both must be at least 1"),
        (("gpt-9", "A100-80GB", 8, 64), "no model 'gpt-9'"),
        (("gpt-3-175b", "A1000", 8, 64), "no GPU 'A1000'"),
    ],
)
def test_impossible_requests_say_what_would_help(request_, says):
    import re

    with pytest.raises(ValueError) as error:
        explain.report(*request_)
    assert re.search(says, str(error.value).replace("\n", " ")), str(error.value)


def test_what_is_suggested_works():
    assert search(load("gpt-3-175b"), A100, 1024, 1536) and search(load("gpt-3-175b"), A100, 64, 64)


def test_the_command_line(capsys, monkeypatch):
    ask = lambda *words: monkeypatch.setattr("sys.argv", ["lib.cost", "plan", *words])
    ask(
        "--model",
        "llama3-8b",
        "--gpu",
        "H100-80GB",
        "--gpus",
        "8",
        "--batch",
        "64",
        "--seq",
        "8192",
        "--precision",
        "fp8",
    )
    main()
    assert "sequences of 8192 tokens, 8 H100-80GB, fp8" in capsys.readouterr().out
    ask("--model", "llama3-8b", "--gpu", "H100-80GB", "--gpus", "8", "--batch", "0")
    with pytest.raises(SystemExit, match="plan: 8 GPUs and a batch of 0"):
        main()


def test_problems_name_the_numbers():
    model = load("gpt-3-175b")
    assert "use 12 or 24" in Plan(20, 1, dp=12).problem(model)
    assert "tp 7 does not divide 96 heads" in Plan(8, tp=7).problem(model)
    assert "interleaved stages take pp 8 micro-batches at a time, but m is 12" in Plan(
        12, pp=8, v=2
    ).problem(model)
    assert "200 stages, but there are 96 layers" in Plan(8, pp=100, v=2).problem(model)
    assert "ep 8 does not divide 0 experts" in Plan(8, ep=8, dp=8).problem(model)
    assert Plan(64, 1, tp=8, pp=8, dp=8).problem(model) is None
