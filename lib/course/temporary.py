"""Temporary folders for a process that may be told to stop at any moment. SIGTERM is delayed while
a folder is made or removed, so that no folder is left behind.

    signal.signal(signal.SIGTERM, temporary.stop)      ends the process by SystemExit, so that each
    with temporary.folder("lab-run-") as at: ...       folder is removed on the way out
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

STOPPED = 143  # exit code: 128 + SIGTERM
_busy = _told = False


def stop(*_) -> None:
    """A handler of SIGTERM. It raises SystemExit, so that `finally` blocks end all that was started
    and remove the folders. A second signal does nothing, because it would interrupt that."""
    global _told
    before, _told = _told, True
    if not (before or _busy):
        sys.exit(STOPPED)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    global _busy
    _busy, before = True, _told
    try:
        yield
    finally:
        _busy = False
    if _told and not before:
        sys.exit(STOPPED)


@contextlib.contextmanager
def folder(prefix: str, within: Path | str | None = None) -> Iterator[Path]:
    """A new folder in `within`, by default the system's folder for temporary files. On exit it is
    removed, with all that is in it."""
    with _undisturbed():
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=within)
    try:
        yield Path(made.name).resolve()
    finally:
        with _undisturbed():
            made.cleanup()
