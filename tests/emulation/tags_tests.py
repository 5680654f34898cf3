"""Tests of lib on ranks, as they are, with --backend nccl."""

import time

import pytest

SAMPLE = ("tests/collectives/test_p2p.py::test_ranks_are_ranks_within_the_group",)


def run(names):
    for name in names or SAMPLE:
        began = time.monotonic()
        code = pytest.main([name, "--backend", "nccl", "-q", "-p", "no:cacheprovider"])
        yield name, "" if code == 0 else f"pytest: {code!r}", time.monotonic() - began
