"""Lab 4's graded exercises, one file each, in the order of the notebook and with its sections:

    rank_state_bytes.py   1  how many bytes of state one of N ranks stores at each ZeRO stage
    zero1.py              2  each rank updates its shard
    zero2.py              3  gradients are reduce-scattered during backward
    fsdp.py               4  which unit is unsharded when; with unit.py
    recompute.py          7  only the input is kept until backward
    choose_remedy.py      9  the OOM clinic: the cheapest remedy that fits
    prefetching_fsdp.py  10  the next unit's all-gather overlaps with this unit's computation
    muon.py              14  a step in which each matrix has an owner; owners.py assigns them
    async_checkpoint.py  15  checkpoints that are written while training continues

Parts of these exercises, and what several of them use:

    zero_models.py          what Zero1 and Zero2 train: a small model, or a chain with gates
    unit.py                 the first part of fsdp.py: a Unit method by method, and under lib's FSDP
    fsdp_models.py          the model that sharded answers train
    fsdp_training.py        a training with an FSDP whose units are watched
    owners.py               the first part of muon.py
    disk.py                 a disk that can be blocked, and that logs its calls
"""

__all__ = [
    "async_checkpoint", "choose_remedy", "disk", "fsdp", "fsdp_models", "fsdp_training", "muon",
    "owners", "prefetching_fsdp", "rank_state_bytes", "recompute", "unit", "zero1", "zero2",
    "zero_models",
]  # fmt: skip
