r"""Turns formulas into MathML when the book is built. They then need no script and no font from us,
and can be printed and read aloud.

    $\alpha + n\beta$   --->   <math><mi>α</mi><mo>+</mo><mi>n</mi><mi>β</mi></math>

All major browsers have supported MathML Core since 2023. The converter is math-core (MIT licence),
which raises an error for a command that it does not know.
"""

import re
from functools import cache

FORMULA = re.compile(r"(?<!\\)(?P<dollars>\$\$?)(?P<tex>[^$]+)(?P=dollars)")


@cache
def _converter():
    from math_core import LatexToMathML  # here, because only building the book needs it

    return LatexToMathML()


def mathml(tex: str, display: bool = False) -> str:
    """The formula as an element <math>. Raises ValueError, which names the formula, for TeX that
    math-core does not understand."""
    try:
        return _converter().convert_with_local_state(tex, displaystyle=display)
    except Exception as error:  # math-core's errors have no public base class
        raise ValueError(f"formula {tex!r}: {error}") from None


def block(tex: str) -> str:
    """The formula on a line of its own."""
    return f'<div class="formula">{mathml(tex, display=True)}</div>'


def in_html(html: str) -> str:
    """The HTML with its $formulas$ as MathML, because Markdown does not convert formulas within
    HTML."""
    return FORMULA.sub(
        lambda found: (block if found["dollars"] == "$$" else mathml)(found["tex"]), html
    )
