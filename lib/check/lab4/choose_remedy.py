"""Lab 4, section 9: choose_remedy(job, usable), the cheapest remedy with which a job fits into the
memory of its GPUs."""

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.pure import LEAVES_OUT, ONCE, asked, each, same_again
from lib.cost.clinic import PATIENTS, USABLE, Job, Remedy, choose_remedy, peak_bytes

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
EXACT = Job("an exact fit", 2.0**30, 16, 1024, 2**15, 1024, 1, 4)  # no term is rounded
OTHERS.append((EXACT, peak_bytes(EXACT, Remedy(1, False, False, 1))))
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
             "then checkpointing, then offload. Or one of the terms is too large."),
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
