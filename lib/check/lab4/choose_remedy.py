"""Lab 4, section 9: choose_remedy(job, usable), the cheapest remedy with which a job fits into the
memory of its GPUs.

A verdict says that a remedy is too expensive or does not fit, but not which one is right.
"""

from lib.check.causes import hints
from lib.check.explain import cut
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.cost.clinic import PATIENTS, USABLE, Job, Remedy, choose_remedy, peak_bytes

ROOMY = [(job, usable) for job in PATIENTS[:2] for usable in (100e9, 180e9)]
CLINIC = [(job, USABLE) for job in PATIENTS]
# a peak that floats represent exactly, though a GPU's share is not an integer number of parameters
EXACT = Job("an exact fit", 2.0**30 + 1, 16, 1024, 2**15, 1024, 1, 4)
FULL = peak_bytes(EXACT, Remedy(1, False, False, 1))
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
    (EXACT, FULL), (EXACT._replace(name="a byte too many"), FULL - 1),
]  # fmt: skip
HOPELESS = [
    (Job("too long", 70.6e9, 80, 8192, 128_256, 32_768, 1, 8), USABLE),
    (Job("too large for two", 405e9, 126, 16_384, 128_256, 8192, 1, 2), USABLE),
]
JOBS = {
    f"{job.name}, {usable / 1e9:.0f} GB usable": (job, usable)
    for job, usable in (*CLINIC, *ROOMY, *OTHERS, *HOPELESS)
}
BEST = {name: choose_remedy(*job) for name, job in JOBS.items()}
CASES = here(*JOBS)
FORM, OFTEN, SELDOM = "a Remedy", "None, though one fits", "one, though none fits"
NO_STAGE, SIZE, DEAR, LARGE = "stage 0", "the micro-batch", "the price", "the peak"
WRONG = (FORM, OFTEN, SELDOM, NO_STAGE, SIZE, DEAR, LARGE)


def script(make, case, show):
    job, usable = JOBS[case.what]
    got = show.run(make, job, usable)
    name, text = _wrong(got, BEST[case.what], job)
    for one in WRONG:
        show(one, text if one == name else "")


def _wrong(got, best, job):
    """(which of WRONG it is, in words), or ("", "")."""
    if got is None:
        return (OFTEN, "got None, but there is a remedy") if best else ("", "")
    is_remedy = getattr(got, "_fields", None) == Remedy._fields
    if not is_remedy or [*map(type, got)] != [int, bool, bool, int]:
        return FORM, f"expected a Remedy of an int, two bools and an int, or None, got {cut(got)}"
    if got == best:
        return "", ""
    said = f"got {', '.join(f'{name} {value}' for name, value in got._asdict().items())}"
    if got.stage == 0:
        return NO_STAGE, said
    if best is None:
        return SELDOM, f"{said}; it does not fit"
    if got.micro_batch not in {job.micro_batch >> i for i in range(job.micro_batch.bit_length())}:
        return SIZE, said
    if _price(got) > _price(best):
        return DEAR, f"{said}: a cheaper remedy fits"
    return LARGE, f"{said}: with it the peak is above what is usable"


def _price(remedy):
    return remedy.offload, remedy.checkpointing, -remedy.micro_batch, remedy.stage


def _of(jobs):
    return WRONG, [case for case in CASES if JOBS[case.what] in jobs]


MEASURE = SideBySide(script, choose_remedy, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("the five patients", 6, "Llama 3 8B and 70B on 8 and 64 GPUs", _of(CLINIC)),
    ("larger GPUs", 1, "100 and 180 GB usable", _of(ROOMY)),
    ("other jobs", 3, "long sequences, few layers, one GPU", _of(OTHERS)),
    ("no remedy is enough", 2, "None"),
    hints=hints("lab4", "choose_remedy"),
    leaves_out=LEAVES_OUT | {"returned": "a named tuple, or None"},
)  # fmt: skip
