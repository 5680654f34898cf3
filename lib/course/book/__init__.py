"""The course as a book in the browser: `make book` writes build/book, which works from any folder
and without a server.

    solutions/lab0_concepts.ipynb  --notebooks.py-->  a notebook with the student's sources
                                                      and our run's outputs
                                   --sections.py--->  one notebook per section
    landing.html, glossary         -----Sphinx----->  one page each (conf.py; myst-nb; theme/)

notebooks.py     what a page shows of a lab: no answer, no output of a check
sections.py      a lab's notebook as one page per section
landing.py       the first page: runs to play, a figure of each lab, how to begin
formulas.py      TeX to MathML
pages.py         what Sphinx is told: formulas so, and figures get their alt text
search.py        the index of the search; progress.py: a bar while Sphinx works
runs.py          runs of the notebooks' cells, recorded; animations.py draws them, frame by frame
theme/           the frame of each page
static/          the style and the scripts of all pages

The scripts: book.js (guesses, replays), explorers.js (the figures with sliders), which draws with
charts.js what formulas.js computes, and search.js.

Nothing here runs a notebook.
"""

import io
import os
import shutil
from pathlib import Path

from lib.course import build, notebook
from lib.course.notebook import CourseError

from . import landing, notebooks, runs, sections

__all__ = [
    "HERE", "CourseError", "build", "landing", "make", "notebook", "notebooks", "runs", "sections",
    "write_animations", "write_sources",
]  # fmt: skip

HERE = Path(__file__).parent


def make(root: Path, out: Path) -> int:
    """Build the book of root's solutions in `out`, anew; returns the number of its pages.

    Raises CourseError where Sphinx is not installed, or has a warning.
    """
    try:
        import sphinx  # noqa: F401
    except ImportError:
        raise CourseError(
            "the book needs Sphinx: pip install -e '.[book]', or `make book`"
        ) from None
    # what is there of the book stays until the new one is whole
    work = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        write_sources(root, work / "sources")
        if told := _sphinx(work):
            raise CourseError(f"Sphinx: {told}")
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        os.replace(work / "html", out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return len(list(out.glob("*.html")))


def _sphinx(work: Path) -> str:
    """Turn work/sources into work/html; returns what Sphinx warned of."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    from .progress import Status

    told, status, sources = io.StringIO(), Status(), str(work / "sources")
    try:
        with patch_docutils(sources), docutils_namespace():
            app = Sphinx(sources, sources, str(work / "html"), str(work / "read"), "html",
                         status=status, warning=told, parallel=2)  # fmt: skip
            app.build()
    finally:
        status.close()
    return told.getvalue().strip()


def write_sources(root: Path, sources: Path) -> None:
    """The folder that Sphinx reads: settings, style, figures that move, the labs' sections, and
    three pages."""
    shutil.copytree(HERE / "static", sources / "static")
    shutil.copytree(HERE / "theme", sources / "book")
    figures = sources / "static" / "figures"
    figures.mkdir()
    labs, address = notebook.labs(root), build.address(root)
    settings = (HERE / "conf.py").read_text(encoding="utf-8")
    settings += f"html_theme_options = {{'repository': {address!r}}}\n"
    (sources / "conf.py").write_text(settings, encoding="utf-8")
    animated = write_animations(figures)
    for lab in labs:
        page = notebooks.page(notebook.read(notebook.solution_path(root, lab)), animated)
        page = build.from_address(page, lab, address)
        for name, part in sections.split(lab, page).items():
            notebook.write(part, sources / f"{name}.ipynb")
    index = landing.page(root, labs, address, figures, dict(animated.values()))
    (sources / "index.md").write_text(index, encoding="utf-8")
    shutil.copy(HERE / "search.md", sources)
    rows = notebooks.glossary((HERE.parents[1] / "README.md").read_text(encoding="utf-8"))
    told = "What the labs' words are in Chinese, in simplified and in traditional characters."
    page = "\n".join(["# Glossary", "", told, "", *rows, ""])
    (sources / "glossary.md").write_text(page, encoding="utf-8")


def write_animations(figures: Path) -> dict[str, tuple[str, str]]:
    """Write the figures that move by themselves; {cell below which one stands: (its
    name, alt text)}."""
    # here: it needs matplotlib, which no other command of lib.course should wait for
    from . import animations

    found = {}
    for name, data in runs.stored().items():
        frames = getattr(animations, name)(data)
        animations.write(figures, name, frames)
        found[runs.RUNS[name][1]] = name, frames[-1][1]
    return found
