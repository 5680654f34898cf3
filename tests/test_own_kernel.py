"""A kernel of a test's own takes no port of the machine, and is ended if it never answers."""

import pathlib

import own_kernel
import pytest
from jupyter_client.blocking.client import BlockingKernelClient


def test_it_takes_no_port():
    kernel = own_kernel.Kernel()
    try:
        assert own_kernel.printed(kernel.run("print(7)")) == "7\n"
        assert kernel.manager.get_connection_info()["transport"] == "ipc"
        folder = pathlib.Path(kernel.folder.name)
        assert len([path for path in folder.iterdir() if path.is_socket()]) == 5
    finally:
        kernel.close()
    assert not folder.exists()


def test_one_that_does_not_become_ready_is_ended(monkeypatch):
    managers, start = [], own_kernel.KernelManager.start_kernel

    def started(manager, **options):
        managers.append(manager)
        start(manager, **options)

    def not_ready(client, timeout):
        raise RuntimeError(f"Kernel didn't respond in {timeout} seconds")

    monkeypatch.setattr(own_kernel.KernelManager, "start_kernel", started)
    monkeypatch.setattr(BlockingKernelClient, "wait_for_ready", not_ready)
    with pytest.raises(RuntimeError, match="didn't respond in 300 seconds"):
        own_kernel.Kernel()
    assert not managers[0].is_alive()
