"""Merges a student's notebook with a new edition of its lab. The result has the cells of the new
edition, with what the student wrote in them, and the student's own cells.

The table says what a cell contains after the merge, depending on what has happened to it in the
student's copy and in the new edition.

    cell                    the student's copy  the new edition     after the merge
    answer                  written             any                 the student's,
                                                                    found by answers.py
                            still the stub      any                 the new stub
    other cell              changed             as before           the student's
                            changed             changed, or locked  the new one,
                                                                    and its id in `given_up`
                            as it was           any                 the new one
    the student's own cell                      not there           stays after the one before it
    changed, then removed from the course       not there           stays as the student's own cell

The fingerprints that edition.py stored show what the student has changed. A cell keeps its outputs
if its source stays the same.
"""

import copy
import re
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode

from . import answers, edition, notebook


@dataclass
class Carried:
    """The result of a merge. notebook: the new edition with the student's work. answers: grade_ids
    of the answers that were carried over. outdated: those of them whose stub has changed. changed,
    given_up: ids of other cells that the student had changed, and that kept this change or lost it.
    own: the number of the student's own cells. found: False if the lab has answer cells, but none
    was found in the student's notebook. notes: how answers were found."""

    notebook: NotebookNode
    answers: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    own: int = 0
    found: bool = True
    notes: list[str] = field(default_factory=list)


def carry_over(new: NotebookNode, old: NotebookNode) -> Carried:
    """Merge what the student wrote in `old` into `new`, the new edition of the lab. Neither of them
    is changed."""
    before, result = edition.cells(old), Carried(copy.deepcopy(new))
    theirs, missing, taken = {cell.get("id"): cell for cell in old.cells}, [], set()
    for cell in result.notebook.cells:
        mine, role = theirs.get(cell.id, {}), notebook.role(cell)
        if role == "answer":
            found = _answer(cell, new, old, before, result)
            missing.append(found.missing)
            taken |= {found.theirs, cell.source}
        elif mine.get("cell_type") == cell.cell_type:
            _other(cell, mine, before.get(cell.id), result)
        if (
            cell.cell_type == "code"
            and mine.get("cell_type") == "code"
            and mine.source == cell.source
        ):
            cell.outputs, cell.execution_count = (
                copy.deepcopy(mine.get("outputs", [])),
                mine.get("execution_count"),
            )
    result.found = not missing or not all(missing)
    stubs = {cell.id: edition.fingerprint(cell.source) for cell in new.cells}
    _own_cells(old, before, stubs, taken, result)
    return result


def _answer(
    cell: NotebookNode,
    new: NotebookNode,
    old: NotebookNode,
    before: dict[str, str],
    result: Carried,
) -> answers.Found:
    """Put the student's answer, if there is one, into `cell`. Returns what `answers.find` found."""
    stub, name = edition.fingerprint(cell.source), notebook.grade_id(cell)
    found = answers.find(cell, new, old.cells, cell.source, frozenset(before.values()))
    if found.written:
        cell.source = found.source
        result.answers.append(name)
        result.notes += found.notes
        if before.get(cell.id, stub) != stub:
            result.outdated.append(name)
    return found


def _other(cell: NotebookNode, mine: NotebookNode, before: str | None, result: Carried) -> None:
    if before is None or edition.fingerprint(mine.source) in (
        before,
        edition.fingerprint(cell.source),
    ):
        return
    if edition.fingerprint(cell.source) == before and not notebook.role(cell):
        cell.source = mine.source
        if "attachments" in mine:
            cell.attachments = copy.deepcopy(mine.attachments)
        result.changed.append(cell.id)
    else:
        result.given_up.append(cell.id)


def _own_cells(
    old: NotebookNode,
    before: dict[str, str],
    stubs: dict[str, str],
    taken: set[str],
    result: Carried,
) -> None:
    """Put the student's own cells into result.notebook, each after the cell that it followed.

    taken: the sources that were taken as answers.
    """
    ours = {cell.id: cell for cell in result.notebook.cells}
    texts = {edition.fingerprint(cell.source): cell.id for cell in ours.values()}
    ids_kept = any(cell.get("id") in ours for cell in old.cells)
    after, place = {None: []}, None  # {id of the cell that they follow (None: top): cells}
    for cell in old.cells:
        name, text = cell.get("id"), edition.fingerprint(cell.source)
        if name in ours:
            draft = notebook.role(ours[name]) == "answer" and text not in (
                before.get(name),
                stubs.get(name),
            )
            own = draft  # unless it was taken as the answer, see below
        elif name in before:
            own = text != before[name]
        elif before and ids_kept:
            own = True
        else:  # an editor replaced the ids, or the edition is unknown
            own = (
                text not in texts
                and text not in before.values()
                and (not ids_kept or notebook.is_invented(str(name)))
            )
        if own and cell.source.strip() and cell.source not in taken:
            after.setdefault(place, []).append(_freed(cell))
            result.own += 1
        place = name if name in ours else place if ids_kept else texts.get(text, place)
    used = set(ours)
    for number, cell in enumerate((cell for cells in after.values() for cell in cells), 1):
        if (
            not re.fullmatch(r"[\w-]{1,64}", (name := str(cell.get("id", ""))), re.ASCII)
            or name in used
        ):
            cell["id"] = f"own-{number}"
        used.add(cell["id"])
    result.notebook.cells = [
        *after[None],
        *(one for cell in result.notebook.cells for one in (cell, *after.get(cell.id, ()))),
    ]


def _freed(cell: NotebookNode) -> NotebookNode:
    """A copy of the student's own cell, unlocked and without a grade_id, because the student may
    have copied it from one of ours."""
    given = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
    free = {
        key: value
        for key, value in given.items()
        if key not in ("nbgrader", "editable", "deletable")
    }
    return nbformat.from_dict({**copy.deepcopy(cell), "metadata": free})
