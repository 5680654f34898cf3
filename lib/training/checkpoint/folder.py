"""A folder of checkpoints, each complete or absent: written under another name, synced, renamed.

    folder/
        step_00000038/             complete: named when every byte of every rank was on disk
        step_00000040/
        step_00000042.unfinished/  being written, or left by a run that was killed: never loaded

    publish     .unfinished --rename--> step_00000042    step_00000038 --rename--> .removed --> gone

A rename happens or does not (POSIX), so a run killed at any moment leaves the checkpoint before it
intact. But a file system may bring a rename to disk before the contents of what it renames (Pillai
et al. 2014, "All File Systems Are Not Created Equal"), and then lose power: hence fsync first. Old
ones go only afterwards, and renamed first: a folder half removed must not look complete.

A rename cannot replace a folder. A checkpoint of the same step makes room first, renamed to
step_00000042.replaced, which counts as complete while nothing else has the name.
"""

import contextlib
import os
import re
import shutil
from pathlib import Path

KEEP = 2  # the last one, and one more in case that is damaged
WHOLE = re.compile(r"step_(\d{8,})(\.replaced)?")
LEFTOVER = re.compile(r"step_\d{8,}\.(unfinished|replaced|removed)")


def name_of(step):
    """42 -> "step_00000042"."""
    return f"step_{step:08d}"


def step_of(path):
    """The inverse of `name_of`, for the path of a checkpoint."""
    return int(WHOLE.fullmatch(path.name)[1])


def checkpoints(folder):
    """{step: path} of the complete ones, in the order of steps. Empty without such a folder."""
    found = {}
    # .replaced first: the plain name has precedence
    for path in sorted(Path(folder).glob("step_*"), reverse=True):
        if WHOLE.fullmatch(path.name):
            found[step_of(path)] = path
    return dict(sorted(found.items()))


def latest(folder):
    """The last step of which `folder` holds a complete checkpoint, None if there is none.
    Asks no other rank."""
    return max(checkpoints(folder), default=None)


def unfinished(folder, step):
    """Where the checkpoint of `step` is written."""
    return Path(folder) / f"{name_of(step)}.unfinished"


def clear_leftovers(folder):
    """Remove what a save that was killed has left. Only one process calls it, while none writes."""
    for path in sorted(Path(folder).glob("step_*")):
        whole = path.with_suffix("")
        if not LEFTOVER.fullmatch(path.name):
            continue
        if path.suffix == ".replaced" and not whole.exists():
            path.rename(whole)  # killed between the first two renames of `publish`
        else:
            shutil.rmtree(path)


def publish(folder, step):
    """Give the finished checkpoint of `step` its name, then remove all but the last KEEP. Only one
    process calls it."""
    whole = Path(folder) / name_of(step)
    replaced = whole.with_suffix(".replaced")
    if whole.exists():
        whole.rename(replaced)
    unfinished(folder, step).rename(whole)
    sync_folder(folder)
    old = list(checkpoints(folder).values())[:-KEEP]
    for path in [*old, replaced] if replaced.exists() else old:
        removed = path.with_suffix(".removed")
        path.rename(removed)
        sync_folder(folder)
        shutil.rmtree(removed)


@contextlib.contextmanager
def on_disk(path, open=open):
    """A new file to write bytes to; afterwards its contents are on disk, not only with the
    operating system.

    open(path, mode): Python's own, or that of a slow disk.
    """
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder):
    """Bring a folder's names to disk: a file's own fsync does not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
