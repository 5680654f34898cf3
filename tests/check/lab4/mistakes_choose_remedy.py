"""Known mistakes of choose_remedy, each named after its cause."""

from mistakes import Mistake, edit

ORDER = "for offload, checkpointing in product((False, True), repeat=2):"
STAGES, KEPT = "for stage in (1, 2, 3):", "kept = job.layers * INPUT * tokens * job.hidden"
MISTAKES = (
    Mistake("checkpointing after offload",
        edit(ORDER, ORDER.replace("offload, checkpointing in", "checkpointing, offload in")),
        "offload is the most expensive remedy: try everything without it before anything with it."),
    Mistake("offload is never tried", edit(ORDER, "for offload, checkpointing in ((False, False), "
        "(False, True)):"), "the last remedies have offload=True."),
    Mistake("checkpointing is always on", edit(ORDER, "for offload, checkpointing in ((False, "
        "True), (True, True)):"), "a job that fits without checkpointing must not pay for it."),
    Mistake("only stage 3", edit(STAGES, "for stage in (3,):"),
        "take the lowest stage that fits."),
    Mistake("only stage 3", edit(STAGES, "for stage in (3, 2, 1):")),
    Mistake("no stage 3", edit(STAGES, "for stage in (1, 2):"), "stages are 1, 2 and 3."),
    Mistake("data parallelism too", edit(STAGES, "for stage in (0, 1, 2, 3):"),
        "stage 0 is not among the remedies: stage 1 sends the same and keeps less."),
    Mistake("the micro-batch is left as it is", edit("micro_batch //= 2", "micro_batch = 0"),
        "a smaller micro-batch comes before checkpointing: halve it until it is 1."),
    Mistake("one less at a time", edit("micro_batch //= 2", "micro_batch -= 1"),
        "micro-batches are halved, not reduced by 1."),
    Mistake("1 is left out", edit("while micro_batch >= 1:", "while micro_batch > 1:"),
        "the smallest micro-batch is one sequence."),
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
"""), "a higher stage is cheaper than a smaller micro-batch: try all stages before you halve it."),
    Mistake("usable is not looked at", edit("<= usable", "<= USABLE"),
        "compare with the argument `usable`."),
    Mistake("GiB for GB", edit("<= usable", "<= usable / 1e9 * 2**30"),
        "`usable` and the peak are both in bytes: compare them as they are."),
    Mistake("no logits", edit("LOGITS * tokens * job.vocab\n    if", "0 * tokens\n    if"),
        "the logits are missing: 6 bytes per token and entry of the vocabulary."),
    Mistake("no logits", edit(
        "logits = LAYER * tokens * job.hidden, LOGITS * tokens * job.vocab\n    if",
        "logits = LAYER * tokens * job.hidden, 2 * tokens * job.vocab\n    if")),
    Mistake("logits and layer at the same time", edit("max(layer, logits)", "layer + logits"),
        "the loss is computed before the last layer is recomputed: the larger of the two counts."),
    Mistake("no layer is recomputed", edit("max(layer, logits)", "logits"),
        "while a checkpointed layer is recomputed all its activations are there: the larger of "
        "these and the logits."),
    Mistake("checkpoints are free", edit(KEPT, "kept = 0 * tokens"),
        "every layer's input stays: 2 bytes per token and hidden unit."),
    Mistake("one checkpoint", edit(KEPT, "kept = INPUT * tokens * job.hidden"),
        "every layer keeps its input, not one of them."),
    Mistake("a checkpoint in fp32", edit(KEPT, KEPT.replace("INPUT", "4")),
        "the inputs are in 16 bits, 2 bytes each."),
    Mistake("one layer's activations", edit("kept = job.layers * layer + logits",
        "kept = layer + logits"), "without checkpointing all layers keep theirs until backward."),
    Mistake("tokens of one sequence", edit(
        "tokens = remedy.micro_batch * job.seq\n    layer, logits = LAYER * tokens * job.hidden, "
        "LOGITS * tokens * job.vocab\n    if", "tokens = job.seq\n    layer, logits = LAYER * "
        "tokens * job.hidden, LOGITS * tokens * job.vocab\n    if"),
        "a micro-batch has micro_batch * seq tokens."),
    Mistake("no unsharded units", edit("2 * (2 + 2) * n / job.layers if", "0.0 if"),
        "at stage 3 two units are unsharded, with their full gradients: 8 bytes per parameter of a "
        "layer."),
    Mistake("no unsharded units", edit("2 * (2 + 2) * n / job.layers if",
        "(2 + 2) * n / job.layers if")),
    Mistake("units at every stage", edit(" if remedy.stage == 3 else 0.0", ""),
        "only stage 3 unshards units. At stages 1 and 2 the weights are full anyway."),
    Mistake("offload of everything", edit(
        '"gradients": gradients,', '"gradients": 0.0 if remedy.offload else gradients,'),
        "offload moves the 12 bytes of the optimizer to the host; weights and gradients stay."),
    Mistake("offload does nothing", edit("0.0 if remedy.offload else optimizer", "optimizer"),
        "with offload the optimizer's 12 bytes are in the host's memory."),
    Mistake("limits for formulas", edit("sharded = [N if", "sharded = [1e9 if"),
        "4 and 2 bytes are limits for many ranks: divide by the number of GPUs."),
    Mistake("everything is sharded", edit("N if remedy.stage >= first else 1", "N"),
        "stage 1 shards the optimizer's 12 bytes, stage 2 also the gradient, stage 3 all."),
)  # fmt: skip
