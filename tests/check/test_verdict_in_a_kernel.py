"""What a student sees of a check in a notebook, in a kernel of its own; and that under nbval, in a
terminal and for a grader it is the text alone, as it always was."""

import re

import own_kernel
import pytest
from own_kernel import cards, printed, red, signs

SETUP = """
import time, torch
import torch.distributed as dist
from lib import check, launch, plots
"""
STUB = "def send_recv(tensor, to, frm, group=None, out=None):\n    raise NotImplementedError"
LOOP = STUB.replace("raise NotImplementedError", "while True:\n        time.sleep(0.01)")
SPINS = "def model_state_bytes(parameters, precision):\n    while True:\n        parameters += 1"
ZERO = "def model_state_bytes(parameters, precision):\n    return 0"
SEVEN = ZERO.replace("0", "7")
CHECK, BYTES = "check.send_recv(send_recv)", "check.model_state_bytes(model_state_bytes)"


@pytest.fixture(scope="module")
def kernel():
    kernel = own_kernel.Kernel()
    assert red(kernel.run(SETUP)) == ""
    yield kernel
    kernel.close()


def test_a_wrong_answer_has_a_card_with_the_text_and_a_red_box_that_repeats_nothing(kernel):
    kernel.run(ZERO)
    unattended = kernel.run(BYTES, attended=False)
    told = kernel.run(BYTES)
    ((text, html),) = cards(told)
    assert printed(told) == "" and cards(unattended) == []
    assert text == printed(unattended).strip() + "\n0 of 100 so far in this lab"
    assert 'class="verdict failed"' in html and "<p class=tip>" in html
    assert red(told) == "CheckFailed: see above"
    assert red(unattended).startswith("CheckFailed: fp32 and mixed: ")


def test_an_answer_that_is_not_written_is_neutral_and_said_once(kernel):
    kernel.run(STUB)
    told = kernel.run(CHECK)
    ((text, html),) = cards(told)
    assert red(told) == "" and text.count("not written yet") == html.count("not written yet") == 1
    assert 'class="verdict neutral"' in html
    assert red(kernel.run(CHECK, attended=False)) == "CheckFailed: not written yet"


def test_a_right_answer_names_the_next_exercise(kernel):
    kernel.run(
        "from lib.cost.state import RECIPES\n"
        "def model_state_bytes(parameters, precision):\n"
        "    return parameters * RECIPES[precision].total"
    )
    ((text, html),) = cards(kernel.run(BYTES))
    assert 'class="verdict passed"' in html
    assert text.endswith("6 of 6 points\n6 of 100; next: four_splits")


def test_a_cell_that_raised_is_said(kernel):
    kernel.run(ZERO)
    kernel.run("x = 1 +\n" + SEVEN)
    ((text, _),) = cards(kernel.run(BYTES))
    assert "The cell that defines model_state_bytes raised SyntaxError when it last ran" in text
    kernel.run(SEVEN + "\n1 / 0")  # it raised behind the definition, which is therefore new
    ((text, _),) = cards(kernel.run(BYTES))
    assert "raised" not in text


def test_another_function_is_said(kernel):
    kernel.run("def training_days(*given):\n    return 0")
    ((text, _),) = cards(kernel.run("check.model_state_bytes(training_days)"))
    assert "This check is about model_state_bytes, and it was given training_days." in text


def test_a_stopped_check_on_ranks_says_where_they_were_and_shows_life_before(kernel):
    kernel.run(LOOP)
    both_at_line_3 = re.compile(r"\d+ s: ranks 0 and 1 compute at line 3")  # sometimes one is at 2
    told = kernel.run(CHECK, stop_at=lambda seen: any(map(both_at_line_3.match, signs(seen))))
    ((text, html),) = cards(told)  # in the place of the sign of life
    assert "2 ranks" in text and "stopped after" in text
    for rank in (0, 1):
        assert re.search(rf"rank {rank} \w[^:]*: line [23] of send_recv: ", text), text
    assert "the points are what they were" in text and 'class="verdict neutral"' in html
    assert red(told) == "KeyboardInterrupt: stopped, and the ranks have been ended"
    assert any(map(both_at_line_3.match, signs(told)))


def test_a_stopped_check_in_the_kernel_says_where_it_was(kernel):
    kernel.run(SPINS)
    kernel.run("from lib.check import exercises")
    begun = []
    told = kernel.run(BYTES, stop_at=lambda _: begun.append(1) or len(begun) > 20)
    ((text, _),) = cards(told)
    assert re.search(r"it was in\n +line [23] of model_state_bytes: ", text)


def test_a_stopped_run_is_told_and_drawn_and_the_next_one_runs(kernel):
    kernel.run(
        "def waits():\n"
        "    if dist.get_rank() == 1:\n"
        "        dist.recv(torch.zeros(1), 0)\n"
        "    while True:\n"
        "        time.sleep(0.01)"
    )
    told = kernel.run("launch.run(waits, nproc=2)", stop_at=lambda seen: len(signs(seen)) > 1)
    text = printed(told)
    assert re.search(r"stopped after \d+ s: not every rank had finished", text)
    assert re.search(r"rank 1 waits in recv from rank 0 of float32 \(1,\), line 3 of waits", text)
    assert any("image/png" in one.get("data", {}) for one in told)
    assert signs(told)[-1].endswith("stop shows who waits for whom")
    assert "[0, 1]" in printed(kernel.run("print(launch.run(lambda: dist.get_rank(), nproc=2))"))


def test_where_nobody_looks_there_is_neither_card_nor_sign(kernel):
    kernel.run("def slow():\n    time.sleep(4)")
    told = kernel.run("launch.run(slow, nproc=2)", attended=False)
    assert not [one for one in told if one["kind"].endswith("display_data")]
