"""What is shown to a person in front of a notebook, and to nobody else.

    attended()         does a person look at this cell?      no: text alone is printed, as ever
    can_ask()          can a person answer a question, here or in a terminal?
    show(text, html)   an output that a terminal, nbval and nbgrader would read as `text`
    Line()             one line below the cell that is rewritten in place, and empty in the end

JupyterLab, VS Code and Colab run a cell with `allow_stdin`, because its author could answer a
question. nbval, nbclient, nbconvert and nbgrader run it without. What they store or compare
therefore contains none of this. LAB_STATIC=1 and a grader's LAB_REPORT switch it off as well.
"""

import contextlib
import os
import sys
import uuid
from collections.abc import Callable

# {name: function that draws}: lib.plots puts here what packages below it may want to show
figures: dict[str, Callable] = {}


def kernel():
    """The kernel that this process is; None in a script, a terminal or a rank."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None)


def attended() -> bool:
    """Does a person look at the output of the cell that runs now?"""
    if os.environ.get("LAB_STATIC") == "1" or "LAB_REPORT" in os.environ:
        return False
    return bool(_request().get("content", {}).get("allow_stdin"))


def can_ask() -> bool:
    """Can a person answer `input` now: in a notebook, or in a terminal?"""
    if kernel() is not None:
        return attended()
    return "LAB_REPORT" not in os.environ and all(
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)
    )


def show(text: str, html: str) -> None:
    """Display `html` where a person looks; it is stored together with `text`, which says the
    same. Where the cell has a Line, the output takes its place."""
    name = Line._name if Line._name and Line._cell == _cell() else None
    Line._name = ""
    _publish({"text/plain": text, "text/html": html}, display_id=name, update=name is not None)


class Line:
    """One line, as plain text, in the output of the cell; the lines of one cell share a place."""

    _cell, _name = "", ""  # the request of the cell that has a line, and the line's display id

    def __init__(self):
        self.text = ""

    def write(self, text: str) -> None:
        """Show `text` in place of what the line said before; "" leaves nothing to be seen."""
        if text == self.text:
            return
        cell, self.text = _cell(), text
        begun = cell == Line._cell and Line._name != ""
        if not begun:
            Line._cell, Line._name = cell, uuid.uuid4().hex
        # in a paragraph of its own, because a front end shows plain text with empty lines round it
        html = f'<div style="opacity: 0.75" role="status">{text}</div>' if text else ""
        data = {"text/plain": text, "text/html": html}
        _publish(data, display_id=Line._name, update=begun)


def _publish(data, **where):
    from IPython.display import publish_display_data

    name = where.pop("display_id", None)
    if name:
        where["transient"] = {"display_id": name}
    publish_display_data(data, **where)


def _cell():
    """The message id of the request that runs this cell."""
    return _request().get("header", {}).get("msg_id", "")


def _request():
    """The message that asked for what this kernel is doing; {} outside of a kernel."""
    with contextlib.suppress(AttributeError, LookupError):
        return kernel().get_parent() or {}
    return {}
