"""A progress bar for Sphinx, read from the percentages in Sphinx's status lines.

reading sources... [ 42%] lab0_concepts        -->       book:  21%|██        | [00:12<00:41]
writing output... [ 50%] lab0_concepts         -->       book:  75%|███████▌  | [00:31<00:10]
"""

import re

from tqdm import tqdm

SAID = re.compile(r"(reading sources|writing output)\.\.\. *(?:\x1b\[[\d;]*m)*\[ *(\d+)%\]")


class Status:
    """A stream that receives Sphinx's status. Reading is the first half of the bar, and writing is
    the second.

    If stderr is not a terminal, nothing is shown.
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
        """Do nothing, because tqdm draws the bar itself."""

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        self.bar.close()
