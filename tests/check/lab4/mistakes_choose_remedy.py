"""Known mistakes of choose_remedy, each named after its cause."""

from mistakes import Mistake, edit

ORDER = "for offload, checkpointing in product((False, True), repeat=2):"
STAGES, KEPT = "for stage in (1, 2, 3):", "kept = job.layers * INPUT * tokens * job.hidden"
MISTAKES = (
    Mistake("checkpointing after offload",
        edit(ORDER, ORDER.replace("offload, checkpointing in", "checkpointing, offload in"))),
    Mistake("offload is never tried", edit(ORDER, "for offload, checkpointing in ((False, False), "
        "(False, True)):")),
    Mistake("checkpointing is always on", edit(ORDER, "for offload, checkpointing in ((False, "
        "True), (True, True)):")),
    Mistake("only stage 3", edit(STAGES, "for stage in (3,):")),
    Mistake("only stage 3", edit(STAGES, "for stage in (3, 2, 1):")),
    Mistake("no stage 3", edit(STAGES, "for stage in (1, 2):")),
    Mistake("data parallelism too", edit(STAGES, "for stage in (0, 1, 2, 3):")),
    Mistake("the micro-batch is left as it is", edit("micro_batch //= 2", "micro_batch = 0")),
    Mistake("one less at a time", edit("micro_batch //= 2", "micro_batch -= 1")),
    Mistake("1 is left out", edit("while micro_batch >= 1:", "while micro_batch > 1:")),
    Mistake("stages before micro-batches", edit(
        """        micro_batch = job.micro_batch
        while micro_batch >= 1:
            for stage in (1, 2, 3):
                remedy = Remedy(stage, checkpointing, offload, micro_batch)
                if peak_bytes(job, remedy) <= usable:
                    return remedy
            micro_batch //= 2
""", """        for stage in (1, 2, 3):
            micro_batch = job.micro_batch
            while micro_batch >= 1:
                remedy = Remedy(stage, checkpointing, offload, micro_batch)
                if peak_bytes(job, remedy) <= usable:
                    return remedy
                micro_batch //= 2
""")),
    Mistake("usable is not looked at", edit("<= usable", "<= USABLE")),
    Mistake("GiB for GB", edit("<= usable", "<= usable / 1e9 * 2**30")),
    Mistake("no logits", edit("LOGITS * tokens * job.vocab\n    if", "0 * tokens\n    if")),
    Mistake("no logits", edit(
        "logits = LAYER * tokens * job.hidden, LOGITS * tokens * job.vocab\n    if",
        "logits = LAYER * tokens * job.hidden, 2 * tokens * job.vocab\n    if")),
    Mistake("logits and layer at the same time", edit("max(layer, logits)", "layer + logits")),
    Mistake("no layer is recomputed", edit("max(layer, logits)", "logits")),
    Mistake("checkpoints are free", edit(KEPT, "kept = 0 * tokens")),
    Mistake("one checkpoint", edit(KEPT, "kept = INPUT * tokens * job.hidden")),
    Mistake("a checkpoint in fp32", edit(KEPT, KEPT.replace("INPUT", "4"))),
    Mistake("one layer's activations", edit("kept = job.layers * layer + logits",
        "kept = layer + logits")),
    Mistake("tokens of one sequence", edit(
        "tokens = remedy.micro_batch * job.seq\n    layer, logits = LAYER * tokens * job.hidden, "
        "LOGITS * tokens * job.vocab\n    if", "tokens = job.seq\n    layer, logits = LAYER * "
        "tokens * job.hidden, LOGITS * tokens * job.vocab\n    if")),
    Mistake("no unsharded units", edit("2 * (2 + 2) * n / job.layers if", "0.0 if")),
    Mistake("no unsharded units", edit("2 * (2 + 2) * n / job.layers if",
        "(2 + 2) * n / job.layers if")),
    Mistake("units at every stage", edit(" if remedy.stage == 3 else 0.0", "")),
    Mistake("offload of everything", edit(
        '"gradients": gradients,', '"gradients": 0.0 if remedy.offload else gradients,')),
    Mistake("offload does nothing", edit("0.0 if remedy.offload else optimizer", "optimizer")),
    Mistake("limits for formulas", edit("sharded = [N if", "sharded = [1e9 if")),
    Mistake("everything is sharded", edit("N if remedy.stage >= first else 1", "N")),
)  # fmt: skip
