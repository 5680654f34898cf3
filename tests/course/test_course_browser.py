"""Lab 0 in JupyterLab as a student sees it, in a real browser: verdicts on cards, points, slider,
stop button, a replay, nothing left behind.

In `make test` each has its shorter proof: tests/test_quick.py a check's hint, tests/test_explore.py
a slider in a live kernel, tests/launch a stop and a kernel that is killed,
tests/course/test_course_validate.py an unsolved lab.

Needs Chromium (Debian: `apt-get install chromium`) and Playwright, which drives it (`pip install -e
'.[browser]'`).
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid

import nbformat
import psutil
import pytest

from lib import here, linux
from lib.backend import gpus
from lib.course import edition, nbval_run, notebook
from lib.course.notebook import ROOT

pytest.importorskip(
    "playwright", reason="not run: playwright is not installed (pip install -e '.[browser]')"
)
from playwright.sync_api import sync_playwright

pytestmark = pytest.mark.slow
LAB = "lab0_concepts"
PATIENCE = 120  # seconds for anything, on a machine that does ten things at once
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]
FLAGS += ["--disable-component-update", "--disable-quic"]
WRONG = """def send_recv(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty_like(tensor)
    work = dist.isend(tensor, frm)
    dist.recv(out, to)
    work.wait()
    return out
"""
DEADLOCKS = """def send_recv(tensor, to, frm, group=None, out=None):
    out = torch.empty_like(tensor)
    dist.send(tensor, to)
    dist.recv(out, frm)
    return out
"""
FORGETS = """def send_recv(tensor, to, frm, group=None, out=None):
    out = torch.empty_like(tensor)
    dist.isend(tensor, to)
    work = dist.irecv(out, frm)
    return out
"""
NAMES = """def send_recv(tensor, to, frm, group=None, out=None):
    return tensor + ring_reduce_scater
"""
# what is broken in two inside a word on a card: [word, ...]
BROKEN = """() => [...document.querySelectorAll('.verdict')].flatMap(card => {
    const broken = [], walk = document.createTreeWalker(card, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const text = walk.currentNode;
        if (text.parentElement.closest('style, script, pre, .unseen, [hidden]')) continue;
        for (const word of text.data.matchAll(/[\\w.>-]+/g)) {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            const tops = [...range.getClientRects()].filter(one => one.width).map(one => one.top);
            if (Math.max(...tops) - Math.min(...tops) > 6) broken.push(word[0]);
        }
    }
    return broken;
})"""
HANGS = """def send_recv(tensor, to, frm, group=None, out=None):
    while True:
        time.sleep(0.01)
"""


_cells = {cell.id: cell.source for cell in notebook.read(notebook.solution_path(ROOT, LAB)).cells}
RIGHT, HELLO = _cells["send-recv-answer"], _cells["ranks-hello"]


def until(holds, what):
    """Wait until holds() is true; returns it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.05)
    return found


def name_of(process):
    """A process's name; "" once it has ended."""
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.NoSuchProcess:
        return ""


class Lab:
    """One notebook, open in a page: what a student does with it and sees in it."""

    def __init__(self, page):
        self.page = page

    def js(self, body, *given):
        return self.page.evaluate(
            f"given => {{ const panel = window.jupyterapp.shell.currentWidget; {body} }}", [*given]
        )

    def idle(self):
        return self.js("return panel?.sessionContext?.session?.kernel?.status") == "idle"

    def go_to(self, cell_id):
        """Scroll to a cell, and make it the active one."""
        found = self.js(
            "const place = panel.content.widgets.findIndex(cell => cell.model.id === "
            "given[0]);panel.content.activeCellIndex = place; panel.content.mode = 'command'; "
            "panel.activate();panel.content.scrollToItem(place, 'start'); return place",
            cell_id,
        )
        assert found >= 0, cell_id
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell.jp-mod-active")

    def write(self, cell_id, source):
        """Replace a cell's text, as by selecting all and pasting."""
        self.go_to(cell_id)
        self.page.locator(".jp-mod-active .cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)

    def start(self, cell_id):
        """Run a cell with Control-Enter, and come back while it runs."""
        self.go_to(cell_id)
        self.js("panel.content.activeCell.model.clearExecution()")
        self.page.locator(
            ".jp-mod-active .jp-InputPrompt:visible"
        ).first.click()  # it is there if the source is collapsed, too
        self.page.keyboard.press("Control+Enter")

    def run(self, cell_id):
        """Run a cell to its end; returns what is to be read below it."""
        self.start(cell_id)
        count = "return panel.content.activeCell.model.executionCount"
        until(lambda: self.js(count) is not None and self.idle(), f"the end of cell {cell_id}")
        return self.shown()

    def shown(self):
        """The text below the active cell."""
        return "\n".join(self.page.locator(".jp-mod-active .jp-Cell-outputArea").all_inner_texts())

    def card(self, state):
        """Is there one card below the active cell, in this state?"""
        return self.page.locator(f".jp-mod-active .verdict.{state}").count() == 1

    def figures(self):
        """The pictures below the active cell, as the addresses of their data."""
        pictures = self.page.locator(".jp-mod-active .jp-Cell-outputArea img")
        return pictures.evaluate_all("them => them.map(one => one.src)")


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("not run: no Chromium here (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        started = psutil.Process().children(recursive=True)
        browser.close()
    until(
        lambda: not any("chrom" in name_of(process) for process in started),
        "the end of the browser",
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(address of JupyterLab, a name that it and all it starts carry, its folder); its settings are
    nobody's own.

    The folder is a clone as a student has it, and `make lab` has opened a copy of the lab there.
    """
    folder, name = tmp_path_factory.mktemp("jupyterlab"), uuid.uuid4().hex
    (folder / "labs").mkdir()
    shutil.copy(notebook.lab_path(ROOT, LAB), folder / "labs")
    for shared in ("lib", "pyproject.toml"):
        (folder / shared).symlink_to(ROOT / shared)
    own = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    own += ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "LAB_"))
    }
    env |= {key: str(folder / key.lower()) for key in own} | {nbval_run.NAME: name}
    options = ["--no-browser", "--ServerApp.port=0"]
    options += [
        f"--IdentityProvider.token={name}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=",
    ]
    options += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with (folder / "log.txt").open("wb") as log:
        opens = (
            "import sys, pathlib; from lib.course import mine; mine.main(sys.argv[2:], "
            "pathlib.Path(sys.argv[1]))"
        )
        command = [sys.executable, "-c", opens, folder, "open", LAB, *options]
        process = subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            runtime = folder / "jupyter_runtime_dir"
            (written,) = until(lambda: [*runtime.glob("jpserver-*.json")], "JupyterLab's start")
            port = until(
                lambda: json.loads(written.read_text() or "{}").get("port"), "JupyterLab's port"
            )
            yield f"http://localhost:{port}/?token={name}", name, folder
            process.terminate()
            process.wait(PATIENCE)
            until(lambda: not nbval_run.carriers(name), "the end of all that JupyterLab started")
        finally:
            nbval_run.end_all(name)
            process.wait()


def opened(page, server):
    """Lab 0 in this page, with its set-up cells run."""
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(server[0], timeout=PATIENCE * 1000)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=PATIENCE * 1000)
    lab = Lab(page)
    until(lab.idle, "a kernel")
    lab.saved_on_opening = lab.js(  # after what JupyterLab writes when it knows the kernel
        "const kernel = panel.sessionContext.session.kernel;"
        "return Promise.all([kernel.info, kernel.spec]).then(() => new Promise(done => "
        "setTimeout(() => done(!panel.context.model.dirty), 1000)))"
    )
    set_up = notebook.read(notebook.lab_path(ROOT, LAB))
    for cell in set_up.cells:
        if notebook.role(cell) == "setup":
            assert "Error" not in lab.run(cell.id)
    return lab


@pytest.fixture(scope="module")
def lab(browser, server):
    return opened(browser.new_page(viewport={"width": 1200, "height": 1400}), server)


def test_what_opens_is_the_students_copy(lab):
    assert lab.js("return panel?.context?.path") == f"labs/mine/{LAB}.ipynb"
    assert lab.saved_on_opening
    assert lab.run("here").splitlines() == here.said(gpus.working())


def test_a_new_edition_is_said_in_the_first_cell(lab, server):
    path = server[2] / "labs" / f"{LAB}.ipynb"
    nb = notebook.read(path)
    nb.cells[0].source += " Second edition."
    edition.stamp(nb)
    notebook.write(nb, path)
    assert (
        lab.run("here")
        .strip()
        .endswith("save this notebook, and `make merge LAB=0` puts your answers into it.")
    )
    shutil.copy(notebook.lab_path(ROOT, LAB), path)


def test_a_wrong_answer_gets_its_hint_and_a_right_one_its_points(lab):
    solution = notebook.read(notebook.solution_path(ROOT, LAB))
    right = next(cell.source for cell in solution.cells if cell.id == "send-recv-answer")
    told = lab.run("send-recv-answer") + lab.run("send-recv-check")
    assert told.count("not written yet") == 1 and "CheckFailed" not in told and lab.card("neutral")
    for answer in (WRONG, right):
        lab.write("send-recv-answer", answer)
        assert lab.run("send-recv-answer") == ""
        told = lab.run("send-recv-check")
        if answer is WRONG:
            assert lab.card("failed") and lab.page.locator(".jp-mod-active .tip").count() == 1
            assert told.endswith("CheckFailed: see above") and "16 of 16" not in told
        else:
            assert "16 of 16 points" in told and "Error" not in told and "CheckFailed" not in told
            assert lab.card("passed") and "16 of 100; next: ring_reduce_scatter" in told
    assert "running lib's" not in lab.run("send-recv-figure") and lab.figures()


def test_a_deadlock_gets_the_verdict_that_the_readme_s_picture_shows(browser, server):
    """With PICTURE=1 in the environment it takes the picture anew, from the answer down to the end
    of the verdict."""
    page = browser.new_page(viewport={"width": 1000, "height": 860}, device_scale_factor=1.5)
    lab = opened(page, server)
    lab.write("send-recv-answer", DEADLOCKS)
    assert lab.run("send-recv-answer") == ""
    told = " ".join(lab.run("send-recv-check").split())
    assert "deadlock: each waits for the next a cycle: rank 0 -> rank 1 -> rank 0" in told
    for rank in (0, 1):
        assert (
            f"rank {rank} waits in send to rank {1 - rank} of float64 (2, 3), line 3 of send_recv"
            in told
        )
    lines = page.locator(".jp-mod-active code.line").all_inner_texts()
    assert lines == ["dist.send(tensor, to)"] * 2
    if "PICTURE" in os.environ:
        from PIL import Image

        lab.js("return window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.add_style_tag(content=".Toastify, .jp-cell-toolbar { display: none }")
        lab.go_to("send-recv-answer")
        top = until(
            lambda: page.locator(".jp-Cell.jp-mod-active").bounding_box(), "the answer's place"
        )
        output = page.locator(
            ".jp-Cell.jp-mod-active + .jp-Cell .jp-Cell-outputWrapper"
        ).bounding_box()
        clip = {
            "x": top["x"],
            "y": top["y"],
            "width": top["width"],
            "height": output["y"] + output["height"] - top["y"],
        }
        taken = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
        taken.quantize(64, dither=Image.Dither.NONE).save(
            ROOT / ".github/images/verdict.png", optimize=True
        )
    page.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (FORGETS, "nothing waited for this send"),
        (NAMES, "ring_reduce_scater"),
    ],
    ids=["forgotten wait", "NameError"],
)
def test_a_common_mistake_is_on_a_card_with_the_line_of_the_answer(lab, answer, said):
    lab.write("send-recv-answer", answer)
    assert lab.run("send-recv-answer") == ""
    told = lab.run("send-recv-check")
    assert lab.card("failed") and re.search(said, told), told
    assert lab.page.locator(".jp-mod-active code.line").count() >= 1
    assert told.endswith("CheckFailed: see above")


def test_a_card_is_readable_in_light_and_dark_at_every_width(lab):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        lab.page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})",
            theme,
        )
        is_light = str(theme.endswith("Light")).lower()
        lab.page.wait_for_selector(f"body[data-jp-theme-light={is_light}]", state="attached")
        for width in (700, 1100, 1440):
            lab.page.set_viewport_size({"width": width, "height": 1400})
            assert lab.page.locator(".verdict").count() >= 1
            assert lab.page.evaluate(BROKEN) == [], (theme, width)
        found = axe.Axe().run(lab.page, context={"include": [[".verdict"]]}).response
        assert found["passes"] and found["violations"] == [], theme
    lab.page.set_viewport_size({"width": 1200, "height": 1400})


def test_an_answer_that_was_edited_and_not_run_is_said(lab):
    edited = lambda: lab.page.locator(".jp-mod-active .edited").is_visible()
    lab.run("send-recv-check")
    assert not edited()
    lab.write("send-recv-answer", WRONG)
    lab.run("send-recv-check")
    assert edited()
    lab.run("send-recv-answer")
    lab.run("send-recv-check")
    assert not edited()


def test_a_replay_moves_with_the_arrow_keys(lab):
    lab.write("send-recv-answer", RIGHT)
    assert lab.run("send-recv-answer") == ""
    run = "plots.replay(launch.run(lambda: send_recv(torch.zeros(3), %s, %s), nproc=3))"
    rank = "dist.get_rank()"
    lab.write("ranks-hello", run % (f"({rank} + 1) % 3", f"({rank} - 1) % 3"))
    lab.run("ranks-hello")
    slider = lab.page.locator(".jp-mod-active .replay input")
    at = lambda: lab.page.locator(".jp-mod-active .replay .over circle").first.get_attribute("cx")
    before = at()
    slider.focus()
    lab.page.keyboard.press("ArrowRight")
    assert slider.input_value() == "0.125" and at() != before
    lab.page.keyboard.press("End")
    assert "done: 3 messages" in lab.page.locator(".jp-mod-active .replay .said").inner_text()
    lab.write("ranks-hello", HELLO)


def test_a_slider_moves_the_figure(lab):
    lab.run("walls-explore")
    (before,) = until(lab.figures, "the explorer's figure")
    handle = lab.page.locator(".jp-mod-active .jupyter-widgets .noUi-handle").first
    handle.wait_for(timeout=PATIENCE * 1000)
    names = lab.page.locator(".jp-mod-active .jupyter-widgets .widget-label")
    cut = (
        "them => them.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
    )
    assert names.count() >= 1 and names.evaluate_all(cut) == []
    handle.focus()
    lab.page.keyboard.press("ArrowRight")
    until(lambda: lab.figures() not in ([], [before]), "another figure")
    assert len(lab.figures()) == 1


def ranks_of(name):
    """The ranks among the processes that carry this name: children of a server, which is a
    child of the kernel."""
    is_server = lambda process: any("forkserver" in word for word in process.cmdline())
    found = set()
    for process in nbval_run.carriers(name):
        with contextlib.suppress(psutil.NoSuchProcess):
            if name_of(process) and is_server(process) and is_server(process.parent()):
                found.add(process.pid)
    return found


def test_stop_ends_a_cell_that_hangs_and_the_next_one_runs(lab, server):
    lab.run("ranks-hello")
    # stopped: it rests
    awake = lambda: {pid for pid in ranks_of(server[1]) if linux.state(pid) != "T"}
    lab.write("send-recv-answer", HANGS)
    lab.run("send-recv-answer")
    until(lambda: not awake(), "ranks at rest")
    lab.start("send-recv-check")
    until(lambda: len(awake()) > 1, "ranks that hang")
    assert not lab.idle()
    sign = re.compile(r"\d+ s: ranks 0 and 1 compute at line 3")
    until(lambda: sign.search(lab.shown()), "a sign of life")
    lab.page.locator("[data-command='notebook:interrupt-kernel']").first.click()
    pressed = time.monotonic()
    until(lambda: "stopped after" in lab.shown(), "what is known of a check that was stopped")
    took = time.monotonic() - pressed
    until(lab.idle, "the end of a cell that was stopped")
    told = " ".join(lab.shown().split())
    print(f"what is known was shown {took:.2f} s after stop")
    assert not sign.search(told) and lab.card("neutral")
    for rank in (0, 1):
        assert re.search(rf"rank {rank} \w[^:]*: line [23] of send_recv: ", told), told
    assert told.endswith("KeyboardInterrupt: stopped, and the ranks have been ended")
    until(lambda: not awake(), "the end of the ranks")
    assert "I am rank 3 of 4" in lab.run("ranks-hello")


def test_a_breakpoint_is_answered_in_the_cells_own_input_one_rank_at_a_time(lab, server):
    assert "Error" not in lab.run("session-start")
    assert "[rank 3] tensor([3., 3.])" in lab.run("session-make")
    lab.write("session-make", "%%ranks\ny = x * rank\nbreakpoint()\ntotal = y.sum()\ntotal")
    lab.start("session-make")

    def answer(command):
        """Type a command into the open input; returns the prompt that was before it."""
        inputs = lab.page.locator(".jp-mod-active .jp-Stdin-input:not([disabled])")
        until(lambda: inputs.count() == 1, "one prompt")  # the one before may fade
        box = inputs.first
        prompt = lab.page.locator(".jp-mod-active .jp-Stdin-prompt").last.inner_text()
        box.fill(command)
        box.press("Enter")
        return prompt.strip()

    first = answer("p y")
    until(lambda: "tensor([" in lab.shown(), "the value that was asked for")
    assert "> line 4: total = y.sum()" in lab.shown() and re.fullmatch(r"\(rank \d\)", first)
    answer("rank 2")
    assert answer("p y") == "(rank 2)"
    until(lambda: "[rank 2] tensor([4., 4.])" in lab.shown(), "rank 2's value")
    answer("q")
    until(lab.idle, "the end of the cell")
    assert "with q. The session continues, and its variables are kept." in lab.shown()
    lab.write("session-make", "%%ranks\ny.tolist()")
    assert "[rank 3] [9.0, 9.0]" in lab.run("session-make")
    lab.write("session-make", "%%ranks\nif rank == 0: dist.recv(x, 1)\nwhile rank: y = y")
    lab.start("session-make")
    until(lambda: "stop shows" in lab.shown(), "the sign of life")
    lab.js("return panel.sessionContext.session.kernel.interrupt()")
    until(lab.idle, "the end of the cell")
    assert "rank 0 waits in recv from rank 1" in lab.shown()
    assert "stopped. The session continues, and its variables are kept." in lab.shown()
    lab.write("session-make", "%%ranks\ny.tolist()")
    assert "[rank 3] [9.0, 9.0]" in lab.run("session-make")


def test_a_kernel_that_is_restarted_takes_its_ranks_along(lab, server):
    ranks = lambda: ranks_of(server[1])
    before = ranks()
    assert len(before) >= 4
    lab.js("return panel.sessionContext.restartKernel()")
    until(lambda: not before & ranks(), "the end of the old kernel's ranks")
    until(lab.idle, "the new kernel")
    for cell in notebook.read(notebook.lab_path(ROOT, LAB)).cells:
        if notebook.role(cell) == "setup":
            assert "Error" not in lab.run(cell.id)
    assert "I am rank 3 of 4" in lab.run("ranks-hello")


def test_run_all_goes_on_past_an_unsolved_check_and_ends_with_the_points(lab, server):
    """Of Lab 0 the set-up and two exercises; Run All of a whole lab takes a minute."""
    nb = notebook.read(notebook.lab_path(ROOT, LAB))
    first, second = notebook.exercises(nb)[:2]
    kept = {cell.id for cell in (*first.answers, first.check, *second.answers, second.check)}
    nb.cells = [cell for cell in nb.cells if notebook.role(cell) == "setup" or cell.id in kept]
    nb.cells.append(nbformat.v4.new_code_cell("check.points(0)", id="points"))
    notebook.write(nb, server[2] / "run_all.ipynb")
    lab.page.evaluate(
        "() => void window.jupyterapp.commands.execute('docmanager:open', {path: 'run_all.ipynb'})"
    )
    path = "return panel?.context?.path"
    until(lambda: lab.js(path) == "run_all.ipynb" and lab.idle(), "another notebook")
    lab.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    count = "return panel.content.widgets.at(-1).model.executionCount"
    until(lambda: lab.js(count) is not None and lab.idle(), "the end of Run All")
    (told,) = lab.js(
        "return panel.content.widgets.at(-1).model.outputs.toJSON().map(output => output.text)"
    )
    told = "".join(told)
    assert "0 of 100 points so far" in told and told.count("not written yet") == 2
