"""The first minute: will this machine's GPUs, driver, torch and NCCL do? Raw, without lib's ranks.

    nvidia-smi, torch's facts        how many GPUs, which driver, CUDA and NCCL
    a product on each GPU            side by side
    two ranks under NCCL             on two GPUs, or both on one        each with a limit
    -> facts, a plain dict           findings.py judges them

python -m tests.gpu.probe shows the facts and findings; --all puts a rank on every GPU instead of on
two.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib.backend import choice
from tests.gpu import findings, report
from tests.gpu.processes import MARK, end_marked

RAW = Path(__file__).with_name("raw.py")
# seconds: altogether, and at most of it for the first two; the ranks get the rest
ALL, FACTS, PRODUCTS = 57.0, 20.0, 25.0
# how the last lines of a traceback begin
ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")
QUERY = "name,driver_version,compute_cap,mig.mode.current,compute_mode"


class Programs:
    """Programs of raw.py, side by side, until all have ended or their time is up.
    None is left behind."""

    def __init__(self, seconds: float):
        self.until, self.folder = time.monotonic() + seconds, tempfile.mkdtemp(prefix="probe-")
        self.mark, self.running = f"{os.getpid()}-{self.folder}", {}

    def start(self, name, *command, env=None):
        env = {**os.environ, **(env or {}), MARK: self.mark}
        with (
            open(f"{self.folder}/{name}.out", "w") as out,
            open(f"{self.folder}/{name}.err", "w") as err,
        ):
            self.running[name] = subprocess.Popen(
                [str(part) for part in command], stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )  # fmt: skip

    def ended(self) -> dict:
        """{name: {"lines": what it printed, "error": "" or what it said last, "late": bool}}"""
        seen = {}
        for name, process in self.running.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, self.until - time.monotonic()))
            seen[name] = {"late": process.poll() is None}
        end_marked(self.mark)
        for name, process in self.running.items():
            process.wait(1)
            out, err = (self._read(name, kind) for kind in ("out", "err"))
            seen[name]["lines"] = [
                json.loads(line) for line in out.splitlines() if line.startswith("{")
            ]
            wrong = process.returncode != 0 and not seen[name]["late"]
            seen[name]["error"] = (
                told(out, err) or f"it left with exit code {process.returncode}" if wrong else ""
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        return seen

    def _read(self, name, kind):
        return Path(f"{self.folder}/{name}.{kind}").read_text(errors="replace")


def told(out: str, err: str) -> str:
    """What a program that failed said: NCCL's warnings, and the error at the end of
    its traceback."""
    warnings = [
        line.partition("NCCL WARN ")[2] for line in out.splitlines() if "NCCL WARN " in line
    ]
    # so torch marks a rank's traceback
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in err.splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith("[W")]
    begins = max(
        (number for number, line in enumerate(lines) if ERROR.match(line)),
        default=max(0, len(lines) - 5),
    )
    return " ".join(" ".join([*warnings[-2:], *lines[begins:]]).split())[:400]


def collect(everywhere: bool = False) -> dict:
    """The facts of this machine: see `findings.judge` for what is made of them. everywhere:
    a rank on every GPU."""
    until = time.monotonic() + ALL
    programs = Programs(FACTS)
    programs.start("facts", sys.executable, RAW, "facts")
    smi, (seen,) = driver(), programs.ended().values()
    torch = {"count": 0, **(seen["lines"] or [{}])[0], "error": seen["error"], "late": seen["late"]}
    programs = Programs(PRODUCTS)
    for index in range(torch["count"]):
        programs.start(str(index), sys.executable, RAW, "product", index)
    facts = {"smi": smi, "torch": torch, "products": list(programs.ended().values())}
    facts["shm_mib"] = shutil.disk_usage("/dev/shm").total >> 20 if os.path.isdir("/dev/shm") else 0
    facts["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    works = sum(
        any(line.get("right") for line in product["lines"]) for product in facts["products"]
    )
    if works and torch.get("nccl"):
        facts["pair"] = pair(
            "nccl", works if everywhere and works > 1 else min(2, works), until - time.monotonic()
        )
    return facts


def pair(name: str, gpus: int, seconds: float) -> dict:
    """Ranks under backend `name`, one on each of `gpus`; two on the only one. {"shared", "ranks":
    [what each said]}"""
    shared, programs = name == "nccl" and gpus == 1, Programs(seconds)
    world_size = max(2, gpus)
    for rank in range(world_size):
        env = choice.shared_gpu_settings(rank) if shared else {}
        env |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN"),
        }
        index = 0 if shared else rank
        programs.start(
            str(rank), sys.executable, RAW, "rank", programs.folder, name, index, env=env
        )
    seen = programs.ended()
    return {"shared": shared, "ranks": [seen[str(rank)] for rank in range(world_size)]}


def driver() -> dict:
    """What nvidia-smi says: {"driver", "gpus": [{name, capability, mig, mode}]} or {"error"}."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"error": "there is no nvidia-smi"}
    try:
        done = subprocess.run(
            [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except subprocess.TimeoutExpired:
        return {"error": "nvidia-smi did not answer within 10 s"}
    if done.returncode:
        return {"error": " ".join((done.stdout + done.stderr).split())[:300]}
    seen = parse(done.stdout)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(name.isdigit() and int(name) < len(seen["gpus"]) for name in visible):
        seen["gpus"] = [seen["gpus"][int(name)] for name in visible]
    return seen


def parse(text: str) -> dict:
    """nvidia-smi's lines, one per GPU, as `driver` returns them. "[N/A]" is what it says of
    what a GPU lacks."""
    rows = [
        [cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()
    ]
    gpus = [
        dict(zip(("name", "capability", "mig", "mode"), [row[0], *row[2:]], strict=True))
        for row in rows
    ]
    return {"driver": rows[0][1] if rows else "", "gpus": gpus}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.probe")
    parser.add_argument("--all", action="store_true", help="a rank on every GPU")
    facts = collect(parser.parse_args().all)
    print(json.dumps(facts, indent=1))
    found = findings.judge(facts)
    for finding in found:
        print(f"{finding.text}\n    next: {finding.next_move}")
    print("showed: " + "; ".join([*(finding.text for finding in found), report.seconds(facts)]))
    return 1 if any(finding.fatal for finding in found) or not findings.together(facts) else 0


if __name__ == "__main__":
    sys.exit(main())
