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
from lib.course.book import runs
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
MOVING = {
    "lab0_concepts": "model_memory",
    "lab2_pipeline_parallel": "pipeline",
    "lab5_moe": "capacity",
}
SERIOUS = ("serious", "critical")


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
            lambda: self.page.locator(".moving .controls").count() == moving,
            "the controls of all figures",
        )
        return self.page

    def figure(self, name):
        """(the holder of a figure's controls, its image)"""
        holder = self.page.locator(f"[data-figure={name}]")
        inside = holder.locator("img")
        return holder, inside if inside.count() else holder.locator(
            "xpath=preceding-sibling::*[1]"
        ).locator("img")


@pytest.fixture
def pages(chromium, book_folder):
    with Pages(chromium, book_folder) as pages:
        yield pages


def drawn(image):
    """Whether the image can be drawn, and how wide it is."""
    return image.evaluate("async one => { await one.decode(); return one.naturalWidth }")


@pytest.mark.parametrize("lab", MOVING)
def test_a_slider_moves_the_figure_by_the_keyboard(pages, lab):
    guess_all(pages.open(lab), "1")  # some figures wait for a guess
    holder, image = pages.figure(MOVING[lab])
    before = image.get_attribute("alt")
    handle = holder.locator("input[type=range]").first
    handle.focus()
    assert handle.get_attribute("aria-valuetext")
    pages.page.keyboard.press("Home")
    until(lambda: image.get_attribute("alt") != before, "another figure")
    assert image.get_attribute("src").startswith("data:image/svg+xml") and drawn(image) > 500
    assert holder.locator("[role=status]").inner_text() == image.get_attribute("alt")


def test_a_menu_moves_the_figure(pages):
    pages.open("lab2_pipeline_parallel")
    holder, image = pages.figure("pipeline")
    menu = holder.locator("select")
    shown = menu.evaluate("one => one.value")
    (other, *_) = (name for name in menu.locator("option").all_inner_texts() if name != shown)
    before = image.get_attribute("alt")
    menu.select_option(other)
    until(lambda: image.get_attribute("alt") != before, "the other schedule")


def test_an_answer_waits_for_a_guess_and_stays_open(pages):
    page = pages.open("lab0_concepts")
    answer = page.locator("details.predict").first
    assert not answer.is_visible()
    form = page.locator("form.guess").first
    form.locator("button").click()  # nothing is guessed
    assert not answer.is_visible()
    form.locator("input").fill("3 TB")
    page.keyboard.press("Enter")
    assert (
        answer.is_visible()
        and "2.8 TB" in answer.inner_text()
        and "You guessed: 3 TB" in form.inner_text()
    )
    pages.open("lab0_concepts")
    assert (
        page.locator("details.predict").first.is_visible()
        and not page.locator("details.predict").nth(1).is_visible()
    )


@pytest.mark.parametrize("lab", LABS)
def test_what_a_cell_printed_waits_for_all_guesses_that_it_tells(pages, lab):
    page = pages.open(lab)
    page.evaluate("localStorage.clear()")
    pages.open(lab)
    waiting = page.locator("[class*=tag_waits-] > .cell_output")
    assert (
        waiting.count()
        <= page.locator("p.locked").count()
        == page.locator(".cell_output[hidden]").count()
    )
    assert not any(one.is_visible() for one in waiting.all())
    guess_all(page, "4711")
    assert page.locator("p.locked, .cell_output[hidden], details.predict[hidden]").count() == 0
    printed = " ".join(waiting.all_inner_texts())
    assert "‹" not in printed and ("you 4711" in printed) == bool(waiting.count())


def guess_all(page, guess, first=0):
    """Fill in all forms for guesses, or those from the first on."""
    fill = """(forms, [guess, first]) => forms.slice(first).forEach(form => {
        form.querySelectorAll("input").forEach(field => { field.value = guess });
        form.requestSubmit() })"""
    page.locator("form.guess").evaluate_all(fill, [guess, first])


def test_two_guesses_are_made_by_the_keyboard_and_stand_where_the_cell_prints_them(pages):
    page = pages.open("lab4_zero_fsdp")
    page.locator("form.guess fieldset input").first.focus()
    for key in ("4", "0", "0", "Tab", "2", "6", "0", "Enter"):
        page.keyboard.press(key)
    assert page.locator("form.guess p").all_inner_texts() == ["You guessed: 400, 260"]
    assert (
        "you 400 and 260 ms, formula 400 and 260"
        in page.locator(".tag_waits-my_ms_ahead .cell_output").inner_text()
    )


@pytest.mark.parametrize(
    ("lab", "question", "told"),
    [
        ("lab0_concepts", "what does each rank hold after the next cell", "now has 496"),
        # after the exercise that computes it
        ("lab0_concepts", "which way, or which two together", "best: (a)"),
        ("lab6_hybrid_3d", "How many groups are there along tp", "Answer to (b)"),
    ],
)
def test_what_shows_the_answer_to_a_question_waits_for_the_guess(pages, lab, question, told):
    page = pages.open(lab)
    shown = page.locator(".cell_output, details", has_text=told).first
    assert not shown.is_visible()
    page.locator("p", has_text=question).locator("xpath=following::form[1]").locator("input").fill(
        "8 of them"
    )
    page.keyboard.press("Enter")
    assert shown.is_visible() and page.locator("form.guess p").count() == 1


@pytest.mark.parametrize("name", runs.RUNS)
def test_an_animation_plays_to_its_end_and_steps_where_motion_is_not_wanted(
    chromium, book_folder, name
):
    for motion in ("no-preference", "reduce"):
        with Pages(chromium, book_folder, reduced_motion=motion) as pages:
            # one stands below a cell that waits for a guess
            guess_all(pages.open(runs.RUNS[name][0]), "1")
            holder, image = pages.figure(name)
            button, time = holder.locator("button"), holder.locator("input")
            at = lambda time=time: int(time.input_value())
            last = int(time.get_attribute("max"))
            pages.page.wait_for_timeout(500)
            assert at() == last and drawn(image) > 500  # nothing moves by itself
            button.focus()
            pages.page.keyboard.press("Enter")
            if motion == "reduce":
                assert button.inner_text() == "Next step" and at() == 0
                button.click()
                pages.page.wait_for_timeout(1500)
                assert at() == 1
            else:
                until(lambda at=at, last=last: 2 <= at() < last, "a frame in the middle")
                button.click()
                assert button.inner_text() == "Play"
                button.click()
                until(lambda at=at, last=last: at() == last, "the last frame")
                assert button.inner_text() == "Play"


def test_search_finds_a_word_and_a_term_in_chinese(pages):
    for word, lab in (("Megatron", "lab3_tensor_parallel.html"), ("全归约", "glossary.html")):
        page = pages.open("search", f"?q={word}")
        page.locator("#search-results li a").first.wait_for(timeout=60_000)
        found = page.locator("#search-results li a").evaluate_all(
            "them => them.map(one => one.href)"
        )
        assert any(lab in address for address in found)


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
        for name in ("index", "glossary", *LABS):
            pages.open(name)
        page = pages.open("search", "?q=Megatron")
        page.locator("#search-results li a", has_text="Lab 3").first.click(timeout=60_000)
        page.wait_for_url(f"{at}/lab3_tensor_parallel.html*")


@pytest.mark.parametrize("name", ["index", "glossary", *LABS])
def test_nothing_sticks_out_of_a_phone(chromium, book_folder, name):
    with Pages(chromium, book_folder, width=390) as pages:
        page = pages.open(name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [1200, 390])
def test_sliders_begin_below_each_other_and_what_one_says_stands_in_one_line(
    chromium, book_folder, width
):
    with Pages(chromium, book_folder, width=width) as pages:
        figure = pages.open("lab0_concepts").locator("[data-figure=model_memory]")
        lefts = figure.locator("input").evaluate_all(
            "them => them.map(one => one.getBoundingClientRect().left)"
        )
        assert len(lefts) == 2 and lefts[0] == lefts[1]
        said = figure.locator("output", has_text="7 billion")
        assert (
            said.evaluate("one => one.getClientRects().length") == 1
            and said.bounding_box()["height"] < 30
        )


def test_on_a_laptop_a_page_has_room_for_a_hundred_columns_of_code(pages):
    page = pages.open("lab0_concepts")
    assert page.locator(".bd-article pre").first.evaluate("one => one.clientWidth") > 100 * 7.5


def test_on_paper_all_is_there_and_light_and_nothing_that_only_a_screen_has(chromium, book_folder):
    with Pages(chromium, book_folder, color_scheme="dark") as pages:
        page = pages.open("lab0_concepts")
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
            ".bd-sidebar-primary",
            ".bd-sidebar-secondary",
            ".bd-header",
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
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        paper = page.pdf(format="A4")
        assert 20 < len(re.findall(rb"/Type /Page\b", paper)) < 80


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "glossary", "search", *LABS])
def test_axe_finds_nothing_serious(chromium, book_folder, name, scheme):
    with Pages(chromium, book_folder, color_scheme=scheme) as pages:
        page = pages.open(name)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        guess_all(page, "1", first=1)  # one stays as it is at first
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        # all is laid out
        page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        found = (
            axe.Axe()
            .run(page, options={"preload": False, "resultTypes": ["violations"]})
            .response["violations"]
        )
        assert [
            (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in SERIOUS
        ] == []
