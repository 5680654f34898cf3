"""A student bundle holds no answer and no hidden case, and yet installs and works; a marker that is
wrong stops it."""

import ast
import filecmp
import marshal
import os
import re
import subprocess
import sys
import sysconfig
import types
import zipfile
from pathlib import Path

import pytest

from lib.course import bytecode, notebook, strip_solutions
from lib.course.__main__ import main
from lib.course.notebook import ROOT, CourseError

SOURCE = '''"""A module."""

import functools


# exercise: lab0.double
@functools.cache
def double(x):
    """Twice x."""
    # a comment of the body
    return secret_twice(x)


def plain(x):
    return secret_kept(x)


# exercise: lab1.Counter
class Counter:
    """Counts."""

    step = secret_step

    def __init__(self, start=0):
        # why so
        self.count = secret_start(start)

    def up(
        self,
    ):  # fmt: skip
        """One more."""
        self._more()

    def _more(self):
        self.count += 1


TABLE = dict(
    # exercise: lab0.cost
    time=lambda n: (
        secret_cost(n)
    ),
    size=lambda n: n,
)


def _halves(x):
    return secret_half(_rest(x))


def _rest(x):
    return secret_rest(x)


def _shared(x):
    return secret_shared(x)


# exercise: lab1.halved
def halved(x):
    """Half of x."""
    return _halves(x) + _shared(x)


def other(x):
    return _shared(x)
'''


def marks():
    """{"lab0.broadcast": [file, ...]} of all markers in lib."""
    found = {}
    for path in sorted((ROOT / "lib").rglob("*.py")):
        if "course" not in path.relative_to(ROOT).parts:
            for one in strip_solutions.marked(path.read_text(encoding="utf-8")):
                found.setdefault(one.key, []).append(path.relative_to(ROOT).as_posix())
    return found


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Labs 1 and 2, while Lab 0 is over; made by the command."""
    out = tmp_path_factory.mktemp("release") / "bundle"
    assert main(["release", str(out), "--lab", "1", "--lab", "2", "--with-reference", "lab0"]) == 0
    return out


def names_and_codes(bundle):
    with zipfile.ZipFile(bundle / "lib" / "_reference.zip") as archive:
        return {
            name.split("/")[1]: marshal.loads(archive.read(name)) for name in archive.namelist()
        }


# --- the markers


# which jobs of the hunt are wrong, and how: what the graded function is to find
NOT_GRADED = {"lab6.drawn"}


@pytest.mark.slow
def test_every_graded_function_of_a_lab_with_a_notebook_is_marked_once_and_nothing_else_is():
    from lib.check.exercises import FILES, MODULES

    numbers = {lab.split("_")[0] for lab in notebook.labs(ROOT)}
    assert {"lab0", "lab1", "lab2", "lab3", "lab4"} <= numbers <= set(FILES)
    lab_of = {
        part.name: module.__name__.split(".")[2]
        for module in MODULES
        for part in module.EXERCISE.parts
    }
    graded = {f"{lab}.{name}": lab for name, lab in lab_of.items()}
    found = marks()
    assert [key for key, files in found.items() if len(files) > 1] == []
    assert set(found) - set(graded) == NOT_GRADED, "a marker names no graded function"
    assert sorted({key for key, lab in graded.items() if lab in numbers} - set(found)) == [], (
        "not marked"
    )


def test_bodies_go_and_signatures_docstrings_and_all_else_stay():
    stub, taken = strip_solutions.strip_solutions(SOURCE)
    ast.parse(stub)
    helpers = {"lab1._halves", "lab1._rest"}
    assert set(taken) == {"lab0.double", "lab1.Counter", "lab0.cost", "lab1.halved", *helpers}
    assert re.findall(r"secret_\w+", stub) == ["secret_kept", "secret_shared"]
    for kept in (
        '"""Twice x."""',
        "@functools.cache",
        "def __init__(self, start=0):",
        '"""One more."""',
        "size=lambda n: n",
    ):
        assert kept in stub
    for gone in ("a comment of the body", "why so", "_more", "step ="):
        assert gone not in stub
    assert 'Counter = reference("lab1.Counter", globals())' in stub
    assert '    time=reference("lab0.cost", globals()),' in stub
    lines = stub.splitlines()
    assert lines[taken["lab0.double"].line - 1] == "@functools.cache"
    assert lines[taken["lab0.cost"].line - 1].strip().startswith("time=")
    over, taken = strip_solutions.strip_solutions(SOURCE, ["lab0"])
    assert (
        "secret_twice" in over
        and "secret_cost" in over
        and set(taken) == {"lab1.Counter", "lab1.halved", *helpers}
    )
    assert strip_solutions.strip_solutions(SOURCE, ["lab0", "lab1"]) == (SOURCE, {})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("# exercise lab0.f\ndef f():\n    pass\n", "line 1: '# exercise lab0.f' is no marker"),
        ("#exercise: lab0.f\ndef f():\n    pass\n", "is no marker"),
        ("# exercise: lab0.f\n\ndef f():\n    pass\n", "must stand right above"),
        (
            "# exercise: lab0.g\ndef f():\n    pass\n",
            "must stand right above the definition of that name",
        ),
        ("# exercise: lab0.f\ndef f():\n    pass\n", "needs a docstring"),
        ('# exercise: lab0.f\ndef f(): """In one line."""\n', "needs a docstring on its own lines"),
        (
            "x = dict(\n    # exercise: lab0.f\n    f=lambda: 1, g=lambda: 2)\n",
            "nothing but a comma may follow",
        ),
    ],
)
def test_a_marker_that_would_leave_the_body_in_stops_the_release(source, message):
    with pytest.raises(CourseError, match=re.escape(message)):
        strip_solutions.strip_solutions(source)


def test_all_of_a_compiled_definition_says_the_line_it_is_given():
    code = marshal.loads(
        bytecode.compiled(
            "def f(x):\n    def g():\n        return x\n    return g\n", "lib/a.py", 7
        )
    )
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    assert {line for one in [code, *inner] for *_, line in one.co_lines() if line} <= {0, 7}
    assert inner[0].co_filename == "lib/a.py"


# --- the bundle


def test_it_holds_the_labs_asked_for_as_labs_holds_them(bundle):
    assert [path.stem for path in sorted((bundle / "labs").iterdir())] == [
        "lab1_data_parallel",
        "lab2_pipeline_parallel",
    ]
    for path in (bundle / "labs").iterdir():
        assert filecmp.cmp(path, ROOT / "labs" / path.name, shallow=False)
    assert {path.name for path in bundle.iterdir()} == {
        "labs", "lib", "tests", "README.md", "Makefile", "pyproject.toml", "environment.yml",
        "LICENSE", ".gitignore", "AGENTS.md",
    }  # fmt: skip
    assert not list(bundle.rglob("__pycache__"))
    of_course = {path.stem for path in (bundle / "lib" / "course").iterdir()}
    assert of_course == {"__init__", "answers", "carry", "edition", "install", "mine", "notebook"}
    assert not re.search(
        "@[A-Z]+@", (bundle / "README.md").read_text() + (bundle / "Makefile").read_text()
    )
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f'requires-python = ">={version},<' in (bundle / "pyproject.toml").read_text()


def test_every_link_on_its_pages_leads_to_a_file_of_it(bundle):
    pages = {page.relative_to(bundle).as_posix(): page for page in bundle.rglob("*.md")}
    assert {"README.md", "lib/cost/README.md", "lib/launch/README.md"} <= set(pages)
    for name, page in pages.items():
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{name}: {link}"


def test_no_answer_and_no_hidden_case_is_in_it(bundle):
    """Neither our solutions' lines nor those of withheld definitions; that lines are found is seen
    where they stay."""
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in bundle.rglob("*")
        if path.suffix in (".py", ".ipynb", ".md")
    }
    whole = "\n".join(texts.values())
    assert (
        "### BEGIN" not in whole
        and "HIDDEN TESTS" not in whole
        and "answers_" not in whole
        and "mistakes_" not in whole
    )
    labs = "\n".join(
        cell.source
        for path in texts
        if path.suffix == ".ipynb"
        for cell in notebook.read(path).cells
    )
    for lab in ("lab1_data_parallel", "lab2_pipeline_parallel"):
        for exercise in notebook.exercises(notebook.read(notebook.solution_path(ROOT, lab))):
            for answer in exercise.answers:
                body = answer.source.split("### BEGIN SOLUTION")[1].split("### END SOLUTION")[0]
                assert body.strip() not in labs, (exercise.id, body)
    for path in sorted((ROOT / "lib").rglob("*.py")):
        name = path.relative_to(ROOT)
        if "course" in name.parts:
            continue
        source, shipped = (
            path.read_text(encoding="utf-8"),
            (bundle / name).read_text(encoding="utf-8"),
        )
        for one in strip_solutions.marked(source):
            body = one.node.body[1:] if hasattr(one.node, "body") else [one.node.value]
            longest = max((ast.get_source_segment(source, part) for part in body), key=len)
            assert (longest in shipped) == (one.lab == "lab0"), (one.key, longest)


def test_what_is_withheld_is_there_as_bytecode_and_what_is_over_is_not(bundle):
    keys = set(marks())
    withheld = {key for key in keys if not key.startswith("lab0.")}
    codes = names_and_codes(bundle)
    assert {key for key in codes if "._" not in key} == withheld and len(withheld) > 30
    assert all(not os.path.isabs(code.co_filename) for code in codes.values())
    assert filecmp.cmp(
        bundle / "lib/collectives/ring.py", ROOT / "lib/collectives/ring.py", shallow=False
    )


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes(bundle, tmp_path):
    again = tmp_path / "again"
    assert main(["release", str(again), "--lab", "1", "--lab", "2", "--with-reference", "0"]) == 0
    files = sorted(path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file())
    files = [
        path for path in files if "__pycache__" not in path.parts and "egg-info" not in str(path)
    ]
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(bundle, again, [str(path) for path in files], shallow=False)[1:] == (
        [],
        [],
    )


def test_a_folder_with_something_in_it_an_unknown_lab_and_an_odd_python_are_refused(
    tmp_path, capsys
):
    (tmp_path / "mine.txt").touch()
    assert main(["release", str(tmp_path)]) == 1
    assert main(["release", str(tmp_path / "new"), "--lab", "77"]) == 1
    assert main(["release", str(tmp_path / "new"), "--python", "no-such-python"]) == 1
    told = capsys.readouterr().err
    assert (
        "is not empty" in told
        and "has no lab '77'" in told
        and "no-such-python cannot compile" in told
    )
    assert not (tmp_path / "new").exists()


def test_its_tests_find_all_that_they_import(bundle):
    ours, theirs = (
        {path.stem for path in (root / "tests").rglob("*.py")} for root in (ROOT, bundle)
    )
    for path in (bundle / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = [
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        ]
        imported += [
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
        ]
        assert ours.intersection(imported) <= theirs, path


@pytest.mark.slow
def test_it_installs_and_passes_its_own_quick_test(bundle, tmp_path):
    """Into an environment of its own, which finds torch and the rest where this Python has them."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    (site / "others.pth").write_text(
        "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}) + "\n"
    )
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTEST_", "PYTHON", "VIRTUAL_ENV"))
    }
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    pip += ["--no-build-isolation", "--no-index", "--disable-pip-version-check", "-e", "."]
    done = subprocess.run(pip, cwd=bundle, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    where = (
        "import lib, lib.zero; print(lib.__path__[0], lib.zero.FSDP.__init__.__code__.co_filename)"
    )
    found = subprocess.run(
        [str(python), "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert found.stdout.split() == [str(bundle / "lib"), str(bundle / "lib/zero/fsdp.py")], (
        found.stderr
    )
    quick = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_quick.py"]
    done = subprocess.run(quick, cwd=bundle, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and re.search(r"^4 passed", done.stdout, re.MULTILINE), (
        done.stdout + done.stderr
    )


def test_its_makefile_sets_up_what_ours_does(bundle):
    ours, theirs = ((root / "Makefile").read_text() for root in (ROOT, bundle))
    for line in ("TORCH ?=", "STAMP :="):
        ((mine,), (yours,)) = (
            [x for x in text.splitlines() if x.startswith(line)] for text in (ours, theirs)
        )
        assert yours == mine.replace("$(EXTRAS:%=-%)", "")
    recipes = [
        text.split("$(STAMP): pyproject.toml\n")[1].split("\n\n")[0] for text in (ours, theirs)
    ]
    mine = recipes[0].replace('"dev$(EXTRAS:%=$(COMMA)%)"', "dev")
    assert recipes[1] == mine
    assert filecmp.cmp(
        bundle / "lib/course/install.py", ROOT / "lib/course/install.py", shallow=False
    )
    told = subprocess.run(
        ["make", "help"], cwd=bundle, capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"^  make ([a-z-]+)", told, re.MULTILINE) == [
        "help",
        "setup",
        "lab",
        "merge",
        "test",
        "test-all",
        "demo",
        "clean",
    ]
