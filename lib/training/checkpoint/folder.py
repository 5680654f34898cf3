"""A folder of checkpoints, each of which is complete or absent: it is written under another name,
synced to disk, and then renamed.

    folder/
        step_00000038/             complete: named when every byte of every rank was on disk
        step_00000040/
        step_00000042.unfinished/  being written, or left by a run that was killed: never loaded

    publish     .unfinished --rename--> step_00000042    step_00000038 --rename--> .removed --> gone

A rename is atomic (POSIX): it happens in full or not at all. A run that is killed at any moment
therefore leaves the previous checkpoint intact. However, a file system may write the rename to disk
before the contents of the renamed files (Pillai et al. 2014, "All File Systems Are Not Created
Equal"). If the power fails in between, a complete name is left on incomplete files, so we fsync the
contents first. Old checkpoints are removed only after the rename. Before that they are renamed as
well, because a half-removed folder must not look complete.

A rename cannot replace a folder that has files in it. An earlier checkpoint of the same step is
therefore renamed first, to step_00000042.replaced, and counts as complete until the new one exists.
"""

import contextlib
import os
import re
import shutil
from pathlib import Path

KEEP = 2  # the last one, and one more in case the last is damaged
WHOLE = re.compile(r"step_(\d{8,})(\.replaced)?")
LEFTOVER = re.compile(r"step_\d{8,}\.(unfinished|replaced|removed)")


def name_of(step):
    """42 -> "step_00000042"."""
    return f"step_{step:08d}"


def step_of(path):
    """The inverse of `name_of`, for the path of a checkpoint."""
    return int(WHOLE.fullmatch(path.name)[1])


def checkpoints(folder):
    """{step: path} of the complete checkpoints, by increasing step; empty if there is no folder."""
    found = {}
    # .replaced comes first, so a plain name of the same step overwrites it
    for path in sorted(Path(folder).glob("step_*"), reverse=True):
        if WHOLE.fullmatch(path.name):
            found[step_of(path)] = path
    return dict(sorted(found.items()))


def latest(folder):
    """The last step of which `folder` has a complete checkpoint, or None. Looks at the disk only,
    so ranks that call it at different moments may get different answers."""
    return max(checkpoints(folder), default=None)


def unfinished(folder, step):
    """The folder in which the checkpoint of `step` is written before it is published."""
    return Path(folder) / f"{name_of(step)}.unfinished"


def clear_leftovers(folder):
    """Remove what killed saves have left. Only one process may call it, and only while no
    checkpoint is being written."""
    for path in sorted(Path(folder).glob("step_*")):
        whole = path.with_suffix("")
        if not LEFTOVER.fullmatch(path.name):
            continue
        if path.suffix == ".replaced" and not whole.exists():
            path.rename(whole)  # killed between the first two renames of `publish`
        else:
            shutil.rmtree(path)


def publish(folder, step):
    """Give the finished checkpoint of `step` its name, and remove all but the last KEEP. Only one
    process may call it."""
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
    """A context with a new file to write bytes to. When it ends, the contents are on disk, and not
    only in the operating system's cache.

    open(path, mode): Python's own, or that of a slow disk.
    """
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder):
    """Write the names in a folder to disk, because an fsync of a file covers only its contents."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
