"""`python -m lib.ledger DIR` merges the logs that a torchrun job wrote to DIR (its LEDGER_DIR), and
judges them.

The exit code is 0 if every rank has returned and the logs agree (up to warnings), 1 if they
disagree or a rank has not returned (it failed, hangs, or still runs), and 2 if the logs cannot be
read, because there are none, some ranks' logs are missing, or they have another version.
"""

import argparse
import sys
from dataclasses import replace

from lib.ledger.log import EXITED, KILLED, RAISED, RETURNED, RUNNING
from lib.ledger.match import audit
from lib.ledger.read import Logs
from lib.ledger.record_to_dir import error_of, state_of
from lib.ledger.source import position
from lib.ledger.verdict import find_waits, for_whom, last_op, verdict
from lib.ledger.words import say

STATES = {
    0: "never began", RUNNING: "running", RETURNED: "ended", RAISED: "raised", EXITED: "left",
    KILLED: "killed",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lib.ledger", description="Merge and judge the logs of a job."
    )
    parser.add_argument(
        "folder", help="the job's LEDGER_DIR, with the logs of all ranks of all nodes"
    )
    folder = parser.parse_args().folder
    try:
        logs = Logs(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    as_left, ledger = logs.heads(), logs.read()
    heads = [replace(head, state=state_of(folder, head)) for head in as_left]
    sent = ledger.matrix("bytes").sum(axis=1)
    print(f"{'rank':>4}  {'state':<16}  {'ops':>9}  {'bytes sent':>15}")
    for rank, head in enumerate(heads):
        print(f"{rank:>4}  {STATES[head.state]:<16}  {head.count:>9,}  {sent[rank]:>15,}")
    ended = all(head.state == RETURNED for head in heads)
    findings = audit(ledger, ended)
    if not ended:
        waits = find_waits(ledger, as_left)
        how = {
            rank: text
            for rank in range(len(heads))
            if (text := _how(folder, ledger, heads, waits, rank))
        }
        print("\n".join(verdict(ledger, heads, how)))
    for finding in findings:
        if ended or not finding.certain:  # the verdict has already said the certain ones
            print(("" if finding.certain else "warning: ") + finding.text)
    if ended and not findings:
        print("the logs agree")
    return 0 if ended and not any(f.certain for f in findings) else 1


def _how(folder, ledger, heads, waits, rank):
    """Words for `verdict` that say how a rank has ended, or that it computes and waits for no other
    rank; "" if the verdict finds better words itself."""
    state, last = heads[rank].state, last_op(ledger, rank)
    if state == KILLED and rank in waits:
        return f"was ended while it waited in {say(waits[rank].entry)}{for_whom(waits[rank])}"
    if state == KILLED:
        return (
            f"was killed: its process is gone, with no "
            f"error and no return (SIGKILL, or out of memory){last}"
        )
    if state in (RAISED, EXITED) and (error := error_of(folder, rank)):
        text = " ".join(error["text"].split())[:500]
        return f"raised {error['type']}: {text}, {position(*error['site'])}"
    return f"computes and waits for no rank{last}" if state == RUNNING and rank not in waits else ""


if __name__ == "__main__":
    sys.exit(main())
