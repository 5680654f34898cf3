"""The first cell of a lab: silent where all is there, else it fetches, installs, or
says what to do."""

import os
import re
import subprocess
import sys
import sysconfig
import types

import pytest

from lib import backend, here
from lib.backend import gpus
from lib.backend.gpus import Gpus
from lib.course import build, notebook
from lib.course.notebook import ROOT
from lib.launch import warm


def first_cells():
    for lab in notebook.labs(ROOT):
        yield next(c for c in build.of_lab(ROOT, lab).cells if c.cell_type == "code")


def test_every_lab_begins_with_the_same_cell():
    cells = list(first_cells())
    (source,) = {cell.source for cell in cells}
    assert source.endswith("here.ready()") and len(source.splitlines()) == 5
    assert {notebook.role(cell) for cell in cells} == {"setup"}
    # JupyterLab folds it by the first, and Colab by the second
    assert all(
        cell.metadata.jupyter.source_hidden and cell.metadata.cellView == "form" for cell in cells
    )


def test_it_lets_a_server_import_ahead_of_the_first_run_once_and_nothing_where_graded(monkeypatch):
    begun = []
    # else the thread between runs would see no server
    with warm.one_at_a_time, monkeypatch.context() as patched:
        patched.setattr(warm.Server, "start", lambda server: begun.append(server))
        for graded in (False, True):
            patched.setattr(warm, "_servers", [])
            patched.setattr(warm, "GRADED", graded)
            here.ready()
            here.ready()
            assert warm._servers == ([] if graded else begun) and len(begun) == 1
    assert begun[0].loaded  # ranks come from it, though the first may have to wait


def test_where_all_is_there_it_says_nothing(capsys):
    here.ready()
    assert capsys.readouterr().out.splitlines() == here.said(gpus.working())


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Gpus(), []),
        (Gpus(("H100",)), ["1 x H100: NCCL on 1 rank, gloo on the CPU for more."]),
        (
            Gpus(("Tesla T4",) * 2, bfloat16=False),
            [
                "2 x Tesla T4: NCCL on 1 to 2 ranks, gloo on the CPU for more.",
                "These GPUs have no bfloat16 units, so computations in bfloat16 are emulated and "
                "slow.",
            ],
        ),
        (Gpus((), "GPU 0 does not work: too old"), ["Not used: GPU 0 does not work: too old"]),
    ],
)
def test_what_is_said_of_gpus(found, says):
    assert here.said(found) == says


def test_two_t4s_pretended_are_told_and_used_by_two_ranks(monkeypatch):
    """Kaggle's machine. Its properties are made up here, and the trial runs on a CPU: no
    GPU has seen this."""
    pretended = (
        "import torch\nmake, of = torch.ones, torch.cuda\ntorch.ones = lambda *size, device: "
        "make(*size)\n"
    )
    pretended += "of.device_count, of.get_device_name = lambda: 2, lambda index: 'Tesla T4'\n"
    pretended += "of.get_device_capability = lambda index: (7, 5)\n"
    found = gpus.tried([sys.executable, "-c", pretended + gpus.TRIAL], 2)
    assert found == Gpus(("Tesla T4",) * 2, bfloat16=False)
    monkeypatch.setattr(gpus, "working", lambda: found)
    assert [backend.choose("auto", ranks).name for ranks in (1, 2, 3, 4)] == [
        "nccl",
        "nccl",
        "gloo",
        "gloo",
    ]
    assert here.said(found)[0] == "2 x Tesla T4: NCCL on 1 to 2 ranks, gloo on the CPU for more."


@pytest.fixture
def without(monkeypatch, tmp_path):
    """A project that asks for what is not here, beside torch, which is."""
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["torch>=2.0", "ruff<0.1", "jupyterlab", "no-such-package>=3"]\n'
    )
    monkeypatch.setattr(here, "PROJECT", project)
    for variable in here.RENTED:
        monkeypatch.delenv(variable, raising=False)


def test_what_is_missing_is_named_with_the_next_move(without):
    with pytest.raises(
        RuntimeError,
        match=r"ruff<0.1 \(here: [\d.]+\), no-such-package>=3 \(here: nothing\). Run `make",
    ):
        here.ready()


def test_on_a_rented_machine_what_is_missing_is_installed_and_nothing_else(
    without, monkeypatch, capsys
):
    asked = []
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    answer = types.SimpleNamespace(returncode=0, stderr="")
    monkeypatch.setattr(
        here.subprocess, "run", lambda command, **_: asked.append(command) or answer
    )
    here.ready()
    assert asked[0][-2:] == ["ruff<0.1", "no-such-package>=3"] and not any(
        "torch" in one for one in asked[0]
    )
    assert capsys.readouterr().out.startswith("Kaggle: installing ruff<0.1 (here: ")
    answer.returncode, answer.stderr = 1, "...\nERROR: no route to host"
    with pytest.raises(
        RuntimeError,
        match=r"could not install ruff.*: ERROR: no route to host. On Kaggle, switch Int",
    ):
        here.ready()


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_package_that_was_replaced_under_a_running_kernel_asks_for_a_restart(
    without, monkeypatch, name
):
    here.PROJECT.write_text(f'[project]\ndependencies = ["{name}<1.0"]\n')
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    monkeypatch.setattr(
        here.subprocess, "run", lambda *_, **__: types.SimpleNamespace(returncode=0, stderr="")
    )
    with pytest.raises(
        RuntimeError, match=f"this kernel has loaded an older version of {name}: restart"
    ):
        here.ready()


@pytest.fixture
def clones(tmp_path):
    """A clone of the course that this lib does not belong to, with a lab and a
    student's copy of it."""
    clone = tmp_path / "clone"
    for name in ("lib/here.py", "labs/mine/lab3_x.ipynb", "labs/lab3_x.ipynb"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text('{"metadata": {"course": {"edition": "a"}}}')
    return clone


def test_that_lib_is_another_clones_is_said_with_what_to_do(clones, monkeypatch):
    said = (
        f"This notebook is in {clones}, but lib comes from {ROOT}: quit JupyterLab and run `make "
        f"lab` in {clones}, "
    )
    said += "which uses the lib there."
    assert here.about_files(clones / "labs" / "mine" / "lab3_x.ipynb") == [said]
    monkeypatch.chdir(clones / "labs")
    # an editor that does not name the notebook: its folder counts
    assert here.about_files(None) == [said]
    monkeypatch.chdir(ROOT / "solutions")
    assert here.about_files(None) == []


def test_a_notebook_that_lies_alone_as_on_colab_is_said_nothing_of(tmp_path):
    assert here.about_files(tmp_path / "lab3_x.ipynb") == []


def test_work_in_the_courses_own_file_and_a_copy_of_another_edition_are_said(clones, monkeypatch):
    monkeypatch.setattr(here, "COURSE", clones)
    (said,) = here.about_files(clones / "labs" / "lab3_x.ipynb")
    assert (
        "is the course's own file" in said
        and "run `make lab LAB=3`, which opens your own copy" in said
    )
    mine = clones / "labs" / "mine" / "lab3_x.ipynb"
    assert here.about_files(mine) == []
    for other in ('{"metadata": {"course": {"edition": "b"}}}', '{"metadata": {}}', "{"):
        mine.write_text(other)
        (said,) = here.about_files(mine)
        assert said.endswith(
            "save this notebook, and `make merge LAB=3` puts your answers into it."
        )
    (clones / "labs" / "lab3_x.ipynb").unlink()
    assert here.about_files(mine) == []


def test_the_notebook_is_the_one_that_the_editor_names(monkeypatch, tmp_path):
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "lab0.ipynb"))
    assert here.opened() == tmp_path / "lab0.ipynb"
    shell = types.SimpleNamespace(user_ns={"__vsc_ipynb_file__": str(tmp_path / "lab1.ipynb")})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert here.opened() == tmp_path / "lab1.ipynb"
    shell.user_ns.clear()
    monkeypatch.setenv("JPY_SESSION_NAME", "console-1")
    assert here.opened() is None


@pytest.fixture
def elsewhere(tmp_path):
    """run(source) -> ended process, by a Python that has all packages but not lib,
    in an empty folder."""
    packages = tmp_path / "packages"
    packages.mkdir()
    site = sysconfig.get_paths()["purelib"]
    for name in os.listdir(site):
        if not re.match(r"__editable__|distributed_training_labs|.*\.pth$", name):
            (packages / name).symlink_to(os.path.join(site, name))
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "PYTHONPATH": str(packages)
    }
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    folder = tmp_path / "content"
    folder.mkdir()
    python = ["-S", "-c"]  # -S: the site's own .pth files, and with them lib, are not seen

    def run(source):
        command = [sys.executable, *python, source]
        return subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=300
        )

    return run


@pytest.mark.parametrize("another", [False, True])
def test_where_lib_is_not_there_or_is_another_folder_one_sentence_says_what_to_do(
    elsewhere, tmp_path, another
):
    (cell,) = {cell.source for cell in first_cells()}
    if another:
        (tmp_path / "content" / "lib").mkdir()
    told = elsewhere(cell).stderr
    sentence = "ImportError: The course's lib is not here: open it by `make lab`."
    assert told.splitlines()[-1] == sentence and "cannot import name" not in told


@pytest.mark.slow
def test_with_an_address_the_cell_fetches_the_course_and_ranks_run(elsewhere, tmp_path):
    lab = notebook.read(notebook.solution_path(ROOT, "lab0_concepts"))
    cell = next(
        c
        for c in build.from_address(lab, "lab0_concepts", "https://h.org/x/y").cells
        if c.cell_type == "code"
    )
    (tmp_path / "content" / "lib").mkdir()  # another folder of that name
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    for name in ("lib", "pyproject.toml"):
        (repository / name).symlink_to(ROOT / name)
    given = "import os, subprocess\n"  # a clone would hold what is committed, not what is tested
    given += (
        "def call(command):\n    assert command[:2] == ['git', 'clone'] and 'https://h.org/x/y' in "
        "command\n"
    )
    failing = given + "    return 1\nsubprocess.call = call\n"
    told = elsewhere(failing + cell.source).stderr
    assert told.endswith(
        "OSError: The course could not be fetched: switch the internet on, and run this cell "
        "again.\n"
    )
    given += f"    os.symlink({str(repository)!r}, 'course')\nsubprocess.call = call\n"
    runs = "\nfrom lib import launch\nimport torch.distributed as dist\n"
    runs += "print(launch.run(lambda: dist.get_rank(), nproc=2, backend='gloo'))"
    told = elsewhere(given + cell.source + runs)
    assert told.stdout.splitlines()[-1:] == ["[0, 1]"], told.stderr


def test_an_address_of_github_gives_buttons_and_another_one_none(tmp_path):
    project = tmp_path / "pyproject.toml"
    for address, buttons in (
        ("https://github.com/a/b", 1),
        ("https://gitlab.org/a/b.git", 0),
        ("", 0),
    ):
        project.write_text(f'[project]\n[project.urls]\nRepository = "{address}"\n')
        lab = notebook.read(notebook.solution_path(ROOT, "lab0_concepts"))
        made = build.from_address(lab, "lab0_concepts", build.address(tmp_path))
        text = "".join(cell.source for cell in made.cells)
        assert (
            text.count("colab.research.google.com/github/a/b/blob/main/labs/lab0_concepts.ipynb")
            == buttons
        )
        assert (f'"--depth=1", "{address.removesuffix(".git")}", "course"]' in text) == bool(
            address
        )
    project.write_text('[project]\n[project.urls]\nRepository = "nowhere"\n')
    with pytest.raises(
        build.CourseError, match=r"Repository is 'nowhere': write https://HOST/OWNER/NAME"
    ):
        build.address(tmp_path)
