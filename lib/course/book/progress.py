"""A progress bar for Sphinx, which says in its status line how far it is.

reading sources... [ 42%] lab0_concepts        -->       book:  21%|██        | [00:12<00:41]
writing output... [ 50%] lab0_concepts         -->       book:  75%|███████▌  | [00:31<00:10]
"""

import re

from tqdm import tqdm

SAID = re.compile(r"(reading sources|writing output)\.\.\. *(?:\x1b\[[\d;]*m)*\[ *(\d+)%\]")


class Status:
    """A stream for Sphinx's status. Reading is the first half of the way and writing the second.

    Where the output is no terminal, nothing is shown.
    """

    def __init__(self) -> None:
        form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
        self.bar = tqdm(total=100, desc="book", bar_format=form, disable=None)
        self.done = 0

    def write(self, text: str) -> int:
        for phase, percent in SAID.findall(text):
            now = int(percent) // 2 + (50 if phase.startswith("writing") else 0)
            self.bar.update(max(0, now - self.done))
            self.done = max(now, self.done)
        return len(text)

    def flush(self) -> None:
        """tqdm draws the bar when it has moved."""

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        self.bar.close()
