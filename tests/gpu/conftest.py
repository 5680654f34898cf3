"""What the tests on GPUs share: which NCCL they run on, and no NVLS, which hundreds of
communicators would use up."""

import os

import pytest

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")


@pytest.fixture
def nccl(request):
    """ "nccl", a GPU for each rank, or "nccl-shared", two ranks on one: as --backend says."""
    return request.config.getoption("--backend")
