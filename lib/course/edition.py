"""Finds which edition of a lab a notebook is, and what a student has changed in it since.

`stamp` writes this into the metadata of each lab that `build` generates:

    "course": {"edition": "5d41402abc4b", "cells": {"ring-answer": "1b2e3f4a", ...}}

The edition is a hash of the cells' ids, types and sources in their order, so it is the same on
every machine and does not depend on outputs. An editor keeps this metadata when it saves the
notebook. Therefore, if the source of a cell no longer has the stored fingerprint, the student has
changed the cell. An answer cell that was changed counts as answered.
"""

import hashlib
import json

from nbformat import NotebookNode, from_dict

from . import notebook

KEY = "course"


def fingerprint(source: str) -> str:
    """A short hash of a cell's source that ignores spaces at the ends of lines and empty
    lines around it."""
    lines = "\n".join(line.rstrip() for line in source.splitlines())
    return _hash(lines.strip("\n"))[:8]


def stamp(lab: NotebookNode) -> None:
    """Write the edition of the generated notebook `lab` and its cells' fingerprints
    into its metadata."""
    edition = _hash(json.dumps([[cell.id, cell.cell_type, cell.source] for cell in lab.cells]))[:12]
    cells = {cell.id: fingerprint(cell.source) for cell in lab.cells}
    lab.metadata[KEY] = from_dict({"edition": edition, "cells": cells})


def of(nb: NotebookNode) -> str:
    """The edition from which `nb` was made; "" for a notebook without one."""
    found = _stamp(nb).get("edition")
    return found if isinstance(found, str) else ""


def cells(nb: NotebookNode) -> dict[str, str]:
    """{cell id: fingerprint} of the edition from which `nb` was made; {} for a notebook without
    one."""
    found = _stamp(nb).get("cells")
    return (
        {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
    )


def answered(nb: NotebookNode, stubs: dict[str, str] | None = None) -> list[str]:
    """The grade_ids of the answer cells of `nb` that are no longer the stub of its own edition.

    stubs: {cell id: fingerprint} for a notebook without an edition. Without either, each answer
    cell counts. The cell for helper functions never counts if it contains only comments.
    """
    stubs = cells(nb) or stubs or {}
    found = [cell for cell in nb.cells if notebook.role(cell) == "answer"]
    found = [c for c in found if not notebook.is_for_helpers(c) or _has_code(c.source)]
    return [
        str(notebook.nbgrader(c).get("grade_id"))
        for c in found
        if fingerprint(c.source) != stubs.get(c.get("id"))
    ]


def _has_code(source: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in source.splitlines())


def _stamp(nb: NotebookNode) -> dict:
    found = nb.metadata.get(KEY) if isinstance(nb.get("metadata"), dict) else None
    return found if isinstance(found, dict) else {}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
