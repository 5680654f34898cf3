"""Turns the course into a book that is read in a browser. `make book` writes the book to
build/book, without running a notebook. The book works from any folder and without a server.

    solutions/lab0_concepts.ipynb  --notebooks.py-->  a notebook with the student's sources
                                                      and the outputs of our run
                                   --sections.py--->  one notebook per section
    landing.html, glossary         -----Sphinx----->  one page each (conf.py; myst-nb; theme/)

notebooks.py     chooses what a page shows of a lab: no answers, and no outputs of checks
sections.py      splits a lab's notebook into one page per section
landing.py       writes the first page: runs to replay, a figure of each lab, how to begin
formulas.py      turns TeX into MathML
pages.py         an extension of Sphinx, for formulas, alt texts of figures, and the search
search.py        writes the index of the search; progress.py shows a bar while Sphinx works
runs.py          records runs of the notebooks' cells; animations.py draws them, frame by frame
theme/           the template of each page
static/          the style and the scripts of all pages

The scripts are book.js (guesses and replays), explorers.js (the figures with sliders, for which
formulas.js computes and charts.js draws) and search.js.
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
    """Build the book from the solutions in `root`, and put it in `out`, where it replaces an older
    one. Returns the number of its pages.

    Raises CourseError if Sphinx is not installed, or if it gives a warning.
    """
    try:
        import sphinx  # noqa: F401
    except ImportError:
        raise CourseError(
            "the book needs Sphinx: pip install -e '.[book]', or `make book`"
        ) from None
    # the old book stays until the new one is complete
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
    """Turn work/sources into work/html. Returns Sphinx's warnings."""
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
    """Write the folder that Sphinx reads: settings, style, animated figures, the labs' sections,
    and three more pages."""
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
    """Write the animated figures. Returns {id of the cell below which a figure is shown: (the
    figure's name, its alt text)}."""
    # imported here, because it needs matplotlib, and other commands should not wait for that
    from . import animations

    found = {}
    for name, data in runs.stored().items():
        frames = getattr(animations, name)(data)
        animations.write(figures, name, frames)
        found[runs.RUNS[name][1]] = name, frames[-1][1]
    return found
