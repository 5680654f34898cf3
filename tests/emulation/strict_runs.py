"""python -m tests.emulation strict tests [folders or files] [--threshold 0|inf] [pytest's options]

The suites in which ranks talk, under NCCL's rules: with sends that are a rendezvous (0), with sends
that end at once (inf), or with the one and then the other. Ends with 1 if a test failed, with 2 if
the rules cannot run here.
"""

import os
import subprocess
import sys
import time

from tests.emulation import strict_stream, strict_works

SUITES = [
    "tests/collectives", "tests/launch", "tests/data_parallel", "tests/pipeline",
    "tests/tensor_parallel", "tests/zero", "tests/moe", "tests/hybrid", "tests/test_checkpoint.py",
    "tests/test_checkpoint_contents.py", "tests/test_checkpoint_killed.py",
]  # fmt: skip


def main(args: list[str]) -> int:
    if not args or args[0] != "tests":
        print(__doc__.strip())
        return 2
    reason = strict_works.missing()
    if reason is not None:
        print(reason)
        return 2
    strict_works.path()
    thresholds, rest = ["0", "inf"], args[1:]
    if "--threshold" in rest:
        at = rest.index("--threshold")
        thresholds, rest = [rest[at + 1]], rest[:at] + rest[at + 2 :]
    options = (
        rest if any(os.path.exists(part.split("::")[0]) for part in rest) else [*SUITES, *rest]
    )
    return max(run(options, threshold) for threshold in thresholds)


def run(options: list[str], threshold: str) -> int:
    """pytest with `options` under the rules; returns its exit code."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.emulation.strict_plugin", *options]
    began = time.monotonic()
    ended = subprocess.run(command, env=os.environ | {strict_stream.THRESHOLD: threshold})
    print(
        f"threshold {threshold}: exit code {ended.returncode} after {time.monotonic() - began:.0f} "
        f"s",
        flush=True,
    )
    return ended.returncode
