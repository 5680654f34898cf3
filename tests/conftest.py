"""What all tests share: an option, and the processes that tests start kept light."""

import os

import pytest

# Several tests run at a time: threads that wait for each other in every one of them would use the processors up.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    parser.addoption(
        "--backend", default="auto", choices=["auto", "gloo", "nccl", "nccl-shared"],
        help="the backend that tests on ranks use; `make test-gpu` gives nccl and nccl-shared",
    )  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def ranks_start_light():
    """Ranks fork from a server that has imported torch. Here some of lib too, which takes a rank as long as the rest.

    And a check gives up later, for in one launch it judges many answers, beside other tests on a slow machine.
    """
    from lib.check import framework
    from lib.launch import agent

    lib = ["lib.launch.worker", "lib.check.framework", "lib.collectives", "lib.model", "lib.text"]
    agent.PRELOAD = [*agent.PRELOAD, *lib]
    framework.TIMEOUT = 60
