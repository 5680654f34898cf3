"""What had another name in the previous edition says what it is called now."""

import importlib
import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest

import lib
from lib import here
from lib.check import exercises

TABLE = json.loads(
    (Path(lib.__file__).parent / "check" / "renamed.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("old", TABLE["modules"])
def test_an_import_by_the_old_name_of_a_module_names_the_new_one(old):
    new = TABLE["modules"][old]
    with pytest.raises(ImportError, match=rf"^{old} is now {new}: change the import\.$"):
        importlib.import_module(old)
    assert importlib.util.find_spec(new)


def test_from_lib_import_says_it_too_and_other_names_are_missing_as_ever():
    with pytest.raises(ImportError, match=r"lib\.model is now lib\.training\.model"):
        from lib import model  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'lib\.nothing'"):
        importlib.import_module("lib.nothing")
    with pytest.raises(AttributeError, match="module 'lib' has no attribute 'nothing'"):
        lib.nothing  # noqa: B018


def test_in_a_lab_it_says_how_the_answers_get_into_the_new_edition(monkeypatch, tmp_path):
    monkeypatch.setattr(here, "opened", lambda: tmp_path / "lab3_tensor_parallel.ipynb")
    with pytest.raises(ImportError, match="save it and run `make merge LAB=3`"):
        importlib.import_module("lib.splits")


def test_the_new_names_of_exercises_are_exercises_and_their_old_ones_are_none():
    for new, names in TABLE["exercises"].items():
        assert new in exercises.FUNCTIONS
        assert not set(names) & set(exercises.FUNCTIONS)


def test_lib_says_its_version():
    assert lib.__version__ == importlib.metadata.version("distributed-training-labs")
