"""Run commands one after the other, also after one of them has failed, and say at the end how each
of them went.

    python -m tests.in_turn tests pytest -q tests --then validate python -m lib.course validate

    tests: failed with exit code 1, after 5:45
    validate: passed, after 4:00

The first word names a command. The exit code is that of the first command that failed. Ctrl-C and
SIGTERM end the command that runs, and no other one is started.
"""

import shlex
import signal
import subprocess
import sys
import time

BETWEEN = "--then"


def split(words: list[str]) -> list[tuple[str, list[str]]]:
    """[(name, command), ...] of what stands on the command line."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == BETWEEN:
            parts.append([])
        else:
            parts[-1].append(word)
    if any(len(part) < 2 for part in parts):
        sys.exit(
            f"usage: python -m tests.in_turn NAME COMMAND ... [{BETWEEN} NAME COMMAND ...] ..."
        )
    return [(name, command) for name, *command in parts]


def run(command: list[str]) -> int:
    """The exit code of the command, whose input and output are ours. An interrupt or SIGTERM ends
    it, then raises."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except BaseException as stop:
        # the keyboard's interrupt has reached the command, too
        if not isinstance(stop, KeyboardInterrupt):
            process.terminate()
        process.wait()
        raise


def main(words: list[str]) -> int:
    commands = split(words)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    said, failed = [], 0
    try:
        for name, command in commands:
            print(shlex.join(command), flush=True)
            begun = time.monotonic()
            code = run(command)
            minutes, seconds = divmod(round(time.monotonic() - begun), 60)
            went = f"failed with exit code {code}" if code else "passed"
            said.append(f"{name}: {went}, after {minutes}:{seconds:02}")
            failed = failed or code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print("", *said, sep="\n", flush=True)
    return failed if failed >= 0 else 128 - failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
