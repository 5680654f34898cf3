import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib import launch
from lib.measuring.mfu import Meter, operations_per_token
from lib.training.model import GPT, Shape


@pytest.mark.parametrize("more", [{}, {"n_kv_heads": 2}, {"mlp_hidden": 48}])
def test_operations_are_those_that_torch_counts(more):
    shape = Shape(50, seq_len=16, n_layers=3, hidden=32, n_heads=4, **more)
    tokens = torch.randint(50, (2, 16))
    with FlopCounterMode(display=False) as counter:
        GPT(shape).loss(tokens, tokens).backward()
    assert counter.get_total_flops() == operations_per_token(shape) * tokens.numel()


def steps_of(seconds, tokens):
    meter = Meter(Shape(50, seq_len=16, n_layers=1, hidden=32, n_heads=4), tokens)
    seen = []
    for step in meter(range(5)):
        time.sleep(seconds)
        seen.append(step)
    return seen, meter.rates(), meter.peaks


@pytest.mark.parametrize("nproc", [0, 2])  # 0: without ranks, in this process
def test_a_meter_yields_every_step_and_clocks_it(nproc):
    of_ranks = launch.run(steps_of, 0.02, 1000, nproc=nproc) if nproc else [steps_of(0.02, 1000)]
    for seen, rates, peaks in of_ranks:
        assert seen == [0, 1, 2, 3, 4]
        assert {name: len(values) for name, values in rates.items()} == {
            "tokens per second": 4,
            "MFU": 4,
        }
        assert 0 < rates["tokens per second"].max() <= 1000 / 0.02
        operations = operations_per_token(Shape(50, seq_len=16, n_layers=1, hidden=32, n_heads=4))
        assert rates["MFU"].tolist() == pytest.approx(
            operations * rates["tokens per second"] / peaks[1:]
        )


def test_a_job_that_does_nothing_but_the_products_of_the_peak_has_an_mfu_near_one():
    shape = Shape(50, seq_len=16, n_layers=1, hidden=32, n_heads=4)
    meter = Meter(shape, tokens=round(2 * 2 * 512**3 / operations_per_token(shape)))
    for _ in meter(range(12)):
        for _ in range(2):
            meter.x @ meter.x
    assert 0.3 < sorted(meter.rates()["MFU"])[5] < 3
