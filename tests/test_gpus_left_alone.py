"""Plain `make test` is a test of gloo, on a machine with eight GPUs as on one
without: see conftest.py."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from lib import backend, launch


@pytest.fixture
def eight_gpus(monkeypatch):
    """This process believes that eight GPUs work."""
    real = backend.choose
    monkeypatch.setattr(backend, "choose", lambda name, nproc, gpus=8: real(name, nproc, gpus))


@pytest.fixture(autouse=True)
def only_where_gloo_was_asked_for(request):
    if request.config.getoption("--backend") != "gloo":
        pytest.skip("--backend asks for NCCL")


def test_a_launch_that_names_no_backend_runs_on_gloo_though_there_are_eight_gpus(
    eight_gpus, capsys
):
    assert backend.choose("auto", 2).name == "nccl", "the real choice sees the eight"
    assert launch.capture(dist.get_backend, nproc=2) == ["gloo"] * 2
    assert launch.run(dist.get_backend, nproc=2) == ["gloo"] * 2


def test_programs_that_tests_start_see_no_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and torch.cuda.device_count() == 0
    counted = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    assert subprocess.run(counted, capture_output=True, text=True).stdout == "0\n"
