"""Output that only makes sense for a person in front of a notebook, such as a line of progress.
Programs that execute a notebook, to store, compare or grade its outputs, should not receive it.

    attended()         does a person see this cell's output? If not, print text only
    can_ask()          can a person answer a question, here or in a terminal?
    show(text, html)   displays HTML; a terminal, nbval and nbgrader see `text` instead
    Line()             one line below the cell, which is rewritten in place

JupyterLab, VS Code and Colab run a cell with `allow_stdin`, because a person could answer a
question, whereas nbval, nbclient, nbconvert and nbgrader run it without. From this flag we know
whether a person is there. The environment variables LAB_STATIC=1 and LAB_REPORT, which a grader
sets, also mean that no person sees the output.
"""

import contextlib
import os
import sys
import uuid
from collections.abc import Callable

# {name: function that draws}. Packages that may not import lib.plots find its functions here, where
# lib.plots registers them.
figures: dict[str, Callable] = {}


def kernel():
    """The Jupyter kernel of this process; None in a script, a terminal or a rank."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None)


def attended() -> bool:
    """Does a person see the output of the cell that is running now?"""
    if os.environ.get("LAB_STATIC") == "1" or "LAB_REPORT" in os.environ:
        return False
    return bool(_request().get("content", {}).get("allow_stdin"))


def can_ask() -> bool:
    """Can a person answer `input` now, in a notebook or in a terminal?"""
    if kernel() is not None:
        return attended()
    return "LAB_REPORT" not in os.environ and all(
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)
    )


def show(text: str, html: str) -> None:
    """Display `html`, and store it together with `text`, a plain-text version of it. If the cell
    has a Line, the output replaces it."""
    name = Line._name if Line._name and Line._cell == _cell() else None
    Line._name = ""
    _publish({"text/plain": text, "text/html": html}, display_id=name, update=name is not None)


class Line:
    """One line of plain text in the output of the cell. All Lines of a cell use the same output, so
    a new one replaces the previous one."""

    _cell, _name = "", ""  # the id of the cell's request, see _cell(); the display id of its line

    def __init__(self):
        self.text = ""

    def write(self, text: str) -> None:
        """Show `text` in place of what the line showed before; "" makes the line invisible."""
        if text == self.text:
            return
        cell, self.text = _cell(), text
        begun = cell == Line._cell and Line._name != ""
        if not begun:
            Line._cell, Line._name = cell, uuid.uuid4().hex
        # as HTML, because a front end adds empty lines around plain text
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
    """The message that this kernel is handling, such as a request to run a cell; {} if this process
    has no kernel."""
    with contextlib.suppress(AttributeError, LookupError):
        return kernel().get_parent() or {}
    return {}
