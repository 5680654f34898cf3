"""What mixtures and large releases add to a step: each term against its formula."""

from dataclasses import replace

import pytest

from lib.calibration import fit
from lib.calibration.predict import predict
from lib.calibration.rows import job
from lib.cost import network
from lib.cost.hardware import gpu
from lib.cost.kept import kept_bytes
from lib.cost.layer import CLAMPED, layer
from lib.cost.matmul import experts
from lib.cost.memory import memory
from lib.cost.parameters import parameters
from lib.cost.parts import layer_parts
from lib.cost.plan import Plan
from lib.cost.shapes import load
from lib.cost.sharding import exposed
from lib.cost.stacks import stacks
from lib.cost.step import step_seconds

K, B200, BRIDGE = parameters(), gpu("B200"), stacks()["megatron-bridge-26.04"]
OSS = load("gpt-oss-120b", seq=4096)
PLAN = Plan(1280, 4, dp=64, ep=8, zero=1)


def test_each_expert_s_operands_are_converted_in_8_bits():
    """Twice the experts on a rank, the same tokens: `convert` for each more forward, and
    twice that backward."""
    fast = B200._replace(hbm=1e18)  # reading weights takes no time
    one, two = (experts([(64, 64)], 4096, n, fast, "fp8", K) for n in (8, 16))
    assert two[0] - one[0] == pytest.approx(8 * K.convert, rel=1e-3)
    assert two[1] - one[1] == pytest.approx(16 * K.convert, rel=1e-3)
    plain = [experts([(64, 64)], 4096, n, fast, "bf16", K)[0] for n in (8, 16)]
    assert plain[0] == pytest.approx(plain[1])
    assert experts([(64, 64)], 4096, 8, fast, "fp4", K) == one


def test_biases_and_a_clamp_pass_through_memory_in_16_bits():
    bare = replace(OSS, biased=False)
    biased, plain = (
        layer(model, PLAN, B200, BRIDGE, K).forward.elementwise for model in (OSS, bare)
    )
    moved = CLAMPED * 4 * 4096 * OSS.topk * OSS.ffn
    assert biased - plain == pytest.approx(K.unfused * moved / (K.hbm * B200.hbm))
    fused = replace(PLAN, precision="fp8")
    assert layer(OSS, fused, B200, BRIDGE, K) == layer(bare, fused, B200, BRIDGE, K)


def test_latent_experts_see_a_narrower_token():
    """Nemotron 3 Super: 120.6 billion parameters, 12.7 active (arXiv 2604.12374); a quarter of the
    width travels."""
    latent = load("nemotron3-super", seq=8192)
    assert (latent.parameters / 1e9, latent.active_parameters / 1e9) == pytest.approx(
        (120.6, 12.7), abs=0.05
    )
    plan = Plan(512, dp=64, ep=64, zero=1)
    there = 2 * network.all_to_all(B200, 64, 22, 2 * 8192 * 1024, K.network)
    assert layer(latent, plan, B200, BRIDGE, K).forward.expert == there
    wide = replace(latent, latent=0)
    assert kept_bytes(wide, plan, BRIDGE) - kept_bytes(latent, plan, BRIDGE) == 22 * 4 * (
        4096 - 1024
    )
    parts = {part.name: part.parameters for part in layer_parts(latent, plan)}
    assert parts["experts"] == 512 / 64 * 2 * 1024 * 2432


def test_all_to_all_between_nodes_hides_behind_interleaved_stages():
    deepseek = load("deepseek-v3", seq=4096)
    plan = Plan(4096, pp=8, dp=32, ep=32, v=2, zero=1, precision="fp8")
    expert = lambda **changed: (
        layer(deepseek, replace(plan, **changed), B200, BRIDGE, K).forward.expert
    )
    bare = 2 * network.all_to_all(B200, 32, 8, 2 * 4096 * 7168, K.network)
    assert 0 < expert() < bare == expert(v=1)
    # inside a node
    assert expert(ep=8) == 2 * network.all_to_all(B200, 8, 8, 2 * 4096 * 7168, K.network)
    apart = BRIDGE._replace(expert_overlap=0)
    assert layer(deepseek, plan, B200, apart, K).forward.expert == bare


def test_nothing_hides_the_exchange_of_experts():
    """14.3 billion parameters of experts on each of 64 ranks, and eight copies: two bytes
    there, two back."""
    one = layer(OSS, PLAN, B200, BRIDGE, K)
    held = 36 * 128 / 8 * OSS.expert_parameters
    alone = 2 * network.one_pass(B200, 8, 8, 2 * held, K.network)
    assert exposed(OSS, PLAN, B200, BRIDGE, K, one, 36) > alone > 1.0
    assert exposed(OSS, replace(PLAN, ep=64), B200, BRIDGE, K, one, 36) < 0.2


def test_what_does_not_fit_goes_to_the_host():
    """Llama 3 70B on GB200, FSDP: more than half of the activations; there and back at 450 GB/s."""
    row = next(
        row
        for row in fit.table_as_text("rows")
        if row["source"] == "mbridge-26.04" and "70b-GB200" in row["row"]
    )
    model, plan, device, stack = job(row)
    assert plan.recompute == "none" and 0.5 < plan.offload < 0.6  # its recipe: 40 of 80 layers
    assert sum(memory(model, plan, stack).values()) == pytest.approx(0.95 * device.memory, rel=1e-6)
    all_here = memory(model, replace(plan, offload=0.0), stack)["activations"]
    here, away = (
        step_seconds(model, replace(plan, offload=0.0), device, stack),
        step_seconds(*job(row)),
    )
    slower = K.factors[stack.name]  # one NVLink domain: no straggler
    assert away["offload"] == pytest.approx(
        slower * 2 * plan.micro_batches * plan.offload * all_here / 450e9
    )
    assert sum(away.values()) == pytest.approx(sum(here.values()) + away["offload"])
    eager = job({**row, "recompute": "full"}).plan
    assert (eager.recompute, eager.offload) == ("full", 0.0)


def test_neighbouring_tokens_on_a_context_rank_are_uneven_work():
    """Under a causal mask the last of 8 ranks has 2 - 1/8 times the mean's scores."""
    titan = stacks()["torchtitan"]
    even = titan._replace(even_context=1)
    model, h100 = load("llama3-8b", seq=262144), gpu("H100-96GB-500W")
    plan = Plan(1, cp=8, zero=3, recompute="full")
    uneven, level = (
        layer(model, plan, h100, stack, K).forward.attention for stack in (titan, even)
    )
    assert uneven == pytest.approx(level * (2 - 1 / 8))


def test_a_source_that_is_not_known_is_predicted_as_the_planner_would():
    """Of a known publisher it is the latest stack; the note says which was put in."""
    row = next(
        row
        for row in fit.table_as_text("rows")
        if row["source"] == "mbridge-26.04" and "405b" in row["row"]
    )
    of = lambda source: predict({**row, "source": source})
    assert "assumed: stack megatron-core" in of("elsewhere").note
    assert "assumed: stack megatron-bridge-26.08" in of("mbridge-27.01").note
    assert "stack" not in of("mbridge-26.08").note
    wide = [found.high / found.low for found in map(of, ("mbridge-26.08", "elsewhere"))]
    assert wide[0] < wide[1]
