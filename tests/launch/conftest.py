"""Programs of their own, as users write them."""

import os
import subprocess
import sys
import textwrap

import pytest


@pytest.fixture
def program():
    """Start a Python program of its own, as a user would have written it; whatever happens, it ends with the test."""
    started = []

    def start(body, **env):
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(body)], text=True, env={**os.environ, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
