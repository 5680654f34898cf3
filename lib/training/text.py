"""Real text as a sequence of characters, and the batches that ranks draw from it, so that any
number of ranks together draws the same batch.

    text.load() -> Text, character numbers in 100 pieces:
        . . . . . . . . . V . . . . . . . . . V ...  . 90 for training, V every tenth for validation
    batch(train, step, ...) at step 7, B = 8 sequences, drawn for the whole batch, then shared out:
        1 rank    [0 1 2 3 4 5 6 7]
        4 ranks   [0 1] [2 3] [4 5] [6 7]      together the same 8 sequences
        3 ranks   [0 1 2] [3 4 5] [6 7]        unequal shares: the first B mod N ranks hold 1 more

The text is the prose of Python's own help pages (`pydoc_data.topics`), which come with every
CPython, or a file of yours. A model that knows only how frequent each character is cannot get below
the text's unigram entropy, H = -sum_c p(c) log p(c) (Shannon 1951, "Prediction and entropy of
printed English"). So a model with a loss below H has learned to use context.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

SHORTEST = 1_000  # characters; below this the validation part is too small to say anything
PIECES = 100
CHARACTERS = 103  # of the help pages, as in Python 3.11, on which the labs' parameter counts depend
VOCABULARY = 104  # of the models of later labs: CHARACTERS, padded to a multiple of 8


@dataclass(frozen=True, eq=False)  # because comparing tensors gives no single truth value
class Text:
    """A text as numbers: `tokens` (n,) int64 indexes `vocabulary`, the distinct characters
    in code point order."""

    vocabulary: str
    tokens: torch.Tensor

    @cached_property
    def train(self):
        """The pieces that are not in `validation`, (0.9n,)."""
        pieces = self.tokens.tensor_split(PIECES)
        return torch.cat([piece for i, piece in enumerate(pieces) if i % 10 != 9])

    @cached_property
    def validation(self):
        """Every tenth of 100 pieces, (0.1n,). They come from all over the text, because its end may
        be easier than the rest."""
        return torch.cat(self.tokens.tensor_split(PIECES)[9::10])

    @property
    def entropy(self):
        """Unigram entropy in nats per character, the unit of the loss. Divide by
        `math.log(2)` for bits."""
        # (V,)
        p = torch.bincount(self.tokens, minlength=len(self.vocabulary)).double() / len(self.tokens)
        return -(p * p.log()).sum().item()  # H = -sum_c p(c) log p(c); every p is above 0

    @property
    def entropy_bits(self):
        """Unigram entropy in bits per character."""
        return self.entropy / math.log(2)

    def encode(self, string):
        """A string of n characters -> (n,) int64. Raises ValueError for a character that the text
        does not contain."""
        number = {character: i for i, character in enumerate(self.vocabulary)}
        unknown = sorted(set(string) - number.keys())
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is not one of the {len(number)} characters of this text: leave it "
                f"out"
            )
        return torch.tensor([number[character] for character in string], dtype=torch.int64)

    def decode(self, tokens):
        """(n,) int64 -> a string, the inverse of `encode`."""
        return "".join(self.vocabulary[i] for i in tokens.tolist())


def load(path=None):
    """The help pages of Python, or the UTF-8 file at `path`, as a Text.

    It is the same on every rank and machine that has the same version of CPython, or the same file.
    Raises FileNotFoundError for a missing file, and ValueError for one that is empty, too short or
    not UTF-8.
    """
    string = help_pages() if path is None else read(path)
    codes = np.frombuffer(string.encode("utf-32-le"), dtype="<u4")  # (n,) code points
    distinct, numbers = np.unique(codes, return_inverse=True)  # (V,), (n,)
    return Text("".join(map(chr, distinct)), torch.from_numpy(numbers.astype(np.int64)))


def help_pages():
    """Python's help topics in the order of their names, each paragraph once.

    Each paragraph is taken only once, because some pages repeat others ("typesseq-mutable" is also
    in "typesseq"), and the validation part would otherwise contain text that was trained on. A
    paragraph is left out if it has a character that is not among the `CHARACTERS` most frequent
    ones, because the pages of Python 3.12 and later have more distinct characters, and a model's
    number of parameters depends on how many there are.
    """
    from pydoc_data.topics import topics  # half a megabyte, so imported only when it is needed

    paragraphs = (p.strip("\n") for name in sorted(topics) for p in topics[name].split("\n\n"))
    once = dict.fromkeys(p for p in paragraphs if p)  # a dict keeps the first of equals, in order
    counts = Counter("\n".join(once))
    known = set(sorted(counts, key=lambda character: (-counts[character], character))[:CHARACTERS])
    return "\n\n".join(p for p in once if known.issuperset(p))


def read(path):
    """The text of a UTF-8 file, with \\n for every line end and without a byte order mark."""
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {what}: give the path of a text file")
    try:
        string = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}. Save "
            f"it as UTF-8"
        ) from None
    if len(string) < SHORTEST:
        size = f"holds {len(string)} characters" if string else "is empty"
        raise ValueError(f"{path} {size}: give a text of at least {SHORTEST:,} characters")
    return string


def batch(data, step, rank=0, world_size=1, batch_size=32, seq_len=64, seed=0):
    """This rank's share of the sequences of one step: tokens (b, T) and targets (b, T), each target
    the next character.

    data: (n,) int64, such as `Text.train`. batch_size: B, the sequences of all ranks together. The
    shares of all ranks in rank order are the batch of a single process; b is B/N rounded down, or
    one more on the first B mod N ranks. It is a pure function, so a run that is resumed at any
    step, on any number of ranks, draws the batches that it would have drawn anyway. The result is
    on torch's default device, which on a rank is the rank's own. Raises ValueError if `rank` is not
    one of the ranks, if some rank would get no sequence, or if `data` has fewer than seq_len + 1
    characters.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: ranks are 0 to {world_size - 1}")
    if batch_size < world_size:
        raise ValueError(
            f"batch_size {batch_size} leaves some of {world_size} ranks without a sequence: use "
            f"{world_size}"
        )
    if len(data) <= seq_len:
        raise ValueError(
            f"{len(data)} characters, but a sequence of {seq_len} and its targets need "
            f"{seq_len + 1}: use a longer text or a smaller seq_len"
        )
    # Every rank draws the starts of all B sequences and keeps its own, so that no draw depends on
    # the number of ranks.
    with torch.device("cpu"):  # where one seed gives the same numbers on every machine
        generator = torch.Generator("cpu").manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(data) - seq_len, (batch_size,), generator=generator)  # (B,)
        mine = starts.tensor_split(world_size)[rank]  # (b,)
        places = mine[:, None] + torch.arange(seq_len + 1)  # (b, T+1)
    windows = data[places].to(torch.get_default_device())  # (b, T+1)
    return windows[:, :-1], windows[:, 1:]
