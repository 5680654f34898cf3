"""An extension of Sphinx: it writes formulas as MathML, gives figures their alt text, lets wide
tables scroll, and writes the index of our search."""

from docutils import nodes
from sphinx.writers.html5 import HTML5Translator

from lib.course import notebook

from . import formulas, search
from .notebooks import pictures
from .sections import MINUTES


def setup(app):
    """Sphinx calls this function when it loads the extension."""
    inline, block = (_formula(written) for written in (formulas.mathml, formulas.block))
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_node(nodes.table, override=True, html=(_open_table, _close_table))
    app.connect("doctree-read", describe)
    app.connect("builder-inited", _without_sphinx_search)
    app.connect("html-page-context", _shorter_contents)
    app.connect("build-finished", search.write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _formula(written):
    def visit(writer, node):
        writer.body.append(written(node.astext()))
        raise nodes.SkipNode  # the formula has been written already

    return visit


def _open_table(writer, node):
    writer.body.append('<div class="scrolls">')
    HTML5Translator.visit_table(writer, node)


def _close_table(writer, node):
    HTML5Translator.depart_table(writer, node)
    writer.body.append("</div>")


def _without_sphinx_search(app):
    """Switch off Sphinx's own search: its results are whole pages, and it can show excerpts only if
    a server serves the book."""
    app.builder.search = False


def _shorter_contents(app, page, template, context, doctree):
    """In a page's table of contents, name an exercise without its length."""
    context["toc"] = MINUTES.sub("", context.get("toc", ""))


def describe(app, doctree):
    """Give each figure of a lab its alt text, which says what the figure claims and what is
    drawn."""
    path = app.srcdir / f"{app.env.docname}.ipynb"
    if not path.exists():
        return
    images, drawn = list(doctree.findall(nodes.image)), list(pictures(notebook.read(path)))
    for image, output in zip(images, drawn, strict=True):
        image["alt"] = output.metadata["image/png"]["alt"]
