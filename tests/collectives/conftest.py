"""How these tests start ranks: on the backend of `--backend`, or skipped where this machine
cannot carry them."""

import pytest

from lib import launch


@pytest.fixture
def on_ranks(request):
    """on_ranks(fn, *args, nproc=4, ...): `launch.capture` on the backend that was asked for."""
    backend = request.config.getoption("--backend")

    def run(fn, *args, nproc=4, **kwargs):
        try:
            return launch.capture(fn, *args, nproc=nproc, backend=backend, **kwargs)
        except RuntimeError as error:
            if type(error) is RuntimeError and f"backend={backend!r}" in str(error).replace(
                '"', "'"
            ):
                pytest.skip(str(error))  # fewer GPUs than ranks
            raise

    return run
