"""The book: built without a warning, whole, with no line of an answer, and asking for nothing
outside its folder."""

import base64
import html
import itertools
import json
import re
import zlib
from html.parser import HTMLParser

import nbformat
import pytest
import yaml
from toy_lab import toy_notebook

from lib import pipeline, plots
from lib.course import book, build, notebook
from lib.course.__main__ import main
from lib.course.book import animations, landing, notebooks, progress, runs, search, sections
from lib.course.notebook import ROOT, CourseError
from lib.course.strip_solutions import marked
from lib.plots import units
from lib.plots.style import readable

pytest.importorskip(
    "myst_nb", reason="not run: the book's tools are not installed (pip install -e '.[book]')"
)
formulas = pytest.importorskip("lib.course.book.formulas")
pytest.importorskip(
    "math_core", reason="not run: the book's tools are not installed (pip install -e '.[book]')"
)

LABS = notebook.labs(ROOT)
PARTS = {  # {lab: the names of its pages, in their order}
    lab: [*sections.split(lab, notebooks.page(notebook.read(notebook.solution_path(ROOT, lab))))]
    for lab in LABS
}
LONG = 25  # characters of a line that says something
ASKS = {
    "link": "href",
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "audio": "src",
}


@pytest.fixture(scope="module")
def folder(book_folder):
    return book_folder


def pages_of(folder, lab):
    """The HTML of a lab's pages, one after the other."""
    return "\n".join((folder / f"{name}.html").read_text(encoding="utf-8") for name in PARTS[lab])


def text_of(page):
    """What is to be read on a page, in one line without spaces: markup cuts lines
    of code into words."""
    return re.sub(r"\s+", "", html.unescape(re.sub(r"<[^>]*>", "", page)))


class Asks(HTMLParser):
    """What a page asks for, its figures, and how many formulas it has."""

    def __init__(self, page):
        super().__init__()
        self.addresses, self.images, self.formulas = [], [], 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if address := given.get(ASKS.get(tag)):
            self.addresses.append(address)
        if tag == "img":
            self.images.append(given)
        self.formulas += tag == "math"


@pytest.fixture(scope="module")
def lines():
    """{line without spaces: where it stands} of what students are to write, and of hidden cases."""
    given = "\n".join(
        re.sub(r"\s+", "", cell.source)
        for lab in LABS
        for cell in build.student_notebook(notebook.read(notebook.solution_path(ROOT, lab))).cells
    )
    found = {}
    for lab in LABS:
        solution = notebook.read(notebook.solution_path(ROOT, lab))
        for cell in solution.cells:
            shown = build.student_source(cell).splitlines()
            found |= {line: cell.id for line in cell.source.splitlines() if line not in shown}
    for path in sorted((ROOT / "lib").rglob("*.py")):
        source = path.read_text(encoding="utf-8").splitlines()
        for one in marked("\n".join(source)) if "course" not in path.parts else ():
            found |= dict.fromkeys(source[one.first : one.last], one.key)
    squeezed = {re.sub(r"\s+", "", line.split("  #")[0]): where for line, where in found.items()}
    return {
        line: where for line, where in squeezed.items() if len(line) >= LONG and line not in given
    }


def leaks(page, lines):
    """The lines that a page has: {line: whose}."""
    read = text_of(page)
    return {line: where for line, where in lines.items() if line in read}


def test_a_page_for_each_section_and_a_glossary_in_three_scripts(folder):
    parts = [name for names in PARTS.values() for name in names]
    assert len(parts) == len(set(parts)) > 100
    assert {path.stem for path in folder.glob("*.html")} == {"index", "glossary", "search", *parts}
    glossary = (folder / "glossary.html").read_text(encoding="utf-8")
    assert all(
        word in glossary
        for word in ("English", "简体中文", "繁體中文", "all-reduce", "流水线", "管線")
    )
    words = glossary.count("<tr") - 1
    assert (
        glossary.count('<span lang="zh-Hans">')
        == glossary.count('<span lang="zh-Hant">')
        == words
        > 30
    )


def test_no_page_has_a_line_of_an_answer(folder, lines):
    assert len(lines) > 500
    for path in folder.rglob("*"):
        if path.suffix in (".html", ".js", ".txt", ".ipynb", ".md"):
            assert leaks(path.read_text(encoding="utf-8"), lines) == {}, path


def test_a_line_of_an_answer_would_be_found(lines):
    line = next(iter(lines))
    assert set(
        leaks(f"<pre><span>{html.escape(line[:9])}</span> {html.escape(line[9:])}</pre>", lines)
    ) >= {line}


@pytest.mark.parametrize("lab", LABS)
def test_a_page_has_the_lab_and_what_its_cells_printed(folder, lab):
    solution = notebook.read(notebook.solution_path(ROOT, lab))
    page = pages_of(folder, lab)
    read = text_of(page)
    shown = {cell.id: cell for cell in notebooks.page(solution).cells}
    for cell in solution.cells:
        merged = shown[cell.id]
        role = notebook.role(cell)
        if cell.cell_type == "code":
            assert re.sub(r"\s+", "", build.student_source(cell)) in read, cell.id
        if role in ("answer", "check"):
            assert merged.outputs == []
            said = [re.sub(r"\s+", "", output.get("text", "")) for output in cell.outputs]
            assert not any(text and text in read for text in said), cell.id
        for output in merged.get("outputs", []):
            if output.output_type == "stream":
                assert re.sub(r"\s+", "", re.sub(r"\x1b\[[\d;]*m", "", output.text)) in read, (
                    cell.id
                )
    student = build.student_notebook(solution)
    folded = sum(cell.source.count("<details") for cell in student.cells)
    assert page.count("<details") == page.count("</details>") == folded
    assert [*PARTS[lab]] == [lab, *(f"{lab}-{sections.slug(title)}" for title in titles(solution))]
    assert not re.search(r"\$\\|\\(frac|cdot|beta)\b", read)


def titles(solution):
    """The titles of a notebook's sections."""
    found = [sections.SECTION.match(c.source) for c in solution.cells if c.cell_type == "markdown"]
    return [one["title"] for one in found if one]


def test_pages_are_turned_in_the_order_of_the_labs(folder):
    parts = [name for names in PARTS.values() for name in names]
    for name, following in itertools.pairwise(parts):
        page = (folder / f"{name}.html").read_text(encoding="utf-8")
        assert f'rel="next" href="{following}.html"' in page, name
        turned_back = (folder / f"{following}.html").read_text(encoding="utf-8")
        assert f'rel="prev" href="{name}.html"' in turned_back, following


def test_headings_move_up_by_one_level_but_not_in_code():
    cell = notebooks.new_markdown_cell("## 1. A\n\n### B\n\n```\n## c\n```\n")
    page = nbformat.v4.new_notebook(
        cells=[
            notebooks.new_markdown_cell("# Lab 9 - T"),
            notebooks.new_markdown_cell("note"),
            cell,
        ]
    )
    parts = sections.split("lab9_toy", page)
    assert list(parts) == ["lab9_toy", "lab9_toy-a"]
    assert parts["lab9_toy-a"].cells[0].source == "# 1. A\n\n## B\n\n```\n## c\n```\n"
    assert cell.source.startswith("## 1. A")


@pytest.mark.parametrize("lab", LABS)
def test_every_figure_says_what_it_shows(folder, lab):
    drawn = list(
        notebooks.pictures(notebooks.page(notebook.read(notebook.solution_path(ROOT, lab))))
    )
    shown = Asks(pages_of(folder, lab)).images
    outputs = [image["alt"] for image in shown if image["src"].startswith("_images")]
    assert outputs == [output.metadata["image/png"]["alt"] for output in drawn]
    figures = [image for image in shown if "icon.svg" not in image["src"]]
    assert len(figures) > 5 and all(len(image["alt"]) > 40 for image in figures)


def test_no_page_asks_for_anything_outside_the_folder(folder):
    for path in folder.glob("*.html"):
        for address in Asks(path.read_text(encoding="utf-8")).addresses:
            assert not re.match(r"[a-z]+:|/", address), (path.name, address)
            file = folder / re.split("[?#]", address)[0]
            assert file.is_file() or not re.split("[?#]", address)[0], (path.name, address)


@pytest.mark.parametrize("lab", LABS)
def test_a_guess_that_nobody_made_stands_nowhere(folder, lab):
    page = pages_of(folder, lab)
    asked = re.findall(
        r"^(my_[\w, ]+) = (?:.*# Predict|None *# your prediction)", text_lines(page), re.MULTILINE
    )
    names = [name for one in asked for name in one.split(", ")]
    assert len(names) == len(set(names)) and names
    cells = notebook.read(notebook.solution_path(ROOT, lab)).cells
    reads = [c.source for c in cells if "show_prediction(" in c.source]
    through_a_table = {  # of these the cell's output only waits
        name for name in names for source in reads
        if name in source and not re.search(notebooks.SHOWN.format(name=name), source)
    }  # fmt: skip
    # "rows: you ‹my_rows›, formula 75", in the output of the cell that waits for it
    for name in set(names) - through_a_table:
        (waits,) = re.findall(
            rf'class="[^"]*tag_waits-{name}\b.*?(?=<div class="cell |<section|</article)',
            page,
            re.DOTALL,
        )
        assert f"‹{name}›" in text_lines(waits.split("cell_output")[1]), name
    assert not re.search(r"\byou (predicted |said |batch )?(0|-|\(0|\.\.\.)", text_lines(page))


@pytest.mark.parametrize("lab", LABS)
def test_every_prediction_has_a_place_for_a_guess_and_its_answer_waits(lab):
    _, *cells = notebooks.page(
        notebook.read(notebook.solution_path(ROOT, lab))
    ).cells  # the title says what they are
    asked = [pair for pair in itertools.pairwise(cells) if "**Predict" in pair[0].source]
    assert len(asked) > 9
    for text, following in asked:
        assert 'class="predict"' in text.source or "predict" in following.metadata.get(
            "tags", []
        ), text.id
        assert "<details><summary>Answer" not in text.source, text.id


def text_lines(page):
    """What is to be read on a page, in its lines."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_formulas_are_elements_and_one_that_is_not_understood_is_named(folder):
    assert Asks(pages_of(folder, "lab0_concepts")).formulas > 50
    assert formulas.in_html(r"<b>$\frac12$</b>").startswith("<b><math><mfrac>")
    assert formulas.in_html("of $N$\n\n$$N + 1$$").count("<math") == 2
    assert formulas.in_html("$$N + 1$$").startswith('<div class="formula"><math display="block"')
    for lab in LABS:  # five letters in a row are a word, so no formula
        assert not re.search(r"(<mi>\w</mi>){5}", pages_of(folder, lab)), lab
    with pytest.raises(ValueError, match=r"nosuchword"):
        formulas.mathml(r"\nosuchword{x}")


MEGABYTE = 1_000_000


def asked_by(folder, name):
    """The files of a page: what it asks for, and the scripts of what moves on it."""
    page = (folder / f"{name}.html").read_text(encoding="utf-8")
    files = {folder / address.split("?")[0] for address in Asks(page).addresses}
    moving = re.findall(r'data-replay="(\w+)"', page)
    files |= {folder / "_static" / "figures" / f"{one}.js" for one in moving}
    return [folder / f"{name}.html", *files]


def test_a_page_has_at_most_one_and_a_half_megabytes(folder):
    for path in folder.glob("*.html"):
        size = sum(file.stat().st_size for file in asked_by(folder, path.stem))
        assert size <= 1.5 * MEGABYTE, path.stem


def test_links_lead_to_pages_and_headings_that_are_there(folder):
    pages = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.html")}
    for name, page in pages.items():
        for address in re.findall(r'<a [^>]*href="([^"]*)"', page):
            if re.match(r"https?:", address):
                continue
            file, _, anchor = html.unescape(address).partition("#")
            there = pages[file or name]  # a KeyError names a page that is missing
            assert not anchor or f'id="{anchor}"' in there, (name, address)


def test_the_first_page_has_what_a_reader_wants_to_know(folder):
    page = (folder / "index.html").read_text(encoding="utf-8")
    read = " ".join(text_lines(page).split())
    for said in ("For whom", "What it takes", "34 hours", "no GPU", "MIT licence", "make lab",
                 "authors", "a cycle: rank 0 -> rank 1 -> rank 0"):  # fmt: skip
        assert said in read, said
    for lab in LABS:
        _, claim = landing.FIGURES[lab]
        assert claim in read and f'href="{lab}.html"' in page and f"figures/{lab}.png" in page
    assert re.search(r'<meta content="[^"]{80,200}" name="description"', page)
    assert 'property="og:image"' in page and (folder / "_static" / "og.png").stat().st_size > 10_000


def test_the_search_finds_sections_and_has_their_text(folder):
    text = (folder / "_static" / "search-index.js").read_text(encoding="utf-8")
    found = search.unpacked(text)
    pages = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.html")}
    assert {page for page, *_ in found} == {*pages} - {"search"} | {"search"}
    for page, anchor, _, _ in found:
        assert not anchor or f'id="{anchor}"' in pages[page]
    assert len({(page, anchor) for page, anchor, *_ in found}) == len(found) > 250
    (verdict,) = [one for one in found if one[1] == "a-deadlock-on-purpose"]
    assert verdict[2] == "A deadlock, on purpose · Lab 0: 4. Send and receive"
    assert "launch.expect_error runs a function that is meant to fail" in verdict[3]
    assert "<" not in "".join(t for *_, t in found[:20] if "<details" in t)
    assert not any("minutes, about" in title for *_, title, _ in found)


def test_the_progress_bar_follows_what_sphinx_says(monkeypatch):
    moved = []
    monkeypatch.setattr(progress, "tqdm", lambda **_: Bar(moved))
    status = progress.Status()
    for said in ("reading sources... [ 40%] a", "reading sources... [100%] b\x1b[0m", "words",
                 "writing output... \x1b[1m[ 50%] c", "writing output... [100%] d"):  # fmt: skip
        status.write(said)
    status.close()
    assert moved == [20, 30, 25, 25]


class Bar:
    def __init__(self, moved):
        self.update = moved.append

    def close(self):
        pass


@pytest.mark.parametrize("name", runs.RUNS)
def test_a_replay_has_all_frames_and_says_each_in_words(folder, name):
    text = (folder / "_static" / "figures" / f"{name}.js").read_text(encoding="utf-8")
    data = json.loads(text.removeprefix(f'book.data("{name}", ').removesuffix(");\n"))
    frames = json.loads(zlib.decompress(base64.b64decode(data["packed"])))
    title, *_, caption = re.findall(r"<text[^>]*>([^<]*)<", frames[-1])
    assert len(html.unescape(title)) <= 72 and len(html.unescape(caption)) <= 96  # none is cut
    assert len(frames) == len(data["alts"]) > 4 and all(len(alt) > 40 for alt in data["alts"])
    assert frames[-1] == (folder / "_static" / "figures" / f"{name}.svg").read_text(
        encoding="utf-8"
    )


def test_the_recorded_tree_doubles_the_ranks_that_have_the_tensor():
    data = runs.stored()["broadcast_tree"]
    have = {data["root"]}
    for sends in data["rounds"]:
        assert {a for a, _ in sends} <= have and len(sends) == min(
            len(have), data["ranks"] - len(have)
        )
        have |= {b for _, b in sends}
    assert have == {*range(data["ranks"])}
    assert "3 of 3" not in animations.broadcast_tree(data)[-1][1]


def test_the_recorded_deadlock_is_that_of_the_notebook():
    data = runs.stored()["deadlock"]
    assert data["hangs"] == [[r, "send", 1 - r, "posted"] for r, *_ in data["hangs"]]
    assert len(data["works"]) == 8 and sum(one[3] == "done" for one in data["works"]) == 4
    said = told_by("deadlock")
    assert all(line in said for line in data["verdict"])
    assert "rank 0: send waits" in animations.deadlock(data)[-1][1]


def test_the_recorded_ring_is_the_ring_and_its_last_frame_says_so():
    data = runs.stored()["ring_all_reduce"]
    assert data["rounds"] == [[[r, (r + 1) % 4] for r in range(4)]] * 6
    assert data["states"][2] == [[1 + (r - c - 1) % 4 for c in range(4)] for r in range(4)]
    assert data["states"][-1] == [[4] * 4] * 4
    assert "rank 3 holds 4 4 4 4" in animations.ring_all_reduce(data)[-1][1]


def test_the_recorded_schedules_are_those_of_the_lab():
    data = runs.stored()["one_f_one_b_and_zb_h1"]
    for name, schedule in (("1F1B", pipeline.one_f_one_b(4, 8)), ("ZB-H1", pipeline.zb_h1(4, 8))):
        for rank, actions in enumerate(schedule):
            ran = sorted(
                (start, kind, batch) for r, kind, batch, start, _ in data[name] if r == rank
            )
            assert [(kind, batch) for _, kind, batch in ran] == [
                (a.kind, a.microbatch) for a in actions
            ]
    first, second = (max(end for *_, end in some) for some in data.values())
    assert second < 0.9 * first
    assert len(animations.one_f_one_b_and_zb_h1(data)) == 73


def test_the_recorded_step_gathers_each_block_twice_and_one_at_a_time():
    data = runs.stored()["gather_and_free"]
    events = units.changes("ZeRO-3", data["events"], data["units"])
    for block in range(data["units"]):
        assert [what for _, what, unit in events if unit == block] == ["unshard", "reshard"] * 2
    frames = animations.gather_and_free(data)
    assert all(alt.count("block", alt.index("; unsharded: ")) <= 1 for _, alt in frames)
    assert frames[0][1].endswith("unsharded: none.")


def test_the_recorded_rows_all_arrive_and_all_come_back():
    data = runs.stored()["tokens_to_experts"]
    frames = animations.tokens_to_experts(data)
    assert {svg.count("<circle") for svg, _ in frames} == {sum(map(sum, data["rows"]))}
    assert frames[0] == frames[-1] != frames[len(frames) // 2]
    edges = set(re.findall(r'<circle[^>]* stroke="(#\w+)"', frames[0][0]))
    # seen on paper, whatever the dot's colour
    assert len(edges) == 4 and all(readable(edge) == edge for edge in edges)


def told_by(name):
    """The alt texts and the words below which an animation stands, as the notebook's own
    run has left them."""
    lab, cell_id, _ = runs.RUNS[name]
    (cell,) = [
        cell
        for cell in notebook.read(notebook.solution_path(ROOT, lab)).cells
        if cell.id == cell_id
    ]
    return " ".join(
        output.get("text", "") or output.metadata["image/png"]["alt"] for output in cell.outputs
    )


def test_the_recorded_runs_say_what_the_notebooks_figures_say():
    data = runs.stored()
    ring, states = data["ring_all_reduce"], data["ring_all_reduce"]["states"]
    for number, (sends, state) in enumerate(zip(ring["rounds"], states, strict=True), 1):
        ways = ", ".join(f"{a} to {b}" for a, b in sends)
        held = "; ".join(
            f"rank {rank} holds {' '.join(map(str, counts))}" for rank, counts in enumerate(state)
        )
        assert f"Round {number}: {ways}; then {held}." in told_by("ring_all_reduce")
    step = data["gather_and_free"]
    figure = plots.units_unsharded(
        {"FSDP": step["events"]}, [f"block {i}" for i in range(step["units"])]
    )
    assert figure.alt == told_by("gather_and_free")
    assert plots.exchange_matrix(data["tokens_to_experts"]["rows"]).alt == told_by(
        "tokens_to_experts"
    )
    for name, some in data[
        "one_f_one_b_and_zb_h1"
    ].items():  # another run of the same: within a tenth of the median
        (measured,) = re.findall(
            rf"^{name} +measured (\d+) ms", told_by("one_f_one_b_and_zb_h1"), re.MULTILINE
        )
        assert max(end for *_, end in some) == pytest.approx(float(measured) / 1e3, rel=0.1)


def test_record_runs_the_cells_that_a_figure_needs_and_keeps_the_others(tmp_path, monkeypatch):
    notebook.write(toy_notebook(), notebook.solution_path(tmp_path, "lab9_toy"))
    monkeypatch.setattr(runs, "STORED", tmp_path / "runs.json")
    of_toy = lambda source: ("lab9_toy", "", source)
    monkeypatch.setattr(
        runs, "RUNS", {"two": of_toy("data = double(1), 1 / 3"), "one": of_toy("data = 1")}
    )
    (tmp_path / "runs.json").write_text('{"one": [1, 2]}')
    runs.record(tmp_path, ["two"])
    assert runs.stored() == {"two": [2, 0.3333], "one": [1, 2]}
    monkeypatch.setitem(runs.RUNS, "two", of_toy("data = double(nowhere)"))
    with pytest.raises(CourseError, match="nowhere"):
        runs.record(tmp_path, ["two"])
    assert runs.stored()["two"] == [2, 0.3333]


@pytest.mark.slow
def test_recorded_anew_the_runs_are_the_same_but_for_their_times(tmp_path, monkeypatch):
    before = runs.stored()
    monkeypatch.setattr(runs, "STORED", tmp_path / "runs.json")
    assert main(["record"]) == 0
    after = runs.stored()
    timed = "one_f_one_b_and_zb_h1"
    actions = lambda some: sorted(bar[:3] for bar in some)
    assert {name: actions(some) for name, some in before.pop(timed).items()} == {
        name: actions(some) for name, some in after.pop(timed).items()
    }
    for name in ("hangs", "works"):  # which of two ranks comes first is chance
        assert sorted(before["deadlock"][name]) == sorted(after["deadlock"][name])
    assert before.pop("deadlock")["verdict"] == after.pop("deadlock")["verdict"]
    assert before == after


def test_the_workflow_publishes_what_make_book_writes():
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text(encoding="utf-8"))
    (job,) = flow["jobs"].values()
    does = [
        step.get("run", step.get("uses", "")).split("@")[0].split(" TORCH")[0]
        for step in job["steps"]
    ]
    order = ["make book", "actions/upload-pages-artifact", "actions/deploy-pages"]
    assert [one for one in does if one in order] == order
    assert all(
        re.fullmatch(r"[\w/-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step
    )
    (kept,) = [step["with"]["path"] for step in job["steps"] if "upload" in step.get("uses", "")]
    assert kept == "build/book" and flow["permissions"] == {
        "contents": "read",
        "pages": "write",
        "id-token": "write",
    }


@pytest.mark.parametrize("address", ["", "https://github.com/owner/name"])
def test_pages_lead_to_the_repository_where_its_address_is_known(tmp_path, address):
    notebook.write(toy_notebook(), notebook.solution_path(tmp_path, "lab9_toy"))
    (tmp_path / "pyproject.toml").write_text(f"[project]\nurls = {{ Repository = '{address}' }}\n")
    book.write_sources(tmp_path, tmp_path / "sources")
    title = notebook.read(tmp_path / "sources" / "lab9_toy.ipynb").cells[0].source
    index = (tmp_path / "sources" / "index.md").read_text(encoding="utf-8")
    linked = f'<a href="{address}">the repository</a>' in index
    assert ("Open in Colab" in title) == linked == bool(address)
    assert ("https://owner.github.io/name/_static/og.png" in index) == bool(address)


def test_a_warning_stops_the_build_and_leaves_the_old_book(tmp_path, monkeypatch):
    out = tmp_path / "book"
    out.mkdir()
    (out / "index.html").write_text("old")
    monkeypatch.setattr(book, "write_sources", broken_sources)
    with pytest.raises(CourseError, match="nowhere"):
        book.make(ROOT, out)
    assert (out / "index.html").read_text() == "old" and list(tmp_path.iterdir()) == [out]


def broken_sources(root, sources):
    sources.mkdir(parents=True)
    (sources / "conf.py").write_text("html_theme = 'basic'\nextensions = ['myst_nb']\n")
    (sources / "index.md").write_text("# Book\n\n[gone](nowhere.md)\n")
