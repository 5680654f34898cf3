"""How long a lab takes a student, computed the same way for every lab.

    hours = words / 130 / 60                  a slow pace, because of the formulas
          + lines of given code / 12 / 60     that a student has to understand
          + minutes of exercises x 1.25 / 60  as announced; one in four is retried
          + seconds in which cells run / 3600

Words and lines are counted in the student's notebook. The minutes of an exercise are in its
heading, or else in italics below it, as in "*20 minutes, about 18 lines.*". The seconds are those
of an execution of the solution. They are stored in its metadata, rounded, and replaced only if a
later execution takes clearly longer or shorter, so that it does not otherwise change the notebook's
bytes.

given / written compares the lines of code that a student is given with the lines of our solutions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from . import build, core, notebook

WORDS_PER_MINUTE, LINES_PER_MINUTE, RETRIES = 130, 12, 1.25
MINUTES = re.compile(r"\b(\d+) minutes\b")
KEY, SECONDS = "course", "seconds"
SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)


@dataclass(frozen=True)
class Hours:
    """What a lab's hours are computed from. words, lines: what a student is given to read. written:
    the lines of our solutions. minutes: the time for the exercises. seconds: the time for which
    cells run."""

    words: int
    lines: int
    written: int
    minutes: int
    seconds: float

    @property
    def hours(self) -> float:
        reading = self.words / WORDS_PER_MINUTE + self.lines / LINES_PER_MINUTE
        return (reading + RETRIES * self.minutes + self.seconds / 60) / 60

    @property
    def rounded(self) -> float:
        """The hours, rounded to the nearest half hour."""
        return round(2 * self.hours) / 2

    @property
    def given_per_written(self) -> float:
        return self.lines / max(1, self.written)


def of(solution: NotebookNode, only_core: bool) -> Hours:
    """The hours of a solution notebook, for its core or for everything in it."""
    seconds = solution.metadata.get(KEY, {}).get(SECONDS, {})
    chosen = [part for part in core.parts(solution) if part[2] or not only_core]
    texts = [text for cell, text, _ in chosen if cell.cell_type == "markdown"]
    code = [cell for cell, *_ in chosen if cell.cell_type == "code"]
    return Hours(
        words=sum(_words(text) for text in texts),
        lines=sum(_lines(build.student_source(cell)) for cell in code),
        written=sum(_lines(text) for cell in code for text in SOLUTION.findall(cell.source)),
        minutes=sum(_minutes(text) for text in texts),
        seconds=seconds.get("core" if only_core else "whole", 0),
    )


def sentence(solution: NotebookNode) -> str:
    """The sentence in a lab's first cell that says how many hours the lab takes."""
    both = [of(solution, only_core).rounded for only_core in (True, False)]
    return (
        "The core path takes about **{:g} hours**, and the whole lab about **{:g} hours**.".format(
            *both
        )
    )


def table(root: Path, labs: list[str]) -> str:
    """A table with two rows for each lab: its core, and all of it."""
    lines = [
        f"{'':12} {'words':>6} {'code given':>10} {'written':>7} {'ratio':>5} {'exercises':>9} "
        f"{'runs':>6} {'hours':>5}"
    ]
    for lab in labs:
        solution = notebook.read(notebook.solution_path(root, lab))
        for what in ("core", "whole"):
            h = of(solution, what == "core")
            lines.append(
                f"{lab.split('_')[0] + ' ' + what:12} {h.words:6,} {h.lines:10} {h.written:7} "
                f"{h.given_per_written:5.1f} {h.minutes:5} min {h.seconds:4.0f} s {h.hours:5.1f}"
            )
    return "\n".join(lines)


def store(solution: NotebookNode, seconds: Mapping[str, float]) -> None:
    """Write into the notebook's metadata how long its cells ran. seconds: {cell id: its time}.

    A stored time is kept if the new one differs from it by at most 10 s or a quarter of it,
    whichever is more.
    """
    in_core = {cell.id for cell in core.cells(solution)}
    new = {
        "core": sum(took for cell_id, took in seconds.items() if cell_id in in_core),
        "whole": sum(seconds.values()),
    }
    old = solution.metadata.get(KEY, {}).get(SECONDS, {})
    kept = {
        what: old[what]
        if what in old and abs(took - old[what]) <= max(10, old[what] / 4)
        else round(took, -1)
        for what, took in new.items()
    }
    solution.metadata[KEY] = {SECONDS: {what: int(took) for what, took in kept.items()}}


def _words(text: str) -> int:
    return sum(any(char.isalnum() for char in word) for word in text.split())


def _lines(source: str) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())


def _minutes(text: str) -> int:
    """The minutes that are given in the heading with which `text` begins, or in the line in italics
    below it; else 0."""
    lines = [line for line in text.split("\n") if line.strip()][:2]
    if not lines or not core.HEADING.fullmatch(lines[0]):
        return 0
    below = lines[1] if len(lines) > 1 and lines[1].startswith("*") else ""
    found = MINUTES.search(lines[0]) or MINUTES.search(below)
    return int(found[1]) if found else 0
