"""What is done to the pages that Sphinx reads and writes: formulas become MathML, figures
get their alt text."""

from docutils import nodes

from lib.course import notebook

from . import formulas
from .notebooks import pictures


def setup(app):
    """Make this module an extension of Sphinx."""
    inline, block = (_formula(written) for written in (formulas.mathml, formulas.block))
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("doctree-read", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _formula(written):
    def visit(writer, node):
        writer.body.append(written(node.astext()))
        raise nodes.SkipNode  # what is inside has been written

    return visit


def describe(app, doctree):
    """Give each figure of a lab its alt text, which is the claim that the figure shows and
    what is drawn."""
    path = app.srcdir / f"{app.env.docname}.ipynb"
    if not path.exists():
        return
    images, drawn = list(doctree.findall(nodes.image)), list(pictures(notebook.read(path)))
    for image, output in zip(images, drawn, strict=True):
        image["alt"] = output.metadata["image/png"]["alt"]
