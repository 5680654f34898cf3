"""The course as a book in the browser: `make book` writes build/book, which works from any folder
and without a server.

    solutions/lab0_concepts.ipynb  --notebooks.py-->  a notebook with the student's sources
                                                      and our run's outputs
    index.md, glossary             -----Sphinx----->  a page each
                                                      (conf.py; myst-nb; sphinx-book-theme)

notebooks.py     what a page shows of a lab: no answer, no output of a check
formulas.py      TeX to MathML
pages.py         what Sphinx is told: formulas so, and figures get their alt text
explorers.py     each setting of a figure with sliders, drawn beforehand
runs.py          runs of the notebooks' cells, recorded; animations.py draws them, frame by frame
static/          the style and the script of all pages

Nothing here runs a notebook.
"""

import contextlib
import io
import os
import shutil
from pathlib import Path

from lib.course import build, notebook
from lib.course.notebook import CourseError

from . import explorers, notebooks, runs

__all__ = [
    "HERE", "CourseError", "build", "explorers", "make", "notebook", "notebooks", "runs",
    "write_animations", "write_sources",
]  # fmt: skip

HERE = Path(__file__).parent


def make(root: Path, out: Path) -> int:
    """Build the book of root's solutions in `out`, anew; returns the number of its pages.

    Raises CourseError where Sphinx is not installed, or has a warning.
    """
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        raise CourseError(
            "the book needs Sphinx: pip install -e '.[book]', or `make book`"
        ) from None
    # what is there of the book stays until the new one is whole
    work = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        write_sources(root, work / "sources")
        told = io.StringIO()
        folders = (work / "sources", work / "html")
        with contextlib.redirect_stderr(told):
            failed = build_main(
                ["-q", "-W", "--keep-going", "-j2", "-d", str(work / "read"), *map(str, folders)]
            )
        if failed:
            raise CourseError(f"Sphinx: {told.getvalue().strip()}")
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        os.replace(work / "html", out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return len(list(out.glob("*.html")))


def write_sources(root: Path, sources: Path) -> None:
    """The folder that Sphinx reads: settings, style, figures that move, the labs' notebooks
    and two pages."""
    shutil.copytree(HERE / "static", sources / "static")
    figures = sources / "static" / "figures"
    figures.mkdir()
    labs, address, sliders = notebook.labs(root), build.address(root), []
    settings = (HERE / "conf.py").read_text(encoding="utf-8")
    if address:
        buttons = {
            "repository_url": address,
            "use_repository_button": True,
            "use_issues_button": True,
        }
        settings += f"html_theme_options |= {buttons!r}\n"
    (sources / "conf.py").write_text(settings, encoding="utf-8")
    animated = write_animations(figures)
    for lab in labs:
        solution = notebook.read(notebook.solution_path(root, lab))
        page = build.from_address(notebooks.page(solution, animated), lab, address)
        notebook.write(page, sources / f"{lab}.ipynb")
        sliders += [
            name for cell in solution.cells for name in notebooks.EXPLORER.findall(cell.source)
        ]
    explorers.write(figures, sliders, root / "build" / "book-figures")
    index = (HERE / "index.md").read_text(encoding="utf-8").replace("LABS", "\n".join(labs))
    index = index.replace(
        "the repository", f"[the repository]({address})" if address else "the repository"
    )
    (sources / "index.md").write_text(index, encoding="utf-8")
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
        explorers.write_animation(figures, name, frames, animations.SECONDS[name])
        found[runs.RUNS[name][1]] = name, frames[-1][1]
    return found
