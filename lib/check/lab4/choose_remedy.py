"""Lab 4, section 9: choose_remedy(job, usable), the cheapest remedy with which a job fits into the
memory of its GPUs."""

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.pure import LEAVES_OUT, ONCE, asked, each, same_again
from lib.cost.clinic import PATIENTS, USABLE, Job, choose_remedy

FIELDS = ("stage", "checkpointing", "offload", "micro_batch")
ROOMY = [(job, usable) for job in PATIENTS[:2] for usable in (100e9, 180e9)]
CLINIC = [(job, USABLE) for job in PATIENTS]
OTHERS = [
    (Job("a long sequence", 8.03e9, 32, 4096, 128_256, 32_768, 1, 64), USABLE),
    (Job("a wide vocabulary", 2e9, 20, 2048, 600_000, 4096, 4, 16), USABLE),
    (Job("few layers", 10e9, 4, 12_288, 50_304, 16_384, 1, 512), 30e9),
    (Job("a small vocabulary", 30e9, 8, 16_384, 1000, 16_384, 3, 128), USABLE),
    (Job("micro-batches of 7", 1.5e9, 48, 1600, 50_304, 1024, 7, 2), 31e9),
    (Job("one GPU", 3e9, 32, 2560, 50_304, 2048, 1, 1), 30e9),
    (Job("two GPUs", 3e9, 16, 4096, 50_304, 8192, 8, 2), 40e9),
    (Job("two GPUs, 128,256 words", 3e9, 16, 2048, 128_256, 8192, 1, 2), 40e9),
    (Job("offload, then a smaller micro-batch", 70.6e9, 80, 8192, 128_256, 8192, 4, 8), USABLE),
]
HOPELESS = [
    (Job("too long", 70.6e9, 80, 8192, 128_256, 32_768, 1, 8), USABLE),
    (Job("too large for two", 405e9, 126, 16_384, 128_256, 8192, 1, 2), USABLE),
]
CASES = (*CLINIC, *ROOMY, *OTHERS, *HOPELESS)


def _words(job, usable):
    return f"{job.name}, {usable / 1e9:.0f} GB usable"


def _read(got, *_):
    if got is None:
        return None
    if not isinstance(got, tuple) or len(got) != len(FIELDS):
        return Problem(
            "form",
            f"expected a Remedy({', '.join(FIELDS)}) or None, got {got!r:.60}",
        )
    return tuple(got)


def _judge(got, *case):
    want = choose_remedy(*case)
    if got is not None and want is not None and tuple(want) == got:
        return None
    if got is None and want is None:
        return None
    if got is None:
        return Problem("value", "got None, but there is a remedy", {"none": True})
    said = f"got {', '.join(f'{name} {value}' for name, value in zip(FIELDS, got, strict=True))}"
    if want is None:
        return Problem("value", f"{said}; it does not fit", {"hopeless": True})
    dear = _cost(got) > _cost(tuple(want))
    text = "a cheaper remedy fits" if dear else "with it the peak is above what is usable"
    job, micro = case[0], got[3]
    no_such = micro not in {job.micro_batch >> i for i in range(job.micro_batch.bit_length())}
    return Problem("value", f"{said}: {text}", {"dear": dear, "no_such": no_such})


def _cost(remedy):
    stage, checkpointing, offload, micro_batch = remedy
    return offload, checkpointing, -micro_batch, stage


EXERCISE = Exercise(
    name="choose_remedy", reference=choose_remedy, worlds=(),
    measure=lambda fn: asked(fn, choose_remedy, CASES, read=_read),
    leaves_out=LEAVES_OUT | {"returned": "a named tuple, or None"},
    claims=(
        claim("the five patients", 6, "Llama 3 8B and 70B on 8 and 64 GPUs",
              each(CLINIC, _judge, _words), same_again(_words)),
        claim("larger GPUs", 1, "100 and 180 GB usable", each(ROOMY, _judge, _words)),
        claim("other jobs", 3, "long sequences, few layers, one GPU", each(OTHERS, _judge, _words)),
        claim("no remedy is enough", 2, "None", each(HOPELESS, _judge, _words)),
    ),
    hints=(
        s.CALLED_LIB.saying("the formulas are in the docstring: write them down."),
        Hint("not a Remedy", s.kind("form"),
             "return Remedy(stage, checkpointing, offload, micro_batch), or None."),
        Hint("None too often", s.fact("none"),
             "go on to the next remedy until all have been tried: all micro-batches down to 1, "
             "then checkpointing, then offload."),
        Hint("None too seldom", s.fact("hopeless"),
             "return None if even the most expensive remedy needs more than `usable`."),
        Hint("another micro-batch", s.kind("value", no_such=True),
             "micro-batches are job.micro_batch, half of it, a quarter and so on, rounded down."),
        Hint("too dear", s.kind("value", dear=True),
             "a cheaper remedy fits. Is one of the terms too large, or are the remedies tried in "
             "another order than that of the docstring?"),
        Hint("it does not fit", s.kind("value"),
             "the peak is higher than this remedy allows. Write down each of the terms for this "
             "job: model state, unsharded units, activations, logits. Which is missing or too "
             "small?"),
        ONCE,
        *s.ANYWHERE,
    ),
)  # fmt: skip

### BEGIN MISTAKES
from lib.check.mistakes import Mistake, edit  # noqa: E402

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
### END MISTAKES
