"""The packages of lib import downward only; parallel modules never import each other.
See the table below."""

import ast
import pathlib
from graphlib import CycleError, TopologicalSorter

import pytest

from lib.course.packages import imports_of

LIB = pathlib.Path(__file__).parents[1] / "lib"
LEDGER = {"backend", "ledger"}
COLLECTIVES = LEDGER | {"collectives"}
BELOW_PARALLEL = COLLECTIVES | {"training", "measuring"}
PARALLEL = {"data_parallel", "pipeline", "tensor_parallel", "zero", "moe"}
MAY_IMPORT = {
    "linux": set(),
    "here": {"backend", "launch", "linux"},
    "backend": set(),
    "cycle": set(),
    "ledger": {"backend", "cycle"},
    "frontend": set(),
    "launch": {"backend", "frontend", "ledger", "linux"},
    "collectives": LEDGER,
    "training": COLLECTIVES,
    "measuring": COLLECTIVES | {"launch", "linux", "training"},
    **dict.fromkeys(PARALLEL, BELOW_PARALLEL),
    "hybrid": BELOW_PARALLEL | PARALLEL | {"launch"},
    "cost": {"collectives", "pipeline"},
    "calibration": {"cost"},
    "plots": {"cost", "cycle", "frontend", "pipeline"},
    "explore": {"plots", "cost", "collectives", "pipeline"},
    # fingerprints are compared, packages are drawn, and the web book's figures move and its
    # explorers compute
    "course": {"check", "cost", "linux", "plots", "explore"},
    "demo": BELOW_PARALLEL | PARALLEL | {"launch", "cost", "plots"},
    "check": None,  # everything
}


def violations(lib):
    for path in sorted(lib.rglob("*.py")):
        package = path.relative_to(lib).parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        allowed = MAY_IMPORT.get(package, set())
        for target in imports_of(path):
            if target != package and allowed is not None and target not in allowed:
                yield f"{path.relative_to(lib)} imports lib.{target}"


def test_every_package_is_in_the_table():
    packages = {
        p.name.removesuffix(".py")
        for p in LIB.iterdir()
        if p.suffix in ("", ".py") and not p.name.startswith("__")
    }
    assert packages <= set(MAY_IMPORT)


def test_imports_go_downward_only():
    assert list(violations(LIB)) == []


def test_course_cost_and_calibration_do_without_torch():
    for package in ("course", "cost", "calibration"):
        for path in (LIB / package).rglob("*.py"):
            assert "import torch" not in path.read_text(), path


def test_an_upward_import_would_be_found(tmp_path):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "x.py").write_text("def f():\n    from lib import launch\n")
    assert list(violations(tmp_path)) == ["ledger/x.py imports lib.launch"]


def modules_imported(path):
    """The modules of the file's own folder, one of lib, that it imports, inside functions too."""
    modules, folder = {p.stem for p in path.parent.glob("*.py")}, path.parent.name
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[:2] == ["lib", folder]:
                yield parts[2] if len(parts) > 2 and parts[2] in modules else "__init__"


def in_order(folder):
    """The modules of a folder of lib, each after those that it imports. Raises CycleError."""
    graph = {path.stem: set(modules_imported(path)) for path in sorted(folder.glob("*.py"))}
    return list(TopologicalSorter(graph).static_order())


def test_no_modules_of_the_ledger_import_each_other_in_a_circle():
    assert {"read", "trace", "match", "words", "__init__"} <= set(in_order(LIB / "ledger"))


@pytest.mark.parametrize("line", ["from lib.ledger import a", "from lib.ledger.a import x"])
def test_a_circle_through_an_import_inside_a_function_would_be_found(tmp_path, line):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "a.py").write_text("from lib.ledger.b import f\nx = 1\n")
    (tmp_path / "ledger" / "b.py").write_text(f"def f():\n    {line}\n")
    with pytest.raises(CycleError, match="cycle"):
        in_order(tmp_path / "ledger")
