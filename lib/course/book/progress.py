"""A progress bar for Sphinx, which says in its status line how far it is.

    reading sources... [ 42%] lab0_concepts        -->       book:  21%|██        | [00:12<00:41]
    writing output... [ 50%] lab0_concepts         -->       book:  75%|███████▌  | [00:31<00:10]
"""

import re

from tqdm import tqdm

SAID = re.compile(r"(reading sources|writing output)\.\.\. *(?:\x1b\[[\d;]*m)*\[ *(\d+)%\]")


class Status:
    """A stream for Sphinx's status. Reading is the first half of the way and writing the second."""

    def __init__(self) -> None:
        self.bar = tqdm(total=100, desc="book", bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}")

    def write(self, text: str) -> int:
        for phase, percent in SAID.findall(text):
            done = int(percent) / 2 + (50 if phase.startswith("writing") else 0)
            self.bar.update(max(0, done - self.bar.n))
        return len(text)

    def flush(self) -> None:
        self.bar.refresh()

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        self.bar.close()
