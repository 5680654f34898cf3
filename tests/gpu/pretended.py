"""A machine for tests: the facts that `probe.collect` would return of one on which
everything is as it should be."""

from tests.gpu.raw import PHASES


def gpu(index=0, **more):
    lines = [{"what": "context", "seconds": 0.4, "name": "NVIDIA H200", "capability": "9.0",
              "free_mib": 140000,
              "total_mib": 143771}, {"what": "product", "seconds": 0.1, "right": True}]  # fmt: skip
    return {"late": False, "error": "", "lines": lines} | more


def machine(gpus=1, pair=True, **torch):
    """The facts of a machine on which everything is as it should be."""
    smi = {"name": "NVIDIA H200", "capability": "9.0", "mig": "Disabled",
           "mode": "Default"}  # fmt: skip
    rank = {
        "late": False,
        "error": "",
        "lines": [{"what": what, "seconds": 0.1} for what in PHASES],
    }
    rank["lines"][2] |= {"right": True, "no_work": True}
    rank["lines"][PHASES.index("DDP step")] |= {
        "right": True,
        "hook": ["another", "cpu"],
        "reducer": ["another", "cpu"],
    }
    facts = {
        "smi": {"driver": "580.159.03", "gpus": [dict(smi) for _ in range(gpus)]},
        "torch": {"torch": "2.11.0+cu130", "cuda": "13.0", "nccl": "2.28.9", "python": "3.12.3",
                  "count": gpus,
                  "arch": ["sm_75", "sm_80", "sm_90", "compute_120"], "error": "", "late": False},
        "products": [gpu(i) for i in range(gpus)], "shm_mib": 65536, "visible": None,
    }  # fmt: skip
    facts["torch"] |= torch
    if pair:
        facts["pair"] = {
            "shared": gpus == 1,
            "ranks": [rank, {**rank, "lines": [dict(x) for x in rank["lines"]]}],
        }
    return facts
