"""tests/gpu/kaggle.ipynb, executed here: an archive of the repository, laid out as Kaggle does,
becomes a table.

The driver is pretended, and the steps run on gloo, so this shows that the notebook fetches,
installs and runs what it should. It has never run on Kaggle.
"""

import os
import pathlib
import re
import subprocess
import tarfile
import zipfile

import nbformat
import pytest

from lib.course import execute, notebook, publish

ROOT = pathlib.Path(__file__).parents[1]

NOTEBOOK = ROOT / "tests" / "gpu" / "kaggle.ipynb"
REHEARSAL = """
import sys
from tests.gpu import __main__ as command, plan
from tests.gpu.pretended import machine
WHERE = "import lib; print('showed: lib is in', *lib.__path__)"
steps = (
    plan.PROBE,
    plan.Step("where", "in which course", 600, ("-c", WHERE)),
    *[plan.Step("reuse", "on gloo", 600, \
("-m", "tests.gpu.reuse", "--backend", "gloo", "--ranks", "1"))] * {on_ranks},
    plan.Step("late", "no time", 6000, ("-m", "tests.gpu.reuse")),
)
sys.exit(command.main(collect=lambda: machine(2), steps=lambda gpus: steps))
"""


@pytest.fixture
def kaggle(tmp_path, monkeypatch):
    """Two T4, by their driver's word, and empty folders; what a run prints comes from calling it
    with what differs."""
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'GPU 0: Tesla T4 (UUID: GPU-0)'\necho 'GPU 1: Tesla T4 (UUID: GPU-1)'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for folder in ("input", "working"):
        (tmp_path / folder).mkdir()

    def run(**differs):
        nb = notebook.read(NOTEBOOK)
        (cell,) = nb.cells
        folders = 'INPUT, WORKING = Path("/kaggle/input"), Path("/kaggle/working")'
        instead = {
            folders: f"INPUT, WORKING = Path({str(tmp_path / 'input')!r}), "
            f"Path({str(tmp_path / 'working')!r})"
        }
        for name, value in differs.items():
            (line,) = re.findall(rf"^{name} = .*$", cell.source, re.MULTILINE)
            instead[line] = f"{name} = {value!r}"
        for line, new in instead.items():
            assert cell.source.count(line) == 1, line
            cell.source = cell.source.replace(line, new)
        execute.run(nb, tmp_path, 900)
        return "".join(output.text for output in cell.outputs)

    run.folder = tmp_path
    return run


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """course.tar of this working tree, as `git archive` makes it of a commit; and, added to it,
    steps on gloo."""
    folder = tmp_path_factory.mktemp("archive")
    (folder / "objects").mkdir()
    git = lambda *words: subprocess.run(
        ["git", *words], cwd=ROOT, env=env, check=True, capture_output=True, text=True
    )
    env = dict(os.environ)
    objects = git("rev-parse", "--path-format=absolute", "--git-path", "objects").stdout.strip()
    env |= {  # what is written for this archive is not written into the repository
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
    }
    git(
        "add", "--all", "--", "lib", "tests/gpu", "tests/conftest.py", "pyproject.toml", "solutions"
    )
    path = folder / "course.tar"
    git("archive", "--format=tar", "-o", str(path), git("write-tree").stdout.strip())
    with tarfile.open(path, "a") as made:
        for name, on_ranks in (("rehearsal", 1), ("rehearsal_without_ranks", 0)):
            (folder / name).write_text(REHEARSAL.replace("{on_ranks}", str(on_ranks)))
            made.add(folder / name, f"tests/gpu/{name}.py")
    return path


def unpacked(archive, folder):
    """As Kaggle shows an archive that it has unpacked: below the data set's name and the
    archive's own."""
    with tarfile.open(archive) as made:
        made.extractall(folder / "input" / "course-of-mine" / "course", filter="data")


def zipped(archive, folder):
    """An archive that Kaggle has left as it was, with a folder around the course, as other
    programs make them."""
    with (
        tarfile.open(archive) as made,
        zipfile.ZipFile(folder / "input" / "course.zip", "w") as zipped,
    ):
        for member in made:
            if member.isfile():
                zipped.writestr(f"course-main/{member.name}", made.extractfile(member).read())


def tarred(archive, folder):
    with (
        tarfile.open(folder / "input" / "course.tar.gz", "w:gz") as made,
        tarfile.open(archive) as plain,
    ):
        for member in plain:
            made.addfile(member, plain.extractfile(member) if member.isfile() else None)


@pytest.mark.slow
@pytest.mark.parametrize("lay_out", [unpacked, zipped, tarred])
def test_an_archive_of_the_course_becomes_a_table(kaggle, archive, lay_out):
    (kaggle.folder / "input" / "another.csv").write_text("1,2\n")
    with zipfile.ZipFile(kaggle.folder / "input" / "another.zip", "w") as another:
        another.writestr("tests/cpu/__main__.py", "")
    lay_out(archive, kaggle.folder)
    (kaggle.folder / "working" / "course").mkdir()
    (kaggle.folder / "working" / "course" / "of_an_earlier_run").touch()
    on_ranks = lay_out is unpacked
    said = kaggle(
        STEPS="tests.gpu.rehearsal" if on_ranks else "tests.gpu.rehearsal_without_ranks", MINUTES=30
    )
    assert (
        said.startswith("GPU 0: Tesla T4")
        and f"The course is from {kaggle.folder}/input/course" in said
    )
    assert "2 x NVIDIA H200, driver 580.159.03, torch" in said, "the pretended machine's facts"
    rows = {
        line.split(" | ")[0].strip("| "): line
        for line in said.splitlines()
        if line.startswith("| ")
    }
    assert all(rows[name].endswith("passed |") for name in ("probe", "where"))
    assert f"lib is in {kaggle.folder}/working/course/lib" in rows["where"]
    if on_ranks:
        assert "3 launches in" in rows["reuse"] and "on cpu: the same processes" in rows["reuse"]
    assert rows["late"].endswith("**not run** |") and f"{2 + on_ranks} passed, 1 not run." in said
    assert "to be pasted into tests/gpu/README.md" in said
    assert said.splitlines()[-1] == "Exit code 0: all steps that could run passed."
    working = {path.name for path in (kaggle.folder / "working").iterdir()}
    assert (
        {"course", "gpu.md", "gpu"}
        <= working
        <= {"course", "gpu.md", "gpu", "unpacked", "constraints.txt"}
    )
    assert (kaggle.folder / "working" / "gpu.md").read_text().strip() in said
    assert not (kaggle.folder / "working" / "course" / "of_an_earlier_run").exists()


@pytest.mark.slow
def test_without_a_gpu_without_an_archive_or_with_a_broken_one_the_next_move_is_one_sentence(
    kaggle,
):
    with pytest.raises(
        notebook.CourseError,
        match=r"The course is not here: ADDRESS is empty.* add it as a dataset",
    ):
        kaggle()
    (kaggle.folder / "input" / "course.zip").write_bytes(b"half of it")
    with pytest.raises(
        notebook.CourseError, match=r"course.zip cannot be unpacked \(.*\): make the archive again"
    ):
        kaggle()
    (kaggle.folder / "bin" / "nvidia-smi").write_text(
        "#!/bin/sh\necho 'No devices were found'\nexit 6\n"
    )
    with pytest.raises(
        notebook.CourseError, match="No GPU is switched on: choose Accelerator: GPU T4 x2"
    ):
        kaggle()


@pytest.mark.slow
def test_without_internet_what_was_to_be_fetched_is_named_with_the_next_move(kaggle, archive):
    address = f"file://{kaggle.folder}/nowhere"
    with pytest.raises(
        notebook.CourseError,
        match=rf"git could not fetch {address} .*switch Internet on .*, or leave",
    ):
        kaggle(ADDRESS=address)
    unpacked(archive, kaggle.folder)
    project = next((kaggle.folder / "input").rglob("pyproject.toml"))
    project.write_text(
        project.read_text().replace('"scipy>=1.11"', '"not-on-kaggle>=1"').replace("<2.16", "<2.1")
    )
    said = kaggle(STEPS="tests.gpu.rehearsal_without_ranks", MINUTES=0.05)
    assert "Kaggle's torch is " in said and "stays, but the course is for torch<2.1" in said
    assert re.search(
        r"pip could not install not-on-kaggle \(.*\)\. Steps that need it are not run; .*Internet",
        said,
    )
    with pytest.raises(
        notebook.CourseError, match=r"not-on-kaggle .*switch Internet on .*run the cell again"
    ):
        kaggle(STEPS="tests.gpu.rehearsal", NEEDED=("not-on-kaggle",))


def test_the_notebook_is_one_cell_without_outputs_and_gets_the_address_where_it_is_set():
    nb = notebook.read(NOTEBOOK)
    nbformat.validate(nb)
    (cell,) = nb.cells
    assert cell.cell_type == "code" and cell.outputs == [] and cell.execution_count is None
    text = NOTEBOOK.read_text(encoding="utf-8")
    there = publish.kaggle(text, "https://host.org/owner/name")
    assert '\nADDRESS = "https://host.org/owner/name"\n' in nbformat.reads(there, 4).cells[0].source
    assert publish.kaggle(there, "") == publish.kaggle(text, "") and there != text
