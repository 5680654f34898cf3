"""A kernel of a test's own begins again if the first one ends before it is ready."""

import own_kernel
import pytest


@pytest.fixture
def first_kernels_end(monkeypatch, request):
    begun, start = [], own_kernel.KernelManager.start_kernel

    def started(manager, **options):
        start(manager, **options)
        begun.append(manager)
        if len(begun) <= request.param:
            manager.provisioner.process.kill()

    monkeypatch.setattr(own_kernel.KernelManager, "start_kernel", started)
    return begun


@pytest.mark.parametrize("first_kernels_end", [2], indirect=True)
def test_another_kernel_takes_the_place_of_one_that_ended(first_kernels_end):
    kernel = own_kernel.Kernel()
    try:
        assert own_kernel.printed(kernel.run("print(7)")) == "7\n" and len(first_kernels_end) == 3
    finally:
        kernel.close()


@pytest.mark.parametrize("first_kernels_end", [own_kernel.STARTS], indirect=True)
def test_it_gives_up_if_all_of_them_end(first_kernels_end):
    with pytest.raises(RuntimeError, match="5 kernels have ended before they were ready"):
        own_kernel.Kernel()
