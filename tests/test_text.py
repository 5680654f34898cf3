"""Text becomes numbers and back; N ranks together draw what one process draws."""

import math
from pydoc_data import topics

import pytest
import torch

from lib.training import text


def test_the_help_pages_are_real_text_with_plausible_entropy():
    pages = text.load()
    assert len(pages.tokens) > 200_000
    assert len(pages.vocabulary) == text.CHARACTERS, "whatever the version of Python"
    assert 3.0 < pages.entropy < 3.5  # nats
    assert pages.entropy_bits == pytest.approx(pages.entropy / math.log(2))
    assert "continue" in pages.decode(pages.tokens)


def test_no_paragraph_stands_twice():
    paragraphs = text.help_pages().split("\n\n")
    assert len(paragraphs) == len(set(paragraphs)) > 1000


def test_help_pages_with_more_characters_than_the_models_know_lose_the_rare_ones(monkeypatch):
    """As those of Python 3.12 and later."""
    here = text.help_pages()
    more = {
        f"page {i}": f"Nobody knows {chr(0x4E00 + i)}.\n\nEverybody knows {i}." for i in range(40)
    }
    monkeypatch.setattr(topics, "topics", topics.topics | more)
    there = text.load()
    assert len(there.vocabulary) == text.CHARACTERS
    said = there.decode(there.tokens)
    assert set(here.split("\n\n")) <= set(said.split("\n\n"))
    assert "Everybody knows 39." in said and chr(0x4E00 + 39) not in said


def test_encode_and_decode_are_inverses(tmp_path):
    string = "Zürich, 東京 🙂\n" * 100
    (tmp_path / "t.txt").write_text(string, encoding="utf-8")
    loaded = text.load(tmp_path / "t.txt")
    assert loaded.decode(loaded.tokens) == string
    assert torch.equal(loaded.encode(string), loaded.tokens)
    assert loaded.vocabulary == "".join(sorted(set(string)))
    with pytest.raises(ValueError, match=r"'x' is not one of the 12 characters"):
        loaded.encode("Züx")


def test_entropy_of_known_frequencies(tmp_path):
    """a: 1/2, b: 1/4, c and d: 1/8 each. H = 1.75 bits."""
    (tmp_path / "t.txt").write_text("aaaabbcd" * 200)
    loaded = text.load(tmp_path / "t.txt")
    assert loaded.entropy_bits == pytest.approx(1.75, abs=1e-12)
    assert loaded.entropy == pytest.approx(1.75 * math.log(2), abs=1e-12)


def test_train_and_validation_are_the_text_and_do_not_overlap():
    places = text.Text("", torch.arange(12_345))  # each token is its own place
    assert torch.equal(torch.cat([places.train, places.validation]).sort().values, places.tokens)
    assert len(places.validation) == pytest.approx(1234, abs=10)
    # from all over the text
    assert places.validation.min() < 1235 and places.validation.max() == 12_344


def test_a_byte_order_mark_and_windows_line_ends_are_not_text(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbf" + b"one line\r\n" * 200)
    assert text.load(tmp_path / "t.txt").vocabulary == "".join(sorted(set("one line\n")))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", r"t\.txt is empty: give a text of at least 1,000 characters"),
        (b"short", r"t\.txt holds 5 characters: give"),
        (b"ab" * 700 + b"\xe9" + b"ab" * 700, r"t\.txt is not UTF-8: byte 1400 is 0xe9"),
    ],
)
def test_unusable_files_say_why(tmp_path, content, says):
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        text.load(tmp_path / "t.txt")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.txt does not exist: give the path"):
        text.load(tmp_path / "missing.txt")
    with pytest.raises(FileNotFoundError, match=r"is a folder"):
        text.load(tmp_path)


DATA = torch.arange(1000)  # token i stands at place i, so a batch shows where it was cut


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("step", [0, 1, 1000])
def test_the_ranks_together_draw_what_one_process_draws(world_size, step):
    whole = text.batch(DATA, step, batch_size=8, seq_len=5, seed=3)
    shares = [
        text.batch(DATA, step, rank, world_size, batch_size=8, seq_len=5, seed=3)
        for rank in range(world_size)
    ]
    for i in (0, 1):
        assert torch.equal(torch.cat([share[i] for share in shares]), whole[i])
    sizes = [len(tokens) for tokens, _ in shares]
    assert sizes == ([3, 3, 2] if world_size == 3 else [8 // world_size] * world_size)


def test_targets_are_the_next_characters():
    tokens, targets = text.batch(DATA, step=4, batch_size=6, seq_len=7)
    assert tokens.shape == targets.shape == (6, 7)
    assert torch.equal(targets, tokens + 1)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_a_batch_depends_on_its_step_and_seed_and_on_nothing_else():
    torch.manual_seed(0)
    first = text.batch(DATA, step=5, batch_size=4, seq_len=6, seed=1)[0]
    torch.manual_seed(99)
    text.batch(DATA, step=0, batch_size=4, seq_len=6, seed=1)
    assert torch.equal(text.batch(DATA, step=5, batch_size=4, seq_len=6, seed=1)[0], first)
    assert not torch.equal(text.batch(DATA, step=6, batch_size=4, seq_len=6, seed=1)[0], first)
    assert not torch.equal(text.batch(DATA, step=5, batch_size=4, seq_len=6, seed=2)[0], first)


def test_a_batch_lies_on_the_default_device():
    with torch.device("meta"):
        tokens, targets = text.batch(DATA, step=0, batch_size=4, seq_len=6)
    assert tokens.device.type == targets.device.type == "meta"
    assert tokens.shape == (4, 6)


def test_every_place_of_the_text_is_drawn_the_last_one_included():
    short = torch.arange(9)
    tokens, targets = text.batch(short, step=0, batch_size=200, seq_len=6)
    assert set(tokens[:, 0].tolist()) == {0, 1, 2}
    assert targets.max() == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"rank": 4, "world_size": 4}, r"rank 4 of 4: ranks are 0 to 3"),
        (
            {"rank": 0, "world_size": 4, "batch_size": 3},
            r"batch_size 3 leaves some of 4 ranks without a sequence",
        ),
        ({"seq_len": 1000}, r"1000 characters, but a sequence of 1000 and its targets need 1001"),
    ],
)
def test_impossible_batches_name_their_numbers(arguments, says):
    with pytest.raises(ValueError, match=says):
        text.batch(DATA, 0, **arguments)
