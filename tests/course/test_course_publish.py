"""The repository's address is one setting: all that needs it appears with it, is right, and goes
with it again."""

import json
import re
import shutil

import pytest
import yaml

from lib.course import build, publish
from lib.course.__main__ import main
from lib.course.notebook import ROOT, CourseError

LAB = "lab0_concepts"
NEEDS_IT = (
    "colab.research.google.com/github",
    "kaggle.com/kernels/welcome",
    "git clone",
    "repository-code",
    "badge.svg",
)


@pytest.fixture
def course(tmp_path):
    """A copy of what shows the address, and a function that sets it in pyproject.toml and builds:
    {file: its text}."""
    for name in (publish.README, publish.CITATION, "pyproject.toml", f"solutions/{LAB}.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    project = tmp_path / "pyproject.toml"
    unset = re.sub(
        r"^#? ?Repository = .*$", '# Repository = ""', project.read_text(), flags=re.MULTILINE
    )

    def publish_at(address):
        project.write_text(
            unset.replace('# Repository = ""', f'Repository = "{address}"') if address else unset
        )
        assert main(["--root", str(tmp_path), "build"]) == 0
        names = (publish.README, publish.CITATION, f"labs/{LAB}.ipynb")
        return {name: (tmp_path / name).read_text(encoding="utf-8") for name in names}

    return publish_at


def test_the_files_here_show_the_address_that_is_set():
    address = build.address(ROOT)
    for name, made in (
        (publish.README, publish.readme),
        (publish.CITATION, publish.citation),
        (publish.KAGGLE, publish.kaggle),
    ):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert made(text, address) == text, f"{name}: python -m lib.course build"
    shown = [ROOT / publish.README, ROOT / publish.CITATION, *(ROOT / "labs").glob("*.ipynb")]
    for path in [*shown, *(ROOT / "lib").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert address or not [sign for sign in NEEDS_IT if sign in text], path


def test_one_setting_shows_the_address_everywhere_and_hides_it_again(course):
    unset, address = course(""), "https://github.com/Owner/name"
    made = course(address)
    readme, citation, lab = made.values()
    tests = f"{address}/actions/workflows/test.yml"
    colab, kaggle = build.rented(LAB, address)
    assert (
        f"[![tests]({tests}/badge.svg)]({tests})" in readme
        and f"git clone {address}.git && cd name\n" in readme
    )
    assert (
        f"]({colab})" in readme
        and f"]({kaggle})" in readme
        and "(https://owner.github.io/name/)" in readme
    )
    assert (ROOT / ".github" / "workflows" / "test.yml").exists()
    assert yaml.safe_load(citation)["repository-code"] == address
    cells = json.loads(lab)["cells"]
    title, code = (
        "".join(cells[0]["source"]),
        "".join(next(c for c in cells if c["cell_type"] == "code")["source"]),
    )
    assert f"({colab})" in title and f"({kaggle})" in title and address in code
    assert not [sign for sign in NEEDS_IT if any(sign in text for text in unset.values())]
    assert course(address) == made and course("") == unset


def test_another_host_has_the_command_that_clones_and_no_button(course):
    readme, citation, lab = course("https://git.example.org/group/sub/name.git").values()
    assert "git clone https://git.example.org/group/sub/name.git && cd name\n" in readme
    assert yaml.safe_load(citation)["repository-code"] == "https://git.example.org/group/sub/name"
    assert not [
        text for text in (readme, lab) if "colab.research" in text or "kaggle.com/kernels" in text
    ]


def test_a_readme_without_its_comments_is_left_alone_until_an_address_is_set():
    assert publish.readme("mine\n", "") == "mine\n"
    with pytest.raises(CourseError, match="needs the lines"):
        publish.readme("mine\n", "https://github.com/owner/name")
