"""What `make test-gpu` runs, as data: the same steps on one GPU and on eight, only the numbers of
ranks differ.

    {python} ...    the interpreter         {gpus}    how many GPUs there are
    {pair}          "nccl" where there are two GPUs, else "nccl-shared": two ranks on one
    {ranks}         2 ranks, or one per GPU, up to 4
    {each}          a rank for each GPU, up to 2

    one GPU      ON_ONE  ten minutes, all its limits together; then IF_TIME_IS_LEFT of these minutes
    two or more  ON_TWO  ten minutes as well
                 the rest of ON_ONE and IF_TIME_IS_LEFT, then ON_MANY: up to hours,
                 unless --minutes ends it

The steps that are worth most come first, because a borrowed GPU may be gone after ten minutes. What
a step does not use of its time is left to the next, which may take twice its own. A step begins
only if its time still fits. What a step showed is its line "showed: ...", or pytest's summary.
"""

from dataclasses import dataclass, field

PYTEST = ("-m", "pytest", "-q")


@dataclass(frozen=True)
class Step:
    """One row of the table. seconds: it may take. needs: "gpus 2", "ranks 2", "shared",
    "module nbclient"."""

    name: str
    what: str
    seconds: int
    command: tuple[str, ...]  # for Python
    needs: tuple[str, ...] = ()
    visible: int | None = None  # how many GPUs it sees; None: all
    env: dict[str, str] = field(default_factory=dict)

    def argv(self, python: str, gpus: int) -> list[str]:
        words = {
            "gpus": gpus,
            "pair": "nccl" if gpus > 1 else "nccl-shared",
            "ranks": max(2, min(4, gpus)),
            "each": min(2, gpus),
        }
        return [python, *(word.format(**words) for word in self.command)]


def tests(*files: str, backend: str) -> tuple[str, ...]:
    return (*PYTEST, *(f"tests/{file}" for file in files), "--backend", backend)


def program(
    name: str, *options: str, ranks: str = "{ranks}", backend: str = "{pair}"
) -> tuple[str, ...]:
    return ("-m", f"tests.gpu.{name}", "--backend", backend, "--ranks", ranks, *options)


# it comes first, and decides on the others
PROBE = Step("probe", "GPUs, driver, torch and NCCL, without lib", 60, ())
MODELS = [
    f"gpu/test_gpu_{name}.py" for name in ("pipeline", "tensor_parallel", "context_parallel", "moe")
]

NCCL = Step(
    "nccl",
    "ranks, ledger, replicas and DDP; a GPU each",
    50,
    tests("gpu/test_gpu.py", backend="nccl"),
)
REUSE = Step(
    "reuse",
    "3 launches with a matmul, 200 async all_reduces with the ledger, set_device: same processes, "
    "flat memory",
    40, program("reuse", ranks="{each}", backend="nccl"),
)  # fmt: skip
HANGS = Step(
    "hangs", "twelve ways to hang or die: kind of verdict, seconds, processes left", 110,
    program("hangs", ranks="2"),
    ("ranks 2",),
)  # fmt: skip
SESSIONS = Step(
    "sessions", "cells on living ranks: an error, the stop button, a hang", 50,
    program("sessions", ranks="2"),
    ("ranks 2",),
)  # fmt: skip
SNAPSHOTS = Step(
    "snapshots", "a background save's copy: pinned against pageable memory", 30,
    program("snapshots", ranks="1", backend="nccl"),
)  # fmt: skip
SHORT_SOAKS = tuple(
    Step(f"streams-{n}",
         f"Overlapped, Zero2, Prefetching, experts: 20 times, random sleeps, {n} connections", 40,
         program("soak", "--times", "20", "--steps", "2", ranks="2"), ("ranks 2",),
         env={"CUDA_DEVICE_MAX_CONNECTIONS": str(n)})
    for n in (8, 32)
)  # fmt: skip

ON_ONE = (
    PROBE, NCCL, REUSE, HANGS, *SHORT_SOAKS,
    Step("streams-unwaited", "the same without waits between streams: wrong values must be seen",
         20,
         program("soak", "--times", "3", "--steps", "2", "--never-wait", ranks="2"), ("ranks 2",)),
    Step("zero", "ZeRO 1 to 3: values, bytes", 50, tests("gpu/test_gpu_zero.py", backend="{pair}"),
         ("ranks 2",)),
    Step("models", "pipelines, tensor and context parallel, experts", 90,
         tests(*MODELS, backend="{pair}"),
         ("ranks 2",)),
    *(
        Step(f"groups-cumem-{on}",
             f"1, 10, 40 new groups, destroyed and not, NCCL_CUMEM_ENABLE={on}", 50,
             program("groups", ranks="2"), ("ranks 2",), env={"NCCL_CUMEM_ENABLE": on})
        for on in ("1", "0")
    ),
)  # fmt: skip
IF_TIME_IS_LEFT = (  # on one GPU: of the ten minutes
    SESSIONS,
    SNAPSHOTS,
    Step(
        "shared",
        "as nccl, two ranks on a GPU",
        100,
        tests("gpu/test_gpu.py", backend="nccl-shared"),
        ("shared",),
    ),
    Step(
        "checks",
        "graded checks, lib's functions as answers",
        50,
        program("checks", ranks="{gpus}"),
        ("ranks 2",),
    ),
    Step("polling", "what the ledger costs", 30, program("polling", ranks="2"), ("ranks 2",)),
)

ON_TWO = (
    PROBE, REUSE, HANGS,
    Step("hangs-shm", "the same with NCCL_P2P_DISABLE=1: through shared memory, as between two T4",
         110,
         program("hangs", ranks="2", backend="nccl"), ("gpus 2",), env={"NCCL_P2P_DISABLE": "1"}),
    *SHORT_SOAKS,
    Step("hybrid", "meshes, a traced plan, unequal shares", 60,
         tests("gpu/test_gpu_hybrid.py", backend="nccl"),
         ("gpus 2",), visible=2),
    *(
        Step(f"solutions-lab{lab}", f"Lab {lab}, solved, executed with 2 GPUs visible", 70,
             ("-m", "tests.gpu.solutions", lab), ("gpus 2", "module nbclient", "module nbval"),
             visible=2)
        for lab in ("0", "1")
    ),
)  # fmt: skip

RANKS = (2, 3, 5, 8)
VISIBLE = (8, 4, 2, 1)
LOADING = ("LAZY", "EAGER")
CONNECTIONS = (1, 8, 32)

ON_MANY = (
    *(
        Step(f"probe-nvls-{on}", f"the raw probe on all GPUs, NCCL_NVLS_ENABLE={on}", 120,
             ("-m", "tests.gpu.probe", "--all"), ("gpus 2",), env={"NCCL_NVLS_ENABLE": on})
        for on in ("1", "0")
    ),
    *(
        Step(f"suites-{n}", f"tests/gpu/test_gpu.py, collectives, launch: up to {n} ranks", 900,
             tests("gpu/test_gpu.py", "collectives", "launch/test_run.py", backend="nccl"),
             (f"gpus {n}", "module psutil"), visible=n)
        for n in RANKS
    ),
    Step("hybrid-all", "meshes, a traced plan, unequal shares, on all GPUs", 420,
         tests("gpu/test_gpu_hybrid.py", backend="nccl"), ("gpus 3",)),
    *(
        Step(f"solutions-{n}", f"all solutions executed with {n} GPUs visible", 1800,
             ("-m", "tests.gpu.solutions"),
             (f"gpus {n}", "module nbclient", "module nbval"), visible=n)
        for n in VISIBLE
    ),
    Step("hangs-all", "the hang matrix, a rank per GPU", 180, program("hangs", ranks="{gpus}"),
         ("gpus 3",)),
    *(
        Step(f"soak-{loading.lower()}-{n}",
             f"200 steps with random sleeps, {loading} loading, {n} connections", 240,
             program("soak", "--times", "40", "--steps", "5", ranks="{gpus}"), ("gpus 2",),
             env={"CUDA_MODULE_LOADING": loading, "CUDA_DEVICE_MAX_CONNECTIONS": str(n)})
        for loading in LOADING for n in CONNECTIONS
    ),
    Step("restart", "a rank killed under torchrun: all start again, and end at the same loss", 180,
         program("restart", ranks="{gpus}"), ("gpus 2",)),
    Step("groups-all", "1, 10, 40 new groups on all GPUs", 180, program("groups", ranks="{gpus}"),
         ("gpus 3",)),
    Step("timings", "all-reduce, lib's and NCCL's", 300, program("timings", ranks="{gpus}"),
         ("gpus 2",)),
)  # fmt: skip


def steps(gpus: int) -> tuple[Step, ...]:
    """All steps of a machine with so many GPUs, the ones that are worth most first."""
    if gpus < 2:
        return ON_ONE + IF_TIME_IS_LEFT
    return ON_TWO + tuple(step for step in ON_ONE + IF_TIME_IS_LEFT if step not in ON_TWO) + ON_MANY


def minutes(gpus: int) -> float | None:
    """How long `make test-gpu` may take on so many GPUs if nothing else is said; None: until all
    steps have ended."""
    return 10.0 if gpus < 2 else None
