"""What the probe's facts mean: a finding for each thing that is not as it should be. moves.py has
the next move for it.

no GPU that torch can use      why, and nothing else
of each GPU                    the first thing that keeps it from computing; what else to know of it
of the machine                 NCCL, /dev/shm
of two ranks under NCCL        where they stopped, or what came out wrong
"""

import re
from dataclasses import dataclass

from tests.gpu.moves import FATAL, NOT_FATAL
from tests.gpu.raw import PHASES

SHM_MIB = 512  # NCCL's buffers between GPUs that do not reach each other directly; Docker gives 64
FREE_MIB = 4096  # per GPU: two contexts, NCCL's buffers, cuBLAS's workspaces and a small GPT
LATE_BUT_TOGETHER = "DDP step hangs"
BUILT_FOR = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?$")


@dataclass(frozen=True)
class Finding:
    name: str  # a key of moves.py
    text: str

    @property
    def fatal(self) -> bool:
        return self.name in FATAL

    @property
    def next_move(self) -> str:
        return " ".join((FATAL | NOT_FATAL)[self.name].split())


def judge(facts: dict) -> list[Finding]:
    """The findings, the most fundamental first. `facts`: what `probe.collect` returns."""
    if none := _no_gpu(facts):
        return [none]
    found = [
        finding for index in range(len(facts["products"])) for finding in _of_gpu(facts, index)
    ]
    if facts["torch"].get("nccl") is None:
        found.append(Finding("no NCCL", f"torch {facts['torch'].get('torch')} has no NCCL"))
    if facts["shm_mib"] < SHM_MIB:
        wants = f"NCCL between GPUs that do not reach each other directly wants {SHM_MIB}"
        found.append(Finding("/dev/shm is small", f"/dev/shm has {facts['shm_mib']} MiB; {wants}"))
    return found + _of_pair(facts)


def _no_gpu(facts):
    smi, torch = facts["smi"], facts["torch"]
    listed = f"the driver lists {len(smi.get('gpus', []))} GPUs"
    if torch.get("late") or torch.get("error"):
        why = "does not answer within its time" if torch.get("late") else f"fails: {torch['error']}"
        return Finding("torch fails", f"torch, imported and asked for its GPUs, {why}")
    if torch["count"]:
        return None
    if not smi.get("gpus"):
        return Finding("no GPU", f"no GPU here ({smi.get('error', 'nvidia-smi lists none')})")
    if torch.get("cuda") is None:
        return Finding(
            "torch without CUDA", f"{listed}, but torch {torch['torch']} is built for the CPU"
        )
    if facts.get("visible") is not None:
        return Finding(
            "hidden", f"{listed}, and CUDA_VISIBLE_DEVICES={facts['visible']!r} hides them"
        )
    return Finding("driver too old", f"{listed}, torch counts none: {_versions(facts)}")


def _versions(facts):
    smi, torch = facts["smi"], facts["torch"]
    return (
        f"driver {smi.get('driver', '?')}, torch {torch.get('torch')} for CUDA {torch.get('cuda')}"
    )


def _of_gpu(facts, index):
    product, torch = facts["products"][index], facts["torch"]
    gpu = facts["smi"]["gpus"][index] if index < len(facts["smi"].get("gpus", [])) else {}
    here = {key: value for line in product["lines"] for key, value in line.items()}
    name = f"GPU {index} ({here.get('name') or gpu.get('name') or '?'})"
    capability = here.get("capability") or gpu.get("capability") or ""
    error, free, total = product["error"], here.get("free_mib", FREE_MIB), here.get("total_mib")
    found = []
    if gpu.get("mig") == "Enabled" or " MIG " in name:
        found.append(
            Finding("MIG", f"{name} is cut into MIG slices, between which NCCL does not talk")
        )
    elif "driver" in error and ("too old" in error or "insufficient" in error):
        found.append(Finding("driver too old", f"{name}: {_versions(facts)}: {error}"))
    elif "no kernel image" in error or not has_kernels(capability, torch.get("arch", [])):
        built_for = " ".join(torch.get("arch", []))
        found.append(
            Finding(
                "no kernels",
                f"{name} has compute capability {capability}, this torch kernels for {built_for}",
            )
        )
    elif gpu.get("mode") == "Prohibited":
        found.append(Finding("prohibited", f"{name} is in compute mode Prohibited"))
    elif "out of memory" in error or "busy" in error or "unavailable" in error:
        found.append(Finding("no memory", f"{name} is used by others: {error}"))
    elif here.get("right") is not True:
        why = "did not end in time" if product["late"] else error or "came out wrong"
        found.append(Finding("no product", f"{name}: a small product {why}"))
    elif free < FREE_MIB:
        found.append(
            Finding("busy", f"{name} is used by others: only {free} of {total} MiB are free")
        )
    elif total and free < total / 2:
        found.append(
            Finding("busy", f"{name} is used by others: {total - free} of {total} MiB are in use")
        )
    if gpu.get("mode") == "Exclusive_Process":
        mode = (
            "takes one process at a time (compute mode Exclusive_Process): two ranks cannot share "
            "it"
        )
        found.append(Finding("exclusive", f"{name} {mode}"))
    return found


def has_kernels(capability: str, built_for: list[str]) -> bool:
    """Does torch run on it? Machine code runs within a major version, upwards; PTX ("compute_90")
    on all later ones."""
    if not capability or not built_for:
        return True
    own = tuple(map(int, capability.split(".")))
    for kind, major, minor in (
        match.groups() for match in map(BUILT_FOR.match, built_for) if match
    ):
        theirs = int(major), int(minor)
        if own >= theirs and (kind == "compute" or own[0] == theirs[0]):
            return True
    return False


def _of_pair(facts):
    pair = facts.get("pair", {"ranks": [], "shared": False})
    where = "two ranks on one GPU" if pair["shared"] else f"{len(pair['ranks'])} ranks, a GPU each"
    for number, rank in enumerate(pair["ranks"]):
        if wrong := [line["what"] for line in rank["lines"] if line.get("right") is False]:
            return [Finding("NCCL is wrong", f"{where}: rank {number}'s {wrong[0]} came out wrong")]
    # before hangs: a rank that failed keeps the others waiting
    for number, rank in enumerate(pair["ranks"]):
        if rank["error"]:
            name = "one GPU for two" if "duplicate gpu" in rank["error"].lower() else "NCCL fails"
            return [
                Finding(name, f"{where}: rank {number} fails in {_phase(rank)}: {rank['error']}")
            ]
    for number, rank in enumerate(pair["ranks"]):
        if rank["late"]:
            phase = _phase(rank)
            name = (
                "a batch" if phase.startswith("batch") else "init" if phase == "import" else phase
            )
            return [Finding(f"{name} hangs", f"{where}: rank {number} hangs in {phase}")]
    return []


def _phase(rank):
    """What comes after the last thing that the rank has done."""
    return PHASES[min(len(rank["lines"]), len(PHASES) - 1)]


def together(facts: dict) -> bool:
    """Did several ranks under NCCL get through? DDP's step may be late, because what it imports
    takes seconds."""
    return "pair" in facts and all(finding.name == LATE_BUT_TOGETHER for finding in _of_pair(facts))
