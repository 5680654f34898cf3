"""Every rule of the lint is proved able to fail, and silent on a sound notebook."""

import nbformat
import pytest
from toy_lab import by_id

from lib.course import lint

PNG = "iVBORw0KGgo="


def found(nb):
    """Findings as text, warnings marked."""
    return [("warning: " if finding.warning else "") + str(finding) for finding in lint.lint(nb)]


def printed(text):
    """A function that adds printed output to the example cell."""
    return lambda nb: by_id(nb, "example").outputs.append(
        nbformat.v4.new_output("stream", name="stdout", text=text)
    )


def shown(data, metadata=None):
    """A function that adds a displayed output to the example cell."""
    output = nbformat.v4.new_output("display_data", data=data, metadata=metadata or {})
    return lambda nb: by_id(nb, "example").outputs.append(output)


def source(text, cell_id="example"):
    """A function that replaces a cell's source."""
    return lambda nb: by_id(nb, cell_id).update(source=text)


def as_bonus(nb, id):
    """Tag a check as bonus, and let its stored verdict say so."""
    tag(id, "nbval-check-output", "bonus")(nb)
    for output in by_id(nb, id).outputs:
        output["text"] = output["text"].replace(" points", " bonus points")


def tag(cell_id, *tags):
    """A function that sets a cell's tags."""
    return lambda nb: by_id(nb, cell_id).metadata.update(tags=list(tags))


def error_output(nb):
    output = nbformat.v4.new_output("error", ename="ValueError", evalue="bad", traceback=[])
    by_id(nb, "example").outputs.append(output)


WRONG = {
    "not executed": (
        lambda nb: by_id(nb, "example").update(execution_count=None),
        "'example': execution count is None",
    ),
    "out of order": (
        lambda nb: by_id(nb, "example").update(execution_count=9),
        "execution count is 9, must be 5",
    ),
    "unknown magic": (source("%nosuchmagic 3"), "%nosuchmagic: nbval passes"),
    "unknown cell magic": (source("%%nosuchmagic\nassert False"), "%nosuchmagic: nbval passes"),
    "assigned magic": (source("x = %nosuchmagic"), "%nosuchmagic: nbval passes"),
    "command": (source("!false"), "!false: nbval passes a command"),
    "indented command": (source("if True:\n    !false"), "!false: nbval passes a command"),
    "command read back": (source("files = !ls /nowhere"), "!ls /nowhere: nbval passes a command"),
    "not Python": (source("def f(:"), "is no valid Python"),
    "untagged check": (
        tag("check-total"),
        "'check-total': graded, but without the tag nbval-check-output",
    ),
    "skip tag": (tag("example", "nbval-skip"), "nbval-skip makes nbval pass"),
    "nbclient's skip tag": (tag("example", "skip-execution"), "skip-execution makes nbval pass"),
    "exception tag": (tag("example", "raises-exception"), "raises-exception makes nbval pass"),
    "ignored check": (
        tag("check-total", "nbval-check-output", "nbval-ignore-output"),
        "nbval-ignore-output makes",
    ),
    "skip comment": (source("# NBVAL_SKIP\nassert False"), "nbval-skip makes nbval pass"),
    "temporary path": (printed("/tmp/abc/x.py"), "holds a path of one machine: '/tmp/'"),
    "macOS temporary path": (printed("/var/folders/zz/x"), "holds a path of one machine"),
    "home": (shown({"text/plain": "in /home/me/labs"}), "holds a path of one machine"),
    "kernel file": (printed("ipykernel_4711/123.py"), "holds a kernel's file name"),
    "cell number": (printed('File "Cell In[3]", line 1'), "holds a cell number"),
    "address": (shown({"text/plain": "<object at 0x7f00aa11bb22>"}), "holds an address in memory"),
    "time of day": (
        shown({"image/svg+xml": "<dc:date>2024-05-01T10:11:12</dc:date>"}),
        "holds a time of day",
    ),
    "stored error": (error_output, "an error is stored as output: ValueError: bad"),
    "widget state": (lambda nb: nb.metadata.update(widgets={}), "metadata.widgets is stored"),
    "widget": (shown({lint.WIDGET: {"model_id": "1"}}), "a widget is stored"),
    "timing": (
        lambda nb: by_id(nb, "title").metadata.update(execution={}),
        "'title': metadata.execution holds times",
    ),
    "other kernel": (
        lambda nb: nb.metadata.kernelspec.update(name="venv"),
        "metadata.kernelspec is not the course's",
    ),
    "python version": (
        lambda nb: nb.metadata.language_info.update(version="3.11.9"),
        "metadata.language_info is not",
    ),
    "lost points": (
        lambda nb: by_id(nb, "check-total").metadata.nbgrader.update(points=60),
        "'check-total': its stored output lacks the line '60 of 60 points'",
    ),
    "no verdict": (
        lambda nb: by_id(nb, "check-total").update(outputs=[]),
        "lacks the line '40 of 40 points'",
    ),
    "bad metadata": (
        lambda nb: by_id(nb, "total").metadata.nbgrader.update(checksum="a"),
        "has 'checksum'",
    ),
    "random id": (lambda nb: by_id(nb, "total").update(id="0a1b2c3d"), "invented by an editor"),
}
DOUBTFUL = {
    "long cell": (
        source("\n".join(f"x{i} = {i}" for i in range(16))),
        "'example': 16 lines of code",
    ),
    "figure without alt text": (shown({"image/png": PNG}), "a figure (image/png) without alt text"),
    "stderr": (
        lambda nb: by_id(nb, "example").outputs[0].update(name="stderr"),
        "'example': stderr is stored",
    ),
    "points": (lambda nb: as_bonus(nb, "check-total"), "have 60 points in all"),
}


def test_a_sound_notebook_has_nothing_but_the_long_set_up_cell_to_warn_of(solution):
    assert found(solution) == [
        "warning: cell 'tools': 27 lines of code; about 15 can be read in a notebook"
    ]


@pytest.mark.parametrize("name", WRONG)
def test_what_would_be_a_false_pass_fails(solution, name):
    spoil, message = WRONG[name]
    spoil(solution)
    assert [
        text for text in found(solution) if message in text and not text.startswith("warning")
    ], found(solution)


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_is_doubtful_warns_and_fails_nothing(solution, name):
    spoil, message = DOUBTFUL[name]
    before = found(solution)
    spoil(solution)
    new = [text for text in found(solution) if text not in before]
    assert len(new) == 1 and new[0].startswith("warning: ") and message in new[0]


SOUND = {
    "percent in a string": source("print('%d\\n%nosuchmagic\\n!false' % 3)"),
    "percent at the start of a line": source("x = (7\n% 3)\nprint('''\n!false\n%%bash\n''')"),
    "known magic": source("%matplotlib inline"),
    "a word about skipping": source("# see NBVAL_SKIP in the manual\nprint(1)"),
    "figure with alt text": shown({"image/png": PNG}, {"image/png": {"alt": "a ring"}}),
    "figure with alt text for all kinds": shown(
        {"image/png": PNG, "text/plain": "<Figure>"}, {"alt": "a ring"}
    ),
    "bits of a float": printed("1.0 is 0x3f800000"),
    "picture bytes": shown({"image/png": "/tmp/"}, {"alt": "its base64 may hold anything"}),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_only_looks_wrong_passes(solution, name):
    before = found(solution)
    SOUND[name](solution)
    assert found(solution) == before
