"""Writes the repository's address where it is shown outside of the labs: in README.md, in the
citation, and in the notebook for Kaggle's GPUs.

The address is defined only in pyproject.toml, as `project.urls.Repository` (see build.address).
`python -m lib.course build` writes what depends on it: badges and the command that clones, between
two comments of README.md; a line of .github/CITATION.cff; and the address from which
tests/gpu/kaggle.ipynb fetches the course. Without an address it removes them.
"""

import re
from pathlib import Path

from . import build
from .notebook import CourseError

README, CITATION, KAGGLE = "README.md", ".github/CITATION.cff", "tests/gpu/kaggle.ipynb"
BEGIN, END = "<!-- from the address in pyproject.toml -->\n", "<!-- end -->\n"


def write(root: Path) -> list[str]:
    """Update these files to the address. Returns the names of those that have changed. Raises
    CourseError if the address is malformed, or if README.md lacks one of the two comments."""
    address, changed = build.address(root), []
    for name, made in ((README, readme), (CITATION, citation), (KAGGLE, kaggle)):
        path = root / name
        if path.exists():
            old = path.read_text(encoding="utf-8")
            new = made(old, address)
            if new != old:
                path.write_text(new, encoding="utf-8")
                changed.append(name)
    return changed


def readme(text: str, address: str) -> str:
    """The text of README.md for this address ("" if there is none). Raises CourseError if there is
    an address, and README.md lacks one of the two comments."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        if not address:
            return text
        raise CourseError(
            f"{README} needs the lines {BEGIN.strip()!r} and {END.strip()!r}, for what needs the "
            f"address"
        )
    return before + BEGIN + (_shown(address) if address else "") + END + after


def _shown(address: str) -> str:
    clone = f"```\ngit clone {address}.git && cd {address.rsplit('/', 1)[1]}\n```\n"
    if not address.startswith(build.GITHUB):
        return clone
    owner, name = address.removeprefix(build.GITHUB).split("/")[:2]
    tests = f"{address}/actions/workflows/test.yml"
    colab, kaggle = build.rented("lab0_concepts", address)
    links = [
        f"[![tests]({tests}/badge.svg)]({tests})",
        f"[![Open Lab 0 in "
        f"Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})",
        f"[![Open Lab 0 in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]({kaggle})",
        f"[Read the book](https://{owner.lower()}.github.io/{name}/)",
    ]
    return "\n".join(links) + f"\n\n{clone}"


def citation(text: str, address: str) -> str:
    """The text of CITATION.cff for this address ("" if there is none)."""
    kept = [line for line in text.splitlines() if not line.startswith("repository-code:")]
    at = next((i for i, line in enumerate(kept, 1) if line.startswith("license:")), len(kept))
    return (
        "\n".join([*kept[:at], *([f'repository-code: "{address}"'] if address else []), *kept[at:]])
        + "\n"
    )


def kaggle(text: str, address: str) -> str:
    """The text of the notebook for Kaggle's GPUs, in which a cell fetches the course from this
    address ("" if there is none)."""
    return re.sub(r'(?<=ADDRESS = \\")[^"\\]*(?=\\")', address, text)
