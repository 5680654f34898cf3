r"""Formulas as MathML, written when the book is built: they need no script, no font of ours, and
print and speak well.

    $\alpha + n\beta$   --->   <math><mi>α</mi><mo>+</mo><mi>n</mi><mi>β</mi></math>

All browsers have drawn MathML Core since 2023. math-core (MIT) stops at a command that it does not
know.
"""

import re
from functools import cache

FORMULA = re.compile(r"(?<!\\)(?P<dollars>\$\$?)(?P<tex>[^$]+)(?P=dollars)")


@cache
def _converter():
    from math_core import LatexToMathML  # here: only who builds the book has it

    return LatexToMathML()


def mathml(tex: str, display: bool = False) -> str:
    """The formula as an element <math>. Raises ValueError, naming the formula, for TeX that
    is not understood."""
    try:
        return _converter().convert_with_local_state(tex, displaystyle=display)
    except Exception as error:  # math-core's errors have no public base class
        raise ValueError(f"formula {tex!r}: {error}") from None


def block(tex: str) -> str:
    """The formula on a line of its own."""
    return f'<div class="formula">{mathml(tex, display=True)}</div>'


def in_html(html: str) -> str:
    """HTML with its $formulas$ written as MathML; Markdown leaves HTML as it is."""
    return FORMULA.sub(
        lambda found: (block if found["dollars"] == "$$" else mathml)(found["tex"]), html
    )
