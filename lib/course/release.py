"""Writes a student bundle: a folder that can be installed and run by itself, without solutions and
hidden cases.

    labs/   the notebooks of the labs asked for, generated from solutions/
    lib/    without the pages for developers of lib; of lib/course, only what `make setup`, `make
            lab` and `make merge` need. The definitions that the labs ask students to write are
            taken out (strip_solutions.py). They are included as bytecode, lib/_reference.zip,
            because later labs and lib itself need them. Those of a lab that is over stay as source.
    tests/  those of the tools, and the quick test, but no test that contains an answer
    and     README.md, AGENTS.md (which asks assistants to be tutors), Makefile, environment.yml,
            pyproject.toml, LICENSE, .gitignore

Bytecode keeps nothing secret, because it can be decompiled. The same sources give the same bytes.
"""

import base64
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from . import build, notebook
from .notebook import CourseError
from .strip_solutions import Definition, strip_solutions

BUNDLE = Path(__file__).with_name("bundle")
ROOT_FILES = ("LICENSE", ".gitignore")
LIB_FILES = {".py", ".csv", ".md", ".json", ".toml", ".png"}
TESTS = (
    "conftest.py",
    "own_processes.py",
    "sweeps.py",
    "test_quick.py",
    "launch",
    "ledger",
    "test_backend.py",
    "test_model.py",
    "test_text.py",
)
# These files are for developers of lib. Of lib/course, a student needs only what `make setup`,
# `make lab` and `make merge` call.
LEFT_OUT = re.compile(
    r"lib/(course/(?!(answers|carry|edition|install|mine|notebook)\.py$).*|README\.md|packages\.png|check/README\.md)"
)
REQUIRES_PYTHON = re.compile(r'^requires-python = ".*"$', re.MULTILINE)


def release(
    root: Path, out: Path, labs: list[str], with_reference: list[str] = (), pythons: list[str] = ()
) -> dict:
    """Write the bundle of `labs` ("lab0_concepts", ...) to `out`, a folder that is new or empty.

    with_reference: labs that are over ("lab0_concepts", ...), whose definitions stay in lib as
    source.
    pythons: interpreters besides this one for which the bundle is made, such as "python3.12".
    Returns {"labs": [...], "withheld": ["lab0.broadcast", ...], "pythons": ["3.11", ...]}. Raises
    CourseError if `out` is not empty, or if the bundle cannot be made.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CourseError(f"{out} is there and is not empty: name a new folder, or empty this one")
    notebooks = {lab: _student_notebook(root, lab) for lab in labs}
    files, definitions = _lib(root, {lab.split("_")[0] for lab in with_reference})
    compiled = [_compile(python, definitions) for python in [sys.executable, *pythons]]
    versions = sorted({f"{major}.{minor}" for major, minor in (one["version"] for one in compiled)})
    for name in TESTS:
        files |= _copies(root, root / "tests" / name, {".py"})
    files |= {name: (root / name).read_bytes() for name in ROOT_FILES}
    files |= _own_files(root, labs, versions)
    files["lib/reference.py"] = (BUNDLE / "reference.py").read_bytes()
    files["lib/course/__init__.py"] = (BUNDLE / "course.py").read_bytes()
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for lab, student in notebooks.items():
        notebook.write(student, notebook.lab_path(out, lab))
    _write_zip(out / "lib" / "_reference.zip", compiled)
    return {"labs": labs, "withheld": sorted(definitions), "pythons": versions}


def _student_notebook(root: Path, lab: str):
    try:
        return build.of_lab(root, lab)
    except CourseError as error:
        raise CourseError(f"solutions/{lab}.ipynb: {error}") from None


def _copies(root: Path, path: Path, suffixes: set[str]) -> dict[str, bytes]:
    """{name relative to root: content} of a file, or of all files in a folder that have one of
    these suffixes."""
    paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in suffixes)
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in paths}


def _lib(root: Path, keep: set[str]) -> tuple[dict[str, bytes], dict[str, tuple[str, Definition]]]:
    """Return (lib's files as they are in the bundle, {"lab0.broadcast": (file, what was taken out
    of it)})."""
    files, definitions = _copies(root, root / "lib", LIB_FILES), {}
    files = {name: content for name, content in files.items() if not LEFT_OUT.fullmatch(name)}
    for name in [name for name in files if name.endswith(".py")]:
        try:
            stub, taken = strip_solutions(files[name].decode("utf-8"), keep)
        except CourseError as error:
            raise CourseError(f"{name}, {error}") from None
        if twice := set(taken) & set(definitions):
            raise CourseError(
                f"{name}: {min(twice)} is marked in {definitions[min(twice)][0]} already"
            )
        files[name] = stub.encode()
        definitions |= {key: (name, definition) for key, definition in taken.items()}
    return files, definitions


def _compile(python: str, definitions: dict[str, tuple[str, Definition]]) -> dict:
    """What bytecode.py, run by `python`, makes of the definitions: {"tag", "version", "code"}."""
    given = {
        key: [definition.text, file, definition.line]
        for key, (file, definition) in definitions.items()
    }
    command = [python, "-I", str(Path(__file__).with_name("bytecode.py"))]
    try:
        done = subprocess.run(
            command, input=json.dumps(given), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise CourseError(f"{python} cannot compile lib: {said.strip().splitlines()[-1]}") from None
    return json.loads(done.stdout)


def _write_zip(path: Path, compiled: list[dict]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for one in sorted(compiled, key=lambda one: one["tag"]):
            for key, code in sorted(one["code"].items()):
                # with a fixed date, so that the same sources give the same bytes
                entry = zipfile.ZipInfo(f"{one['tag']}/{key}", (1980, 1, 1, 0, 0, 0))
                archive.writestr(entry, base64.b64decode(code))


def _own_files(root: Path, labs: list[str], versions: list[str]) -> dict[str, bytes]:
    """README.md, AGENTS.md, Makefile, environment.yml and pyproject.toml, with what depends on the
    release filled in."""
    torch = re.search(
        r"^TORCH \?= (\S+)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )[1]
    listed = "\n".join(f"- `labs/{lab}.ipynb`" for lab in labs)
    blanks = {"@TORCH@": torch, "@LABS@": listed, "@PYTHON@": " or ".join(versions)}
    blanks["@FIRST@"] = labs[0].split("_")[0].removeprefix("lab")
    texts = {
        name: (BUNDLE / name).read_text(encoding="utf-8")
        for name in ("README.md", "AGENTS.md", "Makefile")
    }
    for blank, value in blanks.items():
        texts = {name: text.replace(blank, value) for name, text in texts.items()}
    minors = [int(version.removeprefix("3.")) for version in versions]
    others = "".join(
        f",!=3.{one}.*" for one in range(min(minors), max(minors)) if one not in minors
    )
    environment = (root / "environment.yml").read_text(encoding="utf-8")
    texts["environment.yml"] = re.sub(r"python=[\d.]+", f"python={versions[-1]}", environment)
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    allowed = f'requires-python = ">=3.{min(minors)},<3.{max(minors) + 1}{others}"'
    texts["pyproject.toml"] = REQUIRES_PYTHON.sub(allowed, project)
    return {name: text.encode() for name, text in texts.items()}
