"""The pages in Markdown: their links lead somewhere, what they name exists, and their facts are
those of the course."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from lib.course import hours, notebook

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md", ROOT / "solutions" / "README.md", ROOT / "lib/course/teaching.md",
    ROOT / ".github/RELEASES.md",
    *(p for top in ("lib",
    "tests") for p in sorted((ROOT / top).rglob("README.md")) if p.parent.name != "bundle"),
]  # fmt: skip
# by commands; and all in results/, labs/mine
MADE = {
    "points.csv", "points.json", "junit.xml", "canvas.csv", "moodle.csv", "lib/_reference.zip",
    "gradescope/NAME.json", "results.json",
}  # fmt: skip
LOOKS_LIKE_A_PATH = re.compile(
    r"[\w.*-]+(/[\w.*-]+)*(\.(py|md|csv|json|yml|toml|zip|xml|png|ipynb)|/)"
)
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# a paragraph, an item of a list or a row of a table begins
BLOCK = re.compile(r"\n(?:\s*\n|(?=\||\d\. |[-*] ))")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEACHING = (ROOT / "lib" / "course" / "teaching.md").read_text(encoding="utf-8")
RELEASES = (ROOT / ".github" / "RELEASES.md").read_text(encoding="utf-8")
INTERVAL = r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]"


def without_fences(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text):
    """The targets of all links and images that are not addresses on the web."""
    targets = re.findall(r"\]\(([^)\s]+)\)", without_fences(text))
    return [target for target in targets if not target.startswith(("http://", "https://"))]


def anchors(text):
    """What GitHub calls the headings of a page: "## Many nodes" -> "many-nodes"."""
    headings = re.findall(r"^#+ (.+)$", without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(name, page):
    """Whether a path is there: seen from the root, from the page or from lib; a bare name: anywhere
    in lib or tests."""
    roots = [ROOT, page.parent, ROOT / "lib"]
    if any(any(root.glob(name.rstrip("/"))) for root in roots):
        return True
    return "/" not in name and any(any((ROOT / top).rglob(name)) for top in ("lib", "tests"))


def names_in(path):
    """What a Python file defines, anywhere in it: functions, classes, what is assigned,
    attributes of self."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def unknown_names(text, folder):
    """The names in backticks that no Python file defines which the same paragraph, item or row
    names; no packages."""
    for block in BLOCK.split(without_fences(text)):
        spans = re.findall(r"`([^`]+)`", block)
        files = [
            folder / span
            for span in spans
            if (folder / span).suffix == ".py" and (folder / span).is_file()
        ]
        files += [ROOT / span for span in spans if span.endswith(".py") and (ROOT / span).is_file()]
        defined = set().union(*map(names_in, files))
        for span in spans:
            if (
                NAME.fullmatch(span)
                and not (folder / span).exists()
                and not {*span.split(".")} <= defined
            ):
                yield span


def title(page):
    return page.relative_to(ROOT).as_posix()


def rows(text, first):
    """The cells of the table whose header begins with the cell `first`: [[cell, ...], ...]."""
    lines = text.split(f"\n| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_all_pages_are_found():
    assert {
        "README.md",
        "lib/README.md",
        "lib/course/README.md",
        "lib/launch/README.md",
        "lib/cost/README.md",
    } <= set(map(title, PAGES))
    assert {"tests/benchmarks/README.md", "tests/gpu/README.md", "solutions/README.md"} <= set(
        map(title, PAGES)
    )


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page):
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{title(page)}: {link} is not there"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), (
            f"{title(page)}: no heading {link}"
        )


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_path_and_command_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    for span in re.findall(r"`([^`\n]+)`", without_fences(text)):
        made = span in MADE or span.startswith(("results/", "labs/mine", ".venv"))
        if LOOKS_LIKE_A_PATH.fullmatch(span) and not made:
            assert exists(span, page), f"{title(page)}: `{span}` is not there"
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`|&& )make ([a-z][a-z-]*)", text, re.MULTILINE)) <= targets
    for module in re.findall(r"python -m ((?:lib|tests)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert (path / "__main__.py").exists() or path.with_suffix(".py").exists(), (
            f"{title(page)}: {module}"
        )


def test_every_name_in_the_guide_to_lib_is_in_a_file_that_stands_beside_it():
    page = ROOT / "lib" / "README.md"
    guide, _, glossary = page.read_text(encoding="utf-8").partition("## Glossary")
    assert list(unknown_names(guide, page.parent)) == []
    assert len(guide.splitlines()) <= 150 and 0 < len(list(rows(glossary, "here"))) <= 60


def test_a_name_that_is_gone_would_be_found():
    text = (
        "`training/clip.py`: `clip_gradients`, `clip_more`\n\n`clip_gradients`\n1. `zero/unit.py`: "
        "`Unit.unshard`, `Unit.gon`"
    )
    assert list(unknown_names(text, ROOT / "lib")) == ["clip_more", "clip_gradients", "Unit.gon"]


def test_the_guide_to_lib_names_every_package():
    shown = re.findall(
        r"`([^`]+)`",
        " ".join(
            package for package, _ in rows((ROOT / "lib" / "README.md").read_text(), "packages")
        ),
    )
    there = {
        p.name
        for p in (ROOT / "lib").iterdir()
        if p.suffix in ("", ".py") and not p.name.startswith("__")
    }
    assert sorted(shown) == sorted(there)


def test_a_newcomer_reads_the_readme_in_two_minutes():
    assert len(README.splitlines()) <= 130
    assert sorted(
        link.partition("#")[0] for link in set(links(README)) if link.endswith(".md")
    ) == sorted(title(page) for page in PAGES if page.parent != ROOT)


def test_the_readme_counts_the_exercises_of_each_lab():
    found = []
    for lab in notebook.labs(ROOT):
        exercises = notebook.exercises(notebook.read(notebook.solution_path(ROOT, lab)))
        bonus = sum(exercise.bonus for exercise in exercises)
        found.append(
            [
                notebook.number(lab),
                f"{len(exercises) - bonus}" + (f", and {bonus} bonus" if bonus else ""),
            ]
        )
    assert [[number, count] for number, _, count, *_ in rows(README, "lab")] == found
    counts = [
        sum(int(part) for _, count in found for part in re.findall(how, count))
        for how in (r"^\d+", r"(\d+) bonus")
    ]
    assert "{} graded exercises and {} for bonus points".format(*counts) in " ".join(
        RELEASES.split()
    )


def test_hours_and_minutes_are_those_of_the_labs():
    """Hours as the lab's first cell says them, which tests/course/test_course_core.py computes;
    minutes of the core's exercises, and of all others."""
    said = {number: rest for number, _, _, *rest in rows(README, "lab")}
    for (number, core, others, *same), lab in zip(
        rows(TEACHING, "lab"), notebook.labs(ROOT), strict=True
    ):
        solution = notebook.read(notebook.solution_path(ROOT, lab))
        first = solution.cells[0].source
        assert same == said[number] and number == notebook.number(lab)
        if "**Time:**" in first:
            (time,) = (line for line in first.splitlines() if line.startswith("**Time:**"))
            announced = re.findall(r"\d(?: to \d)?", time)
            assert {span.removesuffix(" h") for span in same} <= set(announced), lab
        else:
            assert [span.removesuffix(" h") for span in same] == re.findall(
                r"about \*\*([\d.]+) hours\*\*", first
            ), lab
        minutes = [hours.of(solution, only_core).minutes for only_core in (True, False)]
        assert [core, others] == [f"{minutes[0]} min", f"{minutes[1] - minutes[0]} min"], lab


def test_the_mistakes_to_ask_about_are_those_of_exercises():
    """Each mistake names an exercise's check, of the lab in its row."""
    table = TEACHING.split("## Office hours")[1].split("\n\n## ")[0]
    named = re.findall(r"^\| (\d) \| `(\w+)`: ", table, re.MULTILINE)
    assert {lab for lab, _ in named} == set("0123456") and len(named) == len(rows(table, "lab"))
    for lab, name in named:
        assert (ROOT / "lib" / "check" / f"lab{lab}" / f"{name}.py").exists(), name


def test_the_pictures_in_the_readme_are_small_and_sharp():
    """tests/course/test_course_browser.py looks whether the verdict in JupyterLab is still the one
    in the picture."""
    for name in re.findall(r"!\[[^\]]+\]\((\S+\.png)\)", README):
        width = int.from_bytes((ROOT / name).read_bytes()[16:20], "big")
        assert (ROOT / name).stat().st_size < 150_000 and width >= 1200, name


def test_the_readme_s_speeds_are_those_of_the_benchmarks_page():
    """Ratio and control of each row stand in one section there."""
    sections = (
        (ROOT / "tests" / "benchmarks" / "README.md").read_text(encoding="utf-8").split("\n## ")
    )
    shown = rows(README, "ours")
    assert len(shown) == 5
    for row in shown:
        figures = re.findall(INTERVAL, " ".join(row))
        assert figures and any(
            all(figure in section for figure in figures) for section in sections
        ), row


def test_the_readme_counts_the_cells_that_use_gloo_everywhere():
    notebooks = [notebook.read(notebook.solution_path(ROOT, lab)) for lab in notebook.labs(ROOT)]
    sources = [cell.source for nb in notebooks for cell in nb.cells if cell.cell_type == "code"]
    asking = sum(bool(re.search(r'\bbackend(=|": )"gloo"', source)) for source in sources)
    assert f"always use gloo, and so do {asking} lab cells" in " ".join(README.split())


def test_the_readme_s_versions_are_those_that_can_be_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"])
    (torch,) = (need for need in project["dependencies"] if need.startswith("torch>"))
    torch = re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", torch)
    low, high = int(python[1]), int(python[2]) - 1
    versions, text = f"Python 3.{low} to 3.{high}", " ".join(README.split())
    assert (
        text.count(versions) == 2
        and f"{versions} and torch 2.{torch[1]} to 2.{int(torch[2]) - 1}" in text
    )


def test_the_table_of_versions_has_the_workflow_s_pairs_and_all_that_can_be_installed():
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    matrix = re.findall(r'\{ python: "([\d.]+)", torch: "([\d.]+)" \}', workflow)
    page = (ROOT / "lib" / "launch" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (3\.\d+) \| (2\.\d+\.\d+) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert matrix and sorted(matrix) == sorted(
        (python, torch) for python, torch, made, _ in rows if made == "yes"
    )
    for _, _, made, ran in rows:
        dated = re.match(r"20\d\d-\d\d-\d\d: ", ran)
        assert made in ("yes", "no") and (dated or (made == "yes" and ran == "not run here")), ran
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needs_torch,) = (need for need in project["dependencies"] if need.startswith("torch>"))
    for column, needed in enumerate((project["requires-python"], needs_torch)):
        low, end = (int(minor) for minor in re.findall(r"[23]\.(\d+)", needed))
        assert {int(row[column].split(".")[1]) for row in rows} == set(range(low, end))


def test_every_benchmark_has_a_section_of_its_page():
    page = (ROOT / "tests" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    headings = " ".join(re.findall(r"^## (.+)$", page, re.MULTILINE))
    names = {
        path.stem.removeprefix("bench_")
        for path in (ROOT / "tests" / "benchmarks").glob("bench_*.py")
    }
    assert set(re.findall(r"`(\w+)`", headings)) == names
