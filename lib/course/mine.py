"""A student's own copies of the labs, labs/mine/*.ipynb. Each is made once, and only `merge`, which
puts its answers into a new edition, ever replaces it.

    python -m lib.course.mine open 0   make labs/mine/lab0_concepts.ipynb unless it exists,
                                       and open it
    python -m lib.course.mine copy     only make the copies, for every lab
    python -m lib.course.mine merge 0  put the answers of the copy into the edition
                                       that is in labs/ now

`make lab` and `make merge` call these, in the repository and in a release. Git ignores the folder,
so `git pull` can change labs/ without touching a student's work. JupyterLab is started with the
course's folder first in PYTHONPATH, so that its kernels import the lib that belongs to the labs,
even if another clone is installed in the same environment.
"""

import argparse
import os
import platform
import sys
from pathlib import Path
from urllib.parse import quote

import nbformat
from nbformat import NotebookNode

from . import answers, carry, edition, notebook
from .notebook import CourseError


def copy(root: Path, lab: str) -> list[str]:
    """Make labs/mine/`lab`.ipynb unless it exists. Returns what the student should know, as a list
    of sentences.

    If labs/ itself already has answers, they are copied too. Raises CourseError if the copy cannot
    be made.
    """
    path, name, own = notebook.own_path(root, lab), f"labs/{lab}.ipynb", f"labs/mine/{lab}.ipynb"
    if not path.exists():
        written = edition.answered(_of_course(root, lab))
        _write(for_this_python(notebook.lab_path(root, lab).read_bytes()), path)
        if not written:
            return [f"{own} is your own copy of this lab, and no update will overwrite it."]
        back = (
            f"; `git checkout {name}` restores the course's own file"
            if (root / ".git").exists()
            else ""
        )
        return [
            f"{own} is your own copy of this lab, with your answers from {name} "
            f"({', '.join(written)}){back}."
        ]
    merging = f"`make merge LAB={notebook.number(lab)}`"
    try:
        ours, copied = _of_course(root, lab), _of_student(root, lab)
    except CourseError as error:  # the copy is opened all the same
        return [str(error)]
    if edition.of(ours) != edition.of(copied):
        return [
            f"{name} is a different edition of this lab from your copy: {merging} puts your "
            f"answers into it."
        ]
    if left := _left_behind(ours, copied):
        return [
            f"{name} has answers that are missing from your copy ({', '.join(left)}): {merging} "
            f"adds them."
        ]
    return []


def for_this_python(content: bytes) -> bytes:
    """The notebook with the metadata that a kernel of this Python gives it.

    JupyterLab adds this metadata when it opens a notebook, and then shows the notebook as unsaved
    if the metadata was not there before. The course's own files do not name a version, because they
    must be the same everywhere.
    """
    nb = nbformat.v4.reads(content.decode("utf-8"))
    nb.metadata.update(
        nbformat.from_dict({
            "kernelspec": {**notebook.KERNELSPEC, "language": "python"},
            "language_info": {**notebook.LANGUAGE_INFO, "version": platform.python_version()},
        })
    )  # fmt: skip
    return notebook.to_bytes(nb)


def merge_edition(root: Path, lab: str) -> list[str]:
    """Put what the student wrote in labs/mine/`lab`.ipynb into the edition in labs/. Returns
    sentences that say what was done.

    The earlier copy is kept next to it. Raises CourseError, and leaves the copy as it was, if there
    is no copy, if it is another lab's, or if a file cannot be read or written.
    """
    path, own = notebook.own_path(root, lab), f"labs/mine/{lab}.ipynb"
    if not path.exists():
        raise CourseError(
            f"there is no {own} to merge: `make lab LAB={notebook.number(lab)}` creates it"
        )
    new, old = _of_course(root, lab), _of_student(root, lab)
    added = _left_behind(new, old)
    if edition.of(new) == edition.of(old) and not added:
        return [f"{own} already has the edition of labs/, so there is nothing to merge."]
    carried = carry.carry_over(new, old)
    if not carried.found:
        raise CourseError(
            f"{own} has none of this lab's answer cells: is it the notebook of another lab?"
        )
    if error := next(nbformat.validator.iter_validate(carried.notebook), None):
        raise CourseError(
            f"{own} has an invalid cell ({error.message[:200]}): open and save it in JupyterLab"
        )
    kept = _free_name(path)
    _write(path.read_bytes(), kept)
    _write(for_this_python(notebook.to_bytes(carried.notebook)), path)
    said = _said(own, lab, carried, bool(edition.cells(old)))
    if added:
        said.append(
            f"These answers from labs/{lab}.ipynb are now in your copy: {', '.join(added)}."
        )
    return [*said, f"Your copy from before the merge is labs/mine/{kept.name}."]


def _said(own: str, lab: str, carried: carry.Carried, known: bool) -> list[str]:
    """What a merge did, in sentences. known: whether the copy's metadata names its edition."""
    counts = (
        (len(carried.answers), "answer", "answers"),
        (len(carried.changed), "other cell that you changed", "other cells that you changed"),
        (carried.own, "cell of your own", "cells of your own"),
    )
    told = (
        ", ".join(f"{n} {one if n == 1 else many}" for n, one, many in counts if n)
        or "no changes of your own"
    )
    said = [f"{own} now has the new edition, with {told}; if it is open in JupyterLab, reload it."]
    if carried.outdated:
        names, text = ", ".join(carried.outdated), f"labs/{lab}.ipynb"
        said.append(
            f"Some exercises have changed, so compare your answers with their new text in {text}: "
            f"{names}."
        )
    if carried.given_up:
        names = ", ".join(carried.given_up)
        said.append(f"Some cells that you had changed now have the course's text: {names}.")
    if not known:
        said.append(
            "Your copy has no edition id, so changes to cells other than answers could not be "
            "found."
        )
    return said + [f"{note}." for note in carried.notes]


def _left_behind(ours: NotebookNode, copied: NotebookNode) -> list[str]:
    """The grade_ids of answers that are written in labs/ but not in the copy."""
    return sorted(set(edition.answered(ours)) - set(edition.answered(copied, edition.cells(ours))))


def _of_course(root: Path, lab: str) -> NotebookNode:
    """labs/`lab`.ipynb. If it cannot be read, raises CourseError, which says what to do."""
    path, name = notebook.lab_path(root, lab), f"labs/{lab}.ipynb"
    try:
        return notebook.read(path)
    except CourseError as error:
        if b"\n<<<<<<< " in path.read_bytes():
            text = (
                f"{name} contains a merge conflict: restore your file with `git merge --abort`, "
                f"and then try again"
            )
            raise CourseError(text) from None
        raise CourseError(f"{error}: fetch {name} again from where you got the course") from None


def _of_student(root: Path, lab: str) -> NotebookNode:
    nb, trouble = answers.read_notebook(notebook.own_path(root, lab))
    if trouble:
        raise CourseError(f"labs/mine/{trouble}; rename it, and `make lab` makes a new copy")
    return nb


def _free_name(path: Path) -> Path:
    """lab0_concepts_before_merge.ipynb, or if that exists, the first of ..._before_merge_2, 3, ...
    that does not."""
    numbers = ("", *(f"_{number}" for number in range(2, 1000)))
    names = (path.with_name(f"{path.stem}_before_merge{number}.ipynb") for number in numbers)
    return next(name for name in names if not name.exists())


def _write(content: bytes, path: Path) -> None:
    try:
        notebook.write_bytes(content, path)
    except OSError as error:
        raise notebook.refusal(error, path) from None


def jupyterlab(root: Path, page: str, options: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command that opens `page`, a path below root, in JupyterLab, and its environment."""
    command = [sys.executable, "-m", "jupyterlab", *(["--allow-root"] if os.geteuid() == 0 else [])]
    command += [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{quote(page)}",
        *options,
    ]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return command, {**os.environ, "PYTHONPATH": path}


def main(argv: list[str] | None = None, root: Path = notebook.ROOT) -> int:
    """Run the command line `argv` and return the exit code. With `open`, JupyterLab then replaces
    this process."""
    parser = argparse.ArgumentParser(
        prog="python -m lib.course.mine", description="A student's own copies of the labs."
    )
    parser.add_argument("command", choices=["open", "copy", "merge"])
    parser.add_argument("lab", nargs="?", help="0, lab0 or lab0_concepts; default: every lab")
    args, options = parser.parse_known_args(argv)
    if options and args.command != "open":
        parser.error(f"unknown options: {' '.join(options)}")
    if args.command == "merge" and not args.lab:
        parser.error("name the lab to merge, for example `merge 0`")
    try:
        labs = notebook.labs(root, [args.lab] if args.lab else None, "labs")
        for lab in labs:
            for line in (merge_edition if args.command == "merge" else copy)(root, lab):
                print(line, flush=True)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.command == "open":
        command, environment = jupyterlab(
            root, f"labs/mine/{labs[0]}.ipynb" if args.lab else "labs/mine", options
        )
        os.chdir(root)
        os.execve(command[0], command, environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
