"""The clinic's estimates next to the planner's, which are finer, and curves next to peaks."""

import pytest

from lib.cost.clinic import (
    EXAMPLES,
    PATIENTS,
    USABLE,
    Remedy,
    choose_remedy,
    memory_over_a_step,
    peak_bytes,
)
from lib.cost.hardware import gpus
from lib.cost.search import search
from lib.cost.shapes import load


def test_every_patient_needs_another_remedy():
    assert len({choose_remedy(job)[:3] for job in PATIENTS}) == len(PATIENTS)


@pytest.mark.parametrize("job", PATIENTS[1:4], ids=lambda job: job.name)
def test_the_planner_chooses_the_same_stage_and_recomputation(job):
    model = load("llama3-" + ("8b" if job.layers == 32 else "70b"), seq=job.seq)
    plan = search(model, gpus()["H100-80GB"], job.gpus, 256, fixed={"tp": 1, "pp": 1})[0].plan
    remedy = choose_remedy(job)
    assert (plan.zero, plan.recompute == "full", plan.micro_batch) == (
        remedy.stage,
        remedy.checkpointing,
        remedy.micro_batch,
    )


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("job", PATIENTS, ids=lambda job: job.name)
def test_the_highest_point_of_the_curve_is_the_peak(job, checkpointing):
    remedy = Remedy(3, checkpointing, False, job.micro_batch)
    most = max(sum(parts.values()) for parts in memory_over_a_step(job, remedy))
    assert most == pytest.approx(peak_bytes(job, remedy))


def test_of_the_examples_zero_3_and_checkpointing_fit():
    fits = [name for name, r in EXAMPLES.items() if peak_bytes(PATIENTS[1], r) <= USABLE]
    assert fits == ["ZeRO-3", "ZeRO-1 with checkpointing"]
