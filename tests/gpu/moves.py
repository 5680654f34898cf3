"""The next move for everything that the probe can find wrong, and whether anything can run on the
GPUs without it."""

FATAL = {  # nothing can run on this machine's GPUs as they are: exit code 2
    "no GPU": """
        Run this on a machine with an NVIDIA GPU; in a container give it the GPUs
        (docker run --gpus all --shm-size=1g). Without one, `make test` runs everything on gloo.""",
    "torch fails": """
        Run `python tests/gpu/raw.py facts` and mend what it says;
        `make setup` installs torch anew.""",
    "torch without CUDA": """
        Make the environment anew: rm -rf .venv && make setup,
        without a TORCH_INDEX for the CPU.""",
    "hidden": """unset CUDA_VISIBLE_DEVICES, or name GPUs that there are: nvidia-smi -L""",
    "driver too old": """
        Update the driver (nvidia-smi shows the CUDA version it can do), or install a torch for
        that CUDA: rm -rf .venv && make setup TORCH_INDEX=https://download.pytorch.org/whl/cu126""",
    "MIG": """
        Use a whole GPU, or have the administrator switch MIG off (nvidia-smi -mig 0). One rank
        on a slice works; several run on gloo.""",
    "no kernels": """
        Install a torch built for it (wheels for CUDA 12.6 have kernels for older GPUs:
        rm -rf .venv && make setup TORCH_INDEX=https://download.pytorch.org/whl/cu126), or hide
        this GPU with CUDA_VISIBLE_DEVICES.""",
    "prohibited": """
        Have the administrator run nvidia-smi -c DEFAULT: no process may use it as it is.""",
    "no memory": """
        nvidia-smi shows who uses it. Wait, end your own, or take other GPUs:
        CUDA_VISIBLE_DEVICES=1 make test-gpu""",
    "no product": """
        Look for Xid errors (dmesg | grep -i xid, nvidia-smi -q), hide this GPU with
        CUDA_VISIBLE_DEVICES, and have the administrator see to it.""",
    "no NCCL": """Install torch's own wheel for Linux: rm -rf .venv && make setup""",
}
NOT_FATAL = {  # said; and the steps on two ranks are left out where two ranks did not get through
    "busy": """
        nvidia-smi shows who uses it. Times will be wrong, and memory may not do: better wait,
        or take other GPUs.""",
    "exclusive": """
        Have the administrator run nvidia-smi -c DEFAULT; until then the steps on one rank run.""",
    "/dev/shm is small": """
        Give the container more (docker run --shm-size=1g, or --ipc=host), or go without:
        NCCL_SHM_DISABLE=1 make test-gpu""",
    "one GPU for two": """
        lib/backend/choice.py sets NCCL_HOSTID and NCCL_MULTI_RANK_GPU_ENABLE, which earlier
        versions wanted. Look into this version's release notes for what else it wants, or use a
        machine with two GPUs.""",
    "init hangs": """
        Can the ranks reach each other? Try
        NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 make test-gpu""",
    "all_reduce hangs": """
        Between two GPUs try NCCL_P2P_DISABLE=1 (an IOMMU or ACS can break it), then
        NCCL_CUMEM_ENABLE=0.""",
    "a batch hangs": """
        NCCL_DEBUG=INFO python -m tests.gpu.probe says whether the batch made a communicator of
        its own, and between whom it waits.""",
    "new_group hangs": """
        Try NCCL_NVLS_ENABLE=0 and NCCL_CUMEM_ENABLE=0; NCCL_DEBUG=INFO names what the split
        waits for.""",
    "DDP step hangs": """
        Try NCCL_DEBUG=INFO. The reducer calls all_reduce from autograd's thread: if the batches
        and all_reduce pass, look at what that thread waits for with py-spy dump --native.""",
    "destroy hangs": """
        NCCL_DEBUG=INFO names the communicator that waits. Write it into tests/gpu/README.md
        with the versions of torch and NCCL: every launch ends in a destroy.""",
    "NCCL fails": """Run it with NCCL_DEBUG=INFO: it names what is missing.""",
    "NCCL is wrong": """
        Run it with NCCL_DEBUG=INFO and NCCL_P2P_DISABLE=1, and report it:
        nothing here can be trusted.""",
}
