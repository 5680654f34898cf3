"""Running the book's JavaScript from a test: with node, or in Chromium where node is missing."""

import json
import shutil
import subprocess

import pytest

from lib.course import book

STATIC = book.HERE / "static"
FILES = ("formulas.js", "charts.js", "explorers.js")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def evaluated(function, argument):
    """What the JavaScript `function` returns for `argument`, both as JSON. It can use formulas,
    charts and explorers. Skips the test where nothing can run it."""
    if shutil.which("node"):
        loaded = "".join(
            f"const {name.removesuffix('.js')} = require({json.dumps(str(STATIC / name))});"
            for name in FILES
        )
        program = (
            f"{loaded} const data = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
            f"console.log(JSON.stringify(({function})(data)));"
        )
        run = subprocess.run(
            ["node", "-e", program],
            input=json.dumps(argument),
            text=True,
            capture_output=True,
            timeout=300,
        )
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)
    return _in_chromium(function, argument)


def _in_chromium(function, argument):
    reason = (
        "not run: neither node nor Chromium with Playwright is here (pip install -e '.[browser]')"
    )
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(reason)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        for name in FILES:
            page.add_script_tag(path=STATIC / name)
        text = page.evaluate(f"data => JSON.stringify(({function})(data))", argument)
        browser.close()
    return json.loads(text)
