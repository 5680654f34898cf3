"""`python -m lib.ledger DIR`: merge the books that a torchrun job left in DIR (LEDGER_DIR), and judge them.

Exit code 0: every rank has left and the books agree; 1: they disagree, or a rank failed or hangs; 2: no books.
"""

import argparse
import sys

from lib.ledger.book import EXITED, RAISED, RETURNED, RUNNING
from lib.ledger.match import audit
from lib.ledger.read import Books
from lib.ledger.verdict import verdict

STATES = {0: "never began", RUNNING: "running, or died", RETURNED: "ended", RAISED: "raised", EXITED: "left"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.ledger", description="Merge and judge the books of a job.")
    parser.add_argument("folder", help="the job's LEDGER_DIR, with the books of all ranks of all nodes")
    folder = parser.parse_args().folder
    try:
        books = Books(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    heads, ledger = books.heads(), books.read()
    sent = ledger.matrix("bytes").sum(axis=1)
    print(f"{'rank':>4}  {'state':<16}  {'ops':>9}  {'bytes sent':>15}")
    for rank, head in enumerate(heads):
        print(f"{rank:>4}  {STATES[head.state]:<16}  {head.count:>9,}  {sent[rank]:>15,}")
    ended = all(head.state == RETURNED for head in heads)
    findings = audit(ledger, ended)
    for finding in findings:
        print(("" if finding.certain else "warning: ") + finding.text)
    if not ended:
        print("\n".join(verdict(ledger, heads)))
    elif not findings:
        print("the books agree")
    return 0 if ended and not any(f.certain for f in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
