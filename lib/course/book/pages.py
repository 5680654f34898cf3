"""What is done to a page that Sphinx has read: each figure gets its description."""

from docutils import nodes

from lib.course import notebook

from .notebooks import pictures


def describe(app, doctree):
    """Give each figure of a lab its alt text, which is the claim that the figure shows and what is drawn."""
    path = app.srcdir / f"{app.env.docname}.ipynb"
    if not path.exists():
        return
    images, drawn = list(doctree.findall(nodes.image)), list(pictures(notebook.read(path)))
    for image, output in zip(images, drawn, strict=True):
        image["alt"] = output.metadata["image/png"]["alt"]
