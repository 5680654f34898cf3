"""A card says what the printed text says, in order, and nothing of an answer becomes HTML."""

import re
from html.parser import HTMLParser

import pytest

from lib.check import card
from lib.check.card import Told
from lib.check.exercises import EXERCISES
from lib.check.framework import Bundle, evaluate


class Read(HTMLParser):
    """The words of a page, without style and script, and its tags."""

    def __init__(self, html):
        super().__init__()
        self.words, self.open, self.tags = [], [], []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "input":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & {*self.open}:
            self.words.append(data)


def read(told, state="failed", score="8 of 16 points", foot=""):
    found = Read(card.html("send_recv", told, state, score, foot, ["send_recv"]))
    assert found.open == []
    return found


def lines_of(found):
    """The answer's lines that are highlighted."""
    return [one for one in found.tags if one[0] == "code" and one[1].get("class") == "line"]


def test_what_holds_what_fails_the_advice_and_the_foot_come_in_this_order():
    told = [
        Told("ok", "2 to 5 ranks", "values"),
        Told("fails", head="no deadlock"),
        Told("text", "deadlock: each waits for the next"),
        Told("tip", "Usual cause: every rank sends first."),
        Told("printed", "hello\nagain"),
    ]
    text = read(told, foot="48 of 100; next: ring_all_gather").text
    order = ["send_recv", "8 of 16", "holds: values", "fails: no deadlock", "deadlock: each"]
    order += ["Usual cause: every rank", "It printed:", "hello again", "48 of 100; next: ring_all"]
    places = [text.find(one) for one in order]
    assert -1 not in places and places == sorted(places)


@pytest.mark.parametrize(
    ("text", "line", "rest"),
    [
        ("rank 0 waits in send, line 3 of f: dist.send(x, to)", "dist.send(x, to)", ""),
        ("line 3: while True:", "while True:", ""),
        (
            "rank 1 waits in all_reduce #3, line 3 of f: g(x); rank 0 has not called it",
            "g(x)",
            "; rank 0 has not called it",
        ),
        ("in recv, line 9 of f: h(y) (its partner is there)", "h(y)", " (its partner is there)"),
        ("expected 3, got line", None, ""),
    ],
)
def test_the_line_of_the_answer_is_highlighted_and_nothing_behind_it(text, line, rest):
    html = card.html("f", [Told("fails", head="c"), Told("text", text)], "failed", "", "")
    found = re.findall(r"<code class=line>(.*?)</code>([^<]*)", html)
    assert found == ([(line, rest)] if line else [])


def test_what_an_answer_says_is_never_read_as_html():
    bad = "</code><script>alert(1)</script>"
    found = read([Told("fails", bad, bad), *(Told(k, f"line 3 of f: {bad}") for k in card.BELOW)])
    assert [tag for tag, _ in found.tags].count("script") == 1  # the card's own
    assert found.text.count("<script>alert(1)</script>") == 6


def test_columns_are_not_folded():
    html = card.html("f", [Told("text", "expected  1  2  3")], "failed", "", "")
    assert "<pre tabindex=0>expected  1  2  3</pre>" in html


def in_words(text):
    """The words of a text or a card, without signs and order of a claim's two halves."""
    return sorted(re.findall(r"[\w.]+", text.replace("--", "")))


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("model_state_bytes", [lambda parameters, precision: 0]),
        ("training_days", [lambda *given: 1 / 0]),
        ("buckets", [lambda *given: None, lambda *given: None]),
    ],
)
def test_a_card_has_the_words_of_the_text(name, answers):
    exercise = EXERCISES[name]
    if len(exercise.parts) != len(answers):
        pytest.skip("another number of functions")
    outcome = evaluate(exercise, tuple(answers) if isinstance(exercise, Bundle) else answers[0])
    found = read(outcome.told, score=outcome.lines[-1])
    shown = found.text.replace("send_recv", name, 1).replace("holds: ", "").replace("fails: ", "")
    shown = shown.replace(card.EDITED_TEXT, "")
    text = "\n".join(line.replace("  ok  ", "  ") for line in outcome.lines)
    assert in_words(shown) == in_words(text)
