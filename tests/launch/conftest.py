"""Programs of their own, as users write them."""

import os
import subprocess
import sys
import textwrap

import pytest

from lib.launch import warm


@pytest.fixture
def keeper_waits():
    """The thread that ends and prepares sets between runs waits while this test runs.

    An earlier test may have left it work to do, such as preparing ranks after a failure. It must
    not read what this test patches, nor add a set to those that this test counts, so the sets are
    this test's own.
    """
    with warm.one_at_a_time:  # a lock that this thread may take again
        warm.end_all()
        yield
        warm.end_all()


@pytest.fixture
def program():
    """Start a Python program of its own, as a user would have written it; whatever happens, it ends
    with the test."""
    started = []

    def start(body, **env):
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(body)], text=True,
            env={**os.environ, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
