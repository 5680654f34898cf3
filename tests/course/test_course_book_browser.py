"""The book in Chromium, opened as files: sliders move, answers wait for a guess, nothing is asked of outside, and axe.

Slow: part of `make test-all`. Needs Chromium, Playwright and axe-core (`pip install -e '.[browser,book]'`).
"""

import pytest

from lib.course import notebook
from lib.course.book import runs
from lib.course.notebook import ROOT

pytest.importorskip("myst_nb", reason="not run: the book's tools are not installed (pip install -e '.[book]')")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="not run: axe-playwright-python is missing")
import test_course_browser  # noqa: E402
from test_course_browser import until  # noqa: E402

chromium = test_course_browser.browser  # the fixture
pytestmark = pytest.mark.slow
LABS = notebook.labs(ROOT)
MOVING = {"lab0_concepts": "model_memory", "lab2_pipeline_parallel": "pipeline", "lab5_moe": "capacity"}
SERIOUS = ("serious", "critical")


class Pages:
    """Pages of the book in one window; what went wrong in any of them is noted."""

    def __init__(self, browser, folder, **settings):
        self.folder, self.wrong = folder, []
        self.page = browser.new_page(viewport={"width": 1200, "height": 1000}, **settings)
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self._asked(asked.url))

    def _asked(self, address):
        if not address.startswith((self.folder.as_uri(), "data:", "blob:")):
            self.wrong.append(address)

    def open(self, name, part=""):
        self.page.goto(f"{(self.folder / name).as_uri()}.html{part}")
        self.page.wait_for_load_state("load")
        moving = self.page.locator(".moving").count()
        until(lambda: self.page.locator(".moving .controls").count() == moving, "the controls of all figures")
        return self.page

    def figure(self, name):
        """(the holder of a figure's controls, its image)"""
        holder = self.page.locator(f"[data-figure={name}]")
        inside = holder.locator("img")
        return holder, inside if inside.count() else holder.locator("xpath=preceding-sibling::*[1]").locator("img")


@pytest.fixture
def pages(chromium, book_folder):
    pages = Pages(chromium, book_folder)
    yield pages
    pages.page.close()
    assert pages.wrong == []


def drawn(image):
    """Whether the image can be drawn, and how wide it is."""
    return image.evaluate("async one => { await one.decode(); return one.naturalWidth }")


@pytest.mark.parametrize("lab", MOVING)
def test_a_slider_moves_the_figure_by_the_keyboard(pages, lab):
    pages.open(lab)
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
    holder.locator("select").select_option("ZB-H1")
    until(lambda: "ZB-H1" in image.get_attribute("alt"), "the other schedule")


def test_an_answer_waits_for_a_guess_and_stays_open(pages):
    page = pages.open("lab0_concepts")
    answer = page.locator("details.predict").first
    assert not answer.is_visible()
    form = page.locator("form.guess").first
    form.locator("button").click()  # nothing is guessed
    assert not answer.is_visible()
    form.locator("input").fill("3 TB")
    page.keyboard.press("Enter")
    assert answer.is_visible() and "2.8 TB" in answer.inner_text() and "You guessed: 3 TB" in form.inner_text()
    pages.open("lab0_concepts")
    assert (
        page.locator("details.predict").first.is_visible() and not page.locator("details.predict").nth(1).is_visible()
    )


@pytest.mark.parametrize("lab", LABS)
def test_what_a_cell_printed_waits_for_all_guesses_that_it_tells(pages, lab):
    page = pages.open(lab)
    page.evaluate("localStorage.clear()")
    pages.open(lab)
    waiting = page.locator("[class*=tag_waits-] > .cell_output")
    assert waiting.count() == page.locator("p.locked").count() and not any(one.is_visible() for one in waiting.all())
    for form in page.locator("form.guess").all():
        form.locator("input").fill("4711")
        form.locator("button").click()
    assert all(one.is_visible() for one in waiting.all()) and page.locator("p.locked").count() == 0
    assert all(one.is_visible() for one in page.locator("details.predict").all())
    if waiting.count():
        assert "you 4711" in " ".join(waiting.all_inner_texts())


@pytest.mark.parametrize("name", runs.RUNS)
def test_an_animation_plays_to_its_end_and_steps_where_motion_is_not_wanted(chromium, book_folder, name):
    for motion in ("no-preference", "reduce"):
        pages = Pages(chromium, book_folder, reduced_motion=motion)
        pages.open(runs.RUNS[name][0])
        holder, image = pages.figure(name)
        button, time = holder.locator("button"), holder.locator("input")
        at = lambda time=time: int(time.input_value())
        last = int(time.get_attribute("max"))
        pages.page.wait_for_timeout(500)
        assert at() == last and drawn(image) > 500  # nothing moves by itself
        button.click()
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
        pages.page.close()
        assert pages.wrong == []


def test_search_finds_a_word_and_a_term_in_chinese(pages):
    for word, lab in (("Megatron", "lab3_tensor_parallel.html"), ("全归约", "glossary.html")):
        page = pages.open("search", f"?q={word}")
        page.locator("#search-results li a").first.wait_for(timeout=60_000)
        found = page.locator("#search-results li a").evaluate_all("them => them.map(one => one.href)")
        assert any(lab in address for address in found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "glossary", "search", *LABS])
def test_axe_finds_nothing_serious(chromium, book_folder, name, scheme):
    pages = Pages(chromium, book_folder, color_scheme=scheme)
    page = pages.open(name)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    for form in page.locator("form.guess").all()[1:]:  # one stays as it is at first
        form.locator("input").fill("1")
        form.locator("button").click()
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # all is laid out
    found = axe.Axe().run(page, options={"preload": False, "resultTypes": ["violations"]}).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in SERIOUS] == []
    page.close()
    assert pages.wrong == []
