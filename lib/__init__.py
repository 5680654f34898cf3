"""The course's shared package: collectives and parallel modules built on send and receive."""

import importlib.abc
import json
import re
import sys
from pathlib import Path

__all__ = ["__version__"]


def __getattr__(name):
    if name != "__version__":
        raise AttributeError(f"module 'lib' has no attribute {name!r}")
    import importlib.metadata

    try:
        return importlib.metadata.version("distributed-training-labs")
    except importlib.metadata.PackageNotFoundError:  # used from a folder, without being installed
        return "0+unknown"


class _Moved(importlib.abc.MetaPathFinder):
    """The last finder on sys.meta_path. If a program imports a module by its name in an earlier
    edition, it raises an ImportError that gives the new name."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("lib."):
            table = json.loads(
                (Path(__file__).parent / "check" / "renamed.json").read_text(encoding="utf-8")
            )
            if new := table["modules"].get(fullname):
                raise ImportError(
                    f"{fullname} is now {new}: change the import.{_merging()}", name=fullname
                )
        return None


def _merging():
    """How to bring the notebook up to date, as a sentence; "" outside of a lab's notebook."""
    from lib import here

    notebook = here.opened()
    number = re.match(r"lab(\d+)_", notebook.name) if notebook else None
    if not number:
        return ""
    return (
        f" A notebook of an earlier edition: save it and run `make merge LAB={number[1]}`, "
        f"which brings it up to date."
    )


sys.meta_path.append(_Moved())
