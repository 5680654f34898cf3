"""The rooms of lib import downward only; parallel modules never import each other.
See the table below."""

import pathlib

from lib.course.rooms import imports_of

LIB = pathlib.Path(__file__).parents[1] / "lib"
LEDGER = {"backend", "ledger"}
COLLECTIVES = LEDGER | {"collectives"}
SHARED = {
    "model",
    "text",
    "buckets",
    "precision",
    "recompute",
    "clip",
    "checkpoint",
    "paced",
    "seeds",
}
PARALLEL = {"data_parallel", "pipeline", "tensor_parallel", "zero", "moe"}
BELOW_PARALLEL = COLLECTIVES | SHARED
MAY_IMPORT = {
    "linux": set(),
    "gpus": set(),
    "here": {"gpus", "launch", "linux"},
    "peers": set(),
    "cycle": set(),
    "backend": {"gpus", "peers"},
    "generators": {"backend"},
    "ledger": {"backend", "cycle"},
    "launch": {"backend", "generators", "ledger", "linux", "peers"},
    "collectives": LEDGER,
    "measure": {"launch", "linux"},
    "mfu": {"backend"},
    "interrupted": {"launch"} | COLLECTIVES | {"checkpoint", "model", "text"},
    "model": set(),
    "text": set(),
    "splits": COLLECTIVES,
    **dict.fromkeys(SHARED - {"model", "text"}, COLLECTIVES | SHARED),
    **dict.fromkeys(PARALLEL, BELOW_PARALLEL),
    "unequal": BELOW_PARALLEL,
    "automatic": BELOW_PARALLEL,
    "mesh": set(),
    "hybrid": BELOW_PARALLEL | PARALLEL | {"mesh"},
    "hunt": BELOW_PARALLEL | PARALLEL | {"mesh", "hybrid", "launch"},
    "cost": {"collectives", "pipeline"},
    "plots": {"cost", "cycle", "pipeline"},
    "explore": {"plots", "cost", "collectives", "pipeline"},
    "course": {
        "check",
        "linux",
        "plots",
        "explore",
    },  # fingerprints are compared; rooms are drawn; the book moves
    "beside": BELOW_PARALLEL | PARALLEL | {"launch", "cost"},
    "demo": BELOW_PARALLEL | PARALLEL | {"launch", "plots"},
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
