"""launch.expect_error: the verdict is printed, and a run that ends well is an error."""

import pytest
import torch
import torch.distributed as dist

from lib import launch


def both_send_first():
    other = 1 - dist.get_rank()
    dist.send(torch.ones(3), other)
    dist.recv(torch.zeros(3), other)


def test_the_verdict_is_printed_and_the_error_returned(capsys):
    error = launch.expect_error(both_send_first, nproc=2, backend="gloo")
    assert error.kind == "deadlock" and error.waits == {0: [1], 1: [0]}
    printed, verdict = capsys.readouterr().out.splitlines(), str(error).split()
    assert " ".join(printed).split()[-len(verdict) :] == verdict
    assert max(map(len, printed)) <= 100


def test_a_run_that_ends_well_is_an_error():
    with pytest.raises(RuntimeError, match=r"^get_rank ran to its end on all ranks"):
        launch.expect_error(dist.get_rank, nproc=2)
