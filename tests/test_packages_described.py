"""Every package's `__init__.py` says what is in it: all of its files, and none that is gone."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

LIB = Path(__file__).parents[1] / "lib"
BY_KIND = {"plots"}  # a file for each kind of figure: the package names what they are drawn with
PACKAGES = {path.parent.relative_to(LIB).as_posix() for path in LIB.rglob("__init__.py")} - {"."}


def named(docstring):
    """The patterns of files in a docstring, such as ring.py and *_wrong.py; a command
    stands for __main__.py."""
    return {*re.findall(r"[\w*]+\.py\b", docstring.replace("python -m lib.", "__main__.py "))}


@pytest.mark.parametrize("package", sorted(PACKAGES - BY_KIND))
def test_a_package_names_all_of_its_files_and_no_others(package):
    patterns = named(
        ast.get_docstring(ast.parse((LIB / package / "__init__.py").read_text(encoding="utf-8")))
    )
    files = {path.name for path in (LIB / package).glob("*.py")} - {"__init__.py"}
    found = {pattern: {path.name for path in (LIB / package).glob(pattern)} for pattern in patterns}
    assert set().union(*found.values()) == files
    assert [pattern for pattern, names in found.items() if not names] == []


def test_a_file_that_is_gone_would_be_found():
    assert named("a.py b_c.py   *_wrong.py; `python -m lib.cost x` d.pyx") == {
        "a.py", "b_c.py", "*_wrong.py", "__main__.py",
    }  # fmt: skip


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_says_what_it_exports(package):
    module = importlib.import_module(f"lib.{package.replace('/', '.')}")
    assert len(module.__all__) == len(set(module.__all__)) > 0
    for name in module.__all__:
        if not hasattr(module, name):  # a file or a package of it, which nobody has imported so far
            assert importlib.util.find_spec(f"{module.__name__}.{name}"), name
