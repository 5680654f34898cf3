"""The rooms of lib import downward only; parallel modules never import each other.
See the table below."""

import pathlib

from lib.course.rooms import imports_of

LIB = pathlib.Path(__file__).parents[1] / "lib"
LEDGER = {"backend", "ledger"}
COLLECTIVES = LEDGER | {"collectives"}
BELOW_PARALLEL = COLLECTIVES | {"training", "measuring"}
PARALLEL = {"data_parallel", "pipeline", "tensor_parallel", "zero", "moe"}
MAY_IMPORT = {
    "linux": set(),
    "here": {"backend", "launch", "linux"},
    "backend": set(),
    "ledger": {"backend"},
    "launch": {"backend", "ledger", "linux"},
    "collectives": LEDGER,
    "training": COLLECTIVES,
    "measuring": COLLECTIVES | {"launch", "linux", "training"},
    **dict.fromkeys(PARALLEL, BELOW_PARALLEL),
    "hybrid": BELOW_PARALLEL | PARALLEL | {"launch"},
    "cost": {"collectives", "pipeline"},
    "plots": {"cost", "ledger", "pipeline"},
    "explore": {"plots", "cost", "collectives", "pipeline"},
    # fingerprints are compared, packages are drawn, and the figures of the web book move
    "course": {"check", "linux", "plots", "explore"},
    "demo": BELOW_PARALLEL | PARALLEL | {"launch", "cost", "plots"},
    "check": None,  # everything
}


def violations(lib):
    for path in sorted(lib.rglob("*.py")):
        room = path.relative_to(lib).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        allowed = MAY_IMPORT.get(room, set())
        for target in imports_of(path):
            if target != room and allowed is not None and target not in allowed:
                yield f"{path.relative_to(lib)} imports lib.{target}"


def test_every_room_is_in_the_table():
    rooms = {
        p.name.removesuffix(".py")
        for p in LIB.iterdir()
        if p.suffix in ("", ".py") and not p.name.startswith("__")
    }
    assert rooms <= set(MAY_IMPORT)


def test_imports_go_downward_only():
    assert list(violations(LIB)) == []


def test_course_and_cost_do_without_torch():
    for room in ("course", "cost"):
        for path in (LIB / room).rglob("*.py"):
            assert "import torch" not in path.read_text(), path


def test_an_upward_import_would_be_found(tmp_path):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "x.py").write_text("def f():\n    from lib import launch\n")
    assert list(violations(tmp_path)) == ["ledger/x.py imports lib.launch"]
