"""Every room's `__init__.py` says what is in it: all of its files, and none that is gone."""

import ast
import re
from pathlib import Path

import pytest

LIB = Path(__file__).parents[1] / "lib"
BY_KIND = {"plots"}  # a file for each kind of figure: the room names what they are drawn with
ROOMS = {path.parent.relative_to(LIB).as_posix() for path in LIB.rglob("__init__.py")} - {"."}


def named(docstring):
    """The patterns of files in a docstring, such as ring.py and *_wrong.py; a command
    stands for __main__.py."""
    return {*re.findall(r"[\w*]+\.py\b", docstring.replace("python -m lib.", "__main__.py "))}


@pytest.mark.parametrize("room", sorted(ROOMS - BY_KIND))
def test_a_room_names_all_of_its_files_and_no_others(room):
    patterns = named(
        ast.get_docstring(ast.parse((LIB / room / "__init__.py").read_text(encoding="utf-8")))
    )
    files = {path.name for path in (LIB / room).glob("*.py")} - {"__init__.py"}
    found = {pattern: {path.name for path in (LIB / room).glob(pattern)} for pattern in patterns}
    assert set().union(*found.values()) == files
    assert [pattern for pattern, names in found.items() if not names] == []


def test_a_file_that_is_gone_would_be_found():
    assert named("a.py b_c.py   *_wrong.py; `python -m lib.cost x` d.pyx") == {
        "a.py", "b_c.py", "*_wrong.py", "__main__.py"
    }  # fmt: skip
