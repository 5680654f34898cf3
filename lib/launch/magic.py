"""%%ranks, the cell magic with which a notebook's cell runs on the ranks of a session instead of in
the kernel.

%%ranks          on all ranks of the session that was used last
%%ranks 0,2      on some of its ranks; 1-3 means ranks 1, 2 and 3
%%ranks pair 0   on rank 0 of the session in the variable `pair`
"""

import re
import sys
from typing import Any

from lib.launch import sessions
from lib.launch.errors import short


def register() -> None:
    """Make `%%ranks` known to IPython, if this process runs in it; otherwise do nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.register_magic_function(
            lambda line, cell: run(line, cell, shell.user_ns), "cell", "ranks"
        )


def run(line: str, cell: str, variables: dict[str, Any]) -> None:
    """Run `cell`, whose first line was `%%ranks` followed by `line`. variables: the notebook's, in
    which a session is looked up by name. Raises RuntimeError if no session is running, and
    ValueError for a name that is not a session's or for text that is not a list of ranks."""
    chosen, numbers = sessions.latest(), line
    if named := re.match(r"\s*([A-Za-z_]\w*)(.*)", line):
        chosen, numbers = variables.get(named[1]), named[2]
        if not isinstance(chosen, sessions.Session):
            raise short(ValueError(
                f"%%ranks {named[1]}: no variable {named[1]!r} holds a session. Use `%%ranks` for "
                f"the session that was used last, or run `{named[1]} = launch.session(4)` first"
            ))  # fmt: skip
    if chosen is None:
        raise short(RuntimeError(
            "%%ranks needs a session, and none is running. Run `ranks = launch.session(4)` in a "
            "cell of its own first"
        ))  # fmt: skip
    # an empty line in place of the magic's, so that line numbers are those of the notebook
    chosen.cell(f"\n{cell}", _ranks(numbers))


def _ranks(text):
    """The ranks that `text` lists, such as "0,2" or "1-3"; None, which means all ranks, if it is
    empty."""
    words = re.split(r"[\s,]+", text.strip())
    if words == [""]:
        return None
    found = []
    for word in words:
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if ends is None:
            raise short(ValueError(
                f"%%ranks {text.strip()}: {word!r} is not a rank. Write numbers, as in "
                "`%%ranks 0,2` or `%%ranks 1-3`"
            ))  # fmt: skip
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return found
