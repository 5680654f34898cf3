r"""Formulas as MathML, written when the book is built: they need no script, no font of ours, and print and speak well.

    $\alpha + n\beta$   --->   <math><mi>α</mi><mo>+</mo><mi>n</mi><mi>β</mi></math>

All browsers have drawn MathML Core since 2023. math-core (MIT) stops at a command that it does not know.
"""

import re
from functools import cache

FORMULA = re.compile(r"(?<!\\)(?P<dollars>\$\$?)(?P<tex>[^$]+)(?P=dollars)")


@cache
def _converter():
    from math_core import LatexToMathML  # here: only who builds the book has it

    return LatexToMathML()


def mathml(tex: str, display: bool = False) -> str:
    """The formula as an element <math>. Raises ValueError, naming the formula, for TeX that is not understood."""
    try:
        return _converter().convert_with_local_state(tex, displaystyle=display)
    except Exception as error:  # math-core's errors have no public base class
        raise ValueError(f"formula {tex!r}: {error}") from None


def in_html(html: str) -> str:
    """HTML with its $formulas$ written as MathML; Markdown leaves HTML as it is."""
    return FORMULA.sub(lambda found: _block(found["tex"]) if found["dollars"] == "$$" else mathml(found["tex"]), html)


def _block(tex: str) -> str:
    return f'<div class="formula">{mathml(tex, display=True)}</div>'


def visit_inline(writer, node):
    """Sphinx writes a formula in a line."""
    writer.body.append(mathml(node.astext()))
    _leave()


def visit_block(writer, node):
    """Sphinx writes a formula on a line of its own."""
    writer.body.append(_block(node.astext()))
    _leave()


def _leave():
    from docutils.nodes import SkipNode

    raise SkipNode  # what is inside has been written
