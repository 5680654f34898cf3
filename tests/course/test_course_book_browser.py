"""The book in Chromium, opened as files: sliders move, answers wait for a guess, nothing is asked
of outside, and axe.

Slow: part of `make test-all`. Needs Chromium, Playwright and axe-core (`pip install -e
'.[browser,book]'`).
"""

import contextlib
import functools
import http.server
import re
import shutil
import threading

import pytest

from lib.course import notebook
from lib.course.book import notebooks, runs, sections
from lib.course.notebook import ROOT

pytest.importorskip(
    "myst_nb", reason="not run: the book's tools are not installed (pip install -e '.[book]')"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="not run: axe-playwright-python is missing"
)
import test_course_browser  # noqa: E402
from test_course_browser import PATIENCE, until  # noqa: E402

chromium = test_course_browser.browser  # the fixture
pytestmark = pytest.mark.slow
LABS = notebook.labs(ROOT)
REPLAYED = {cell: (name, "") for name, (_, cell, _) in runs.RUNS.items()}
PARTS = {}  # {lab: {name of a page: its notebook}}
for _lab in LABS:
    _solution = notebook.read(notebook.solution_path(ROOT, _lab))
    PARTS[_lab] = sections.split(_lab, notebooks.page(_solution, REPLAYED))
NAMES = ["index", "glossary", "search", *(name for parts in PARTS.values() for name in parts)]
FEW = ["index", "glossary", "search", "lab0_concepts", "lab0_concepts-send-and-receive",
       "lab2_pipeline_parallel-explorer-and-a-real-job", "lab5_moe-capacity"]  # fmt: skip
SERIOUS = ("serious", "critical")
HALVES = [NAMES[::2], NAMES[1::2]]  # two tests for two processes, each with one window


def page_with(words):
    """The name of the page whose cells have these words."""
    return next(
        name
        for parts in PARTS.values()
        for name, part in parts.items()
        if any(words in cell.source for cell in part.cells)
    )


class Pages:
    """Pages of the book in one window; what went wrong in any of them is noted. at: the
    address of its folder."""

    def __init__(self, browser, folder, at=None, width=1200, **settings):
        self.at, self.wrong = at or folder.as_uri(), []
        self.page = browser.new_page(viewport={"width": width, "height": 1000}, **settings)
        self.page.set_default_timeout(1000 * PATIENCE)
        self.page.on(
            "console",
            lambda said: said.type in ("error", "warning") and self.wrong.append(said.text),
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self._asked(asked.url))

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.page.close()
        assert failed or self.wrong == []

    def _asked(self, address):
        if not address.startswith((f"{self.at}/", "data:", "blob:")):
            self.wrong.append(address)

    def open(self, name, part=""):
        self.page.goto(f"{self.at}/{name}.html{part}")
        self.page.wait_for_load_state("load")
        moving = self.page.locator(".moving").count()
        until(
            lambda: self.page.locator(".moving :is(.controls, .player)").count() == moving,
            "the controls of all figures",
        )
        return self.page

    def explorer(self, name):
        """(the holder of an explorer's controls, its image)"""
        holder = self.page.locator(f"[data-explorer={name}]")
        return holder, holder.locator("xpath=preceding-sibling::*[1]").locator("img")


@pytest.fixture
def pages(chromium, book_folder):
    with Pages(chromium, book_folder) as pages:
        yield pages


def drawn(image):
    """Whether the image can be drawn, and how wide it is."""
    return image.evaluate("async one => { await one.decode(); return one.naturalWidth }")


EXPLORERS = (
    *("all_reduce_cost", "ring_against_hierarchical", "model_memory", "data_parallel_step"),
    *("scaling_explorer", "pipeline", "zero_memory", "zero_volume", "capacity", "plans"),
)


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_slider_moves_the_figure_by_the_keyboard(pages, name):
    pages.open(page_with(f'data-explorer="{name}"'))
    show_all(pages.page)  # some figures wait for a guess
    holder, image = pages.explorer(name)
    before = image.get_attribute("alt")
    handle = holder.locator("input[type=range]").first
    handle.focus()
    assert handle.get_attribute("aria-valuetext")
    pages.page.keyboard.press("Home")
    until(lambda: image.get_attribute("alt") != before, "another figure")
    assert image.get_attribute("src").startswith("data:image/svg+xml") and drawn(image) > 500
    assert holder.locator("[role=status]").inner_text() == image.get_attribute("alt")


def test_a_menu_moves_the_figure_and_what_cannot_run_is_said(pages):
    pages.open(page_with('data-explorer="pipeline"'))
    show_all(pages.page)
    holder, image = pages.explorer("pipeline")
    holder.locator("select").select_option("ZB-H1")
    until(lambda: "ZB-H1: bubble 11.1%" in image.get_attribute("alt"), "the other schedule")
    holder.locator("select").select_option("DualPipeV")
    holder.locator("label", has_text="m").locator("input[type=range]").nth(0).focus()
    holder.locator("input[type=range]").nth(1).focus()
    pages.page.keyboard.press("Home")
    until(lambda: "cannot run this" in image.get_attribute("alt"), "the refusal")


def test_an_answer_waits_for_a_guess_and_the_guess_is_kept(pages):
    name = page_with("GPT-3 has 175 billion parameters. How many terabytes")
    page = pages.open(name)
    answer = page.locator("details.predict").first
    assert not answer.is_visible()
    form = page.locator("form.guess").first
    form.locator("button", has_text="Check").click()  # nothing is guessed
    assert not answer.is_visible()
    form.locator("input").fill("3 TB")
    page.keyboard.press("Enter")
    assert answer.is_visible() and "2.8 TB" in answer.inner_text()
    assert "You guessed: 3 TB" in form.inner_text()
    pages.open(name)
    assert page.locator("details.predict").first.is_visible()
    assert "You guessed: 3 TB" in page.locator("form.guess").first.inner_text()


def test_a_reader_may_be_shown_without_a_guess(pages):
    name = page_with("my_rows =")
    page = pages.open(name)
    cell = page.locator(".tag_waits-my_rows").first
    assert not cell.locator(".cell_output").is_visible()
    cell.locator(".locked button").click()
    printed = cell.locator(".cell_output").inner_text()
    assert "‹" not in printed and "you" not in printed.split("formula")[0]
    pages.open(name)
    assert page.locator(".tag_waits-my_rows .cell_output").first.is_visible()


@pytest.mark.parametrize("lab", LABS)
def test_what_a_cell_printed_waits_for_all_guesses_that_it_tells(pages, lab):
    for name in PARTS[lab]:
        page = pages.open(name)
        waiting = page.locator("[class*=tag_waits-] > .cell_output")
        held = page.locator(".cell_output[hidden]").count()
        assert held == page.locator("p.locked").count(), name
        guess_all(page, "4711")
        left = "p.locked, .cell_output[hidden], details.predict[hidden], .moving[hidden]"
        assert page.locator(left).count() == 0, name
        assert "‹" not in " ".join(waiting.all_inner_texts()), name


def show_all(page):
    """Ask to be shown what waits for a guess."""
    while page.locator("form.guess button.show").count():
        page.locator("form.guess button.show").first.click()


def guess_all(page, guess, first=0):
    """Fill in all forms for guesses, or those from the first on."""
    fill = """(forms, [guess, first]) => forms.slice(first).forEach(form => {
        form.querySelectorAll("input").forEach(field => { field.value = guess });
        form.requestSubmit() })"""
    page.locator("form.guess").evaluate_all(fill, [guess, first])


def test_two_guesses_are_made_by_the_keyboard_and_stand_where_the_cell_prints_them(pages):
    page = pages.open(page_with("my_strong = None"))
    page.locator("form.guess fieldset input").first.focus()
    for key in ("4", "Tab", "9", "Enter"):
        page.keyboard.press(key)
    assert "You guessed: 4, 9" in page.locator("form.guess p").all_inner_texts()
    show_all(page)
    printed = page.locator(".tag_waits-my_strong .cell_output").first.inner_text()
    assert "faster by a factor of: you 4, formula" in printed
    assert "longer by a factor of: you 9, formula" in printed


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("What does each rank hold after the next cell", "now has 496"),
        ("how many elements does a rank contribute", "A split by rows"),
        ("How many groups are there along tp", "Answer to (b)"),
    ],
)
def test_what_shows_the_answer_to_a_question_waits_for_the_guess(pages, question, told):
    page = pages.open(page_with(question))
    shown = page.locator(".cell_output, details", has_text=told).first
    assert not shown.is_visible()
    page.locator("p", has_text=question).locator("xpath=following::form[1]").locator("input").fill(
        "8 of them"
    )
    page.keyboard.press("Enter")
    assert shown.is_visible()


@pytest.mark.parametrize("name", runs.RUNS)
def test_a_replay_starts_at_its_first_frame_and_steps_where_motion_is_not_wanted(
    chromium, book_folder, name
):
    where = page_with(f'data-replay="{name}"')
    for motion in ("no-preference", "reduce"):
        with Pages(chromium, book_folder, reduced_motion=motion) as pages:
            # one stands below a cell that waits for a guess
            show_all(pages.open(where))
            holder = pages.page.locator(f"[data-replay={name}]")
            image, button, time = (holder.locator(one) for one in ("img", "button", "input"))
            at = lambda time=time: int(time.input_value())
            last = int(time.get_attribute("max"))
            pages.page.wait_for_timeout(500)
            assert at() == 0 and drawn(image) > 500  # nothing moves by itself
            first = image.get_attribute("src")
            button.focus()
            pages.page.keyboard.press("Enter")
            if motion == "reduce":
                assert button.inner_text() == "Next step" and at() == 1
                pages.page.wait_for_timeout(1500)
                assert at() == 1
            else:
                until(lambda at=at, last=last: 1 <= at() < last, "a frame in the middle")
                button.click()
                assert button.inner_text() == "Play" and image.get_attribute("src") != first
                button.click()
                until(lambda at=at, last=last: at() == last, "the last frame")
                assert button.inner_text() == "Replay"


def test_a_click_on_the_first_page_causes_a_deadlock_and_its_verdict_is_read(pages):
    page = pages.open("index")
    verdict = page.locator("#verdict")
    assert not verdict.is_visible()
    page.locator("button", has_text="Run it on 2 ranks").click()
    until(verdict.is_visible, "the verdict")
    assert "a cycle: rank 0 -> rank 1 -> rank 0" in verdict.inner_text()
    assert "line 4 of both_send_first" in verdict.inner_text()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Megatron sequence parallelism", "lab3_tensor_parallel-sequence-parallelism.html"),
        ("deadlock on purpose", "lab0_concepts-send-and-receive.html#a-deadlock-on-purpose"),
        ("全归约", "glossary.html"),
    ],
)
def test_search_finds_the_section_and_shows_an_excerpt(pages, words, found):
    page = pages.open("index")
    page.locator("header input[type=search]").fill(words)
    page.keyboard.press("Enter")
    page.locator("#found a").first.wait_for(timeout=60_000)
    addresses = page.locator("#found a").evaluate_all("them => them.map(one => one.href)")
    assert any(found in address for address in addresses[:5]), addresses[:5]
    assert page.locator("#found mark").count() >= 1
    page.locator(f"#found a[href^='{found}']").first.click()
    page.wait_for_url(f"**/{found}*")


def test_search_says_when_nothing_is_found(pages):
    page = pages.open("search", "?q=nosuchword")
    until(lambda: "No section" in page.locator("#how-many").inner_text(), "the answer")


@contextlib.contextmanager
def served(folder, below):
    """An HTTP server that has the folder at /below; yields its address."""
    shutil.copytree(folder, below)
    handler = functools.partial(Quiet, directory=below.parents[1])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{below.parent.name}/{below.name}"
        finally:
            server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_below_a_path_of_a_server_it_asks_only_there_and_search_finds(
    chromium, book_folder, tmp_path
):
    with served(book_folder, tmp_path / "x" / "y") as at, Pages(chromium, book_folder, at) as pages:
        for name in FEW:
            pages.open(name)
        page = pages.open("search", "?q=Megatron")
        page.locator("#found a", has_text="Lab 3").first.click(timeout=60_000)
        page.wait_for_url(f"{at}/lab3_tensor_parallel*")


@pytest.mark.parametrize("names", HALVES, ids=["first", "second"])
def test_no_page_sticks_out_of_a_phone_and_no_code_out_of_a_laptop(chromium, book_folder, names):
    outside = """() => [...document.querySelectorAll(".cell_input pre")]
        .filter(one => one.scrollWidth > one.clientWidth).length"""
    with Pages(chromium, book_folder, width=390) as pages:
        for name in names:
            page = pages.open(name)
            page.set_viewport_size({"width": 390, "height": 1000})
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            for width in (1100, 1440):
                page.set_viewport_size({"width": width, "height": 1000})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, name
                assert page.evaluate(outside) == 0, (name, width)


def test_on_a_phone_a_table_scrolls_and_the_contents_are_folded_away(chromium, book_folder):
    with Pages(chromium, book_folder, width=390) as pages:
        page = pages.open(page_with("| collective | before"))
        box = page.locator(".scrolls").first
        assert box.evaluate("one => one.scrollWidth > one.clientWidth && one.tabIndex === 0")
        assert not page.locator("#contents").is_visible()
        page.locator("button.contents").click()
        assert page.locator("#contents").is_visible()


@pytest.mark.parametrize("width", [1200, 390])
def test_sliders_begin_below_each_other_and_what_one_says_stands_in_one_line(
    chromium, book_folder, width
):
    with Pages(chromium, book_folder, width=width) as pages:
        name = page_with('data-explorer="model_memory"')
        figure = pages.open(name).locator("[data-explorer=model_memory]")
        lefts = figure.locator("input").evaluate_all(
            "them => them.map(one => one.getBoundingClientRect().left)"
        )
        assert len(lefts) == 2 and lefts[0] == lefts[1]
        said = figure.locator("output", has_text="7 billion")
        assert (
            said.evaluate("one => one.getClientRects().length") == 1
            and said.bounding_box()["height"] < 30
        )


def test_the_theme_is_chosen_by_a_button_and_kept(chromium, book_folder):
    with Pages(chromium, book_folder, color_scheme="dark") as pages:
        page = pages.open("lab0_concepts")
        color = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = color()
        page.locator("button.theme").click()
        assert color() == "rgb(255, 255, 255)" != dark
        pages.open("glossary")
        assert color() == "rgb(255, 255, 255)"


def test_on_paper_all_is_there_and_light_and_nothing_that_only_a_screen_has(chromium, book_folder):
    with Pages(chromium, book_folder, color_scheme="dark") as pages:
        page = pages.open(page_with("send_recv(tensor, to"))
        assert (
            page.locator("details").first.locator(":scope > :not(summary)").first.is_visible()
            is False
        )
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        for gone in (
            ".controls",
            "form.guess",
            ".locked",
            ".player",
            "#contents",
            ".on-page",
            ".bar",
        ):
            assert not any(one.is_visible() for one in page.locator(gone).all()), gone
        assert all(
            one.is_visible()
            for one in page.locator(
                "details > :not(summary):not(br), .cell_output, .moving img"
            ).all()
        )
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        # an A4 page has 1000
        assert (
            max(page.locator("article img").evaluate_all("them => them.map(one => one.height)"))
            < 900
        )
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == ""
        paper = page.pdf(format="A4")
        assert 3 < len(re.findall(rb"/Type /Page\b", paper)) < 30


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("names", HALVES, ids=["first", "second"])
def test_axe_finds_nothing_serious(chromium, book_folder, names, scheme):
    with Pages(chromium, book_folder, color_scheme=scheme) as pages:
        for name in names:
            page = pages.open(name)
            guess_all(page, "1", first=1)  # one stays as it is at first
            page.evaluate(
                "document.querySelectorAll('details').forEach(one => { one.open = true })"
            )
            # all is laid out
            page.evaluate(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            options = {"preload": False, "resultTypes": ["violations"]}
            found = axe.Axe().run(page, options=options).response["violations"]
            serious = [one for one in found if one["impact"] in SERIOUS]
            assert [(name, one["id"], one["nodes"][0]["html"]) for one in serious] == []
