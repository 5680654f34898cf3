"""make test-gpu: checks this machine, runs each step of the plan with a limit, and prints a table.

python -m tests.gpu [--list] [--steps streams-8,hangs] [--minutes 60] [--out results/gpu.md]

Exit code 0: all steps that could run passed. 1: a step failed or outlasted its time. 2: nothing
could run on a GPU, and the next move is printed. The table is written after each step, so that a
run which is cut off leaves what it knew. What each step printed is in results/gpu/<step>.log.
"""

import argparse
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

from tests.gpu import findings, plan, probe
from tests.gpu.processes import run_limited
from tests.gpu.report import Row, machine, seconds, showed, table

ROOT = Path(__file__).parents[2]
# NVLS: many communicators use it up
QUIET = {"NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def main(argv=None, collect=probe.collect, steps=plan.steps) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--list", action="store_true", help="show the plan and run nothing")
    parser.add_argument("--steps", default="", help="only these, by name, with commas between them")
    parser.add_argument("--minutes", type=float, help="at most so many; on one GPU 10 if not given")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / "gpu.md", help="where the table goes"
    )
    options = parser.parse_args(argv)
    if options.list:
        for step in steps(8):
            print(
                f"{step.name:<16} {step.seconds:>5} s   {step.what}   "
                f"{', '.join(step.needs)}".rstrip()
            )
        return 0
    names = {name for name in options.steps.split(",") if name}
    if unknown := names - {step.name for step in steps(8)}:
        parser.error(f"there is no step {', '.join(sorted(unknown))}; --list shows them")
    if options.minutes is not None and not options.minutes > 0:
        parser.error(
            f"--minutes {options.minutes:g}: give the minutes that all steps together may take, "
            f"such as 60"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended then, too
    began = time.monotonic()
    facts, row = look(collect)
    options.out.with_suffix("").mkdir(parents=True, exist_ok=True)
    options.out.write_text(table(machine(facts), [row]))
    if any(finding.fatal for finding in findings.judge(facts)):
        print("Nothing ran on a GPU: this is not a pass.")
        return 2
    gpus = len(facts["products"])
    chosen = [step for step in steps(gpus) if step is not plan.PROBE]
    minutes = options.minutes or (plan.minutes(gpus) if not names else None)
    end = began + 60 * minutes if minutes else float("inf")
    rows = run_all(
        [step for step in chosen if not names or step.name in names], facts, row, options.out, end
    )
    print(
        f"\n{options.out.read_text()}\nThe table is in {options.out}, to be pasted into "
        f"tests/gpu/README.md."
    )
    return 1 if any(row.result in ("failed", "timeout") for row in rows) else 0


def look(collect) -> tuple[dict, Row]:
    """The facts, said with the next move for what is not as it should be, and the
    table's first row."""
    began = time.monotonic()
    facts = collect()
    found = findings.judge(facts)
    fatal = any(finding.fatal for finding in found)
    print(machine(facts))
    for finding in found:
        print(
            f"{'not possible' if finding.fatal else 'note'}: {finding.text}\n    next move: "
            f"{finding.next_move}"
        )
    said = "; ".join(
        [*(f"{finding.text}. Next: {finding.next_move}" for finding in found), seconds(facts)]
    )
    result = "failed" if fatal or not findings.together(facts) else "passed"
    return facts, Row(plan.PROBE.name, plan.PROBE.what, said, time.monotonic() - began, result)


def run_all(chosen, facts: dict, first: Row, out: Path, end: float = float("inf")) -> list[Row]:
    """Run the steps in their order; what one leaves of its time, the next may use. `out` has the
    table so far.

    end: by time.monotonic(). A step whose own time does not fit before it is not run, and none goes
    on after it.
    """
    gpus, together, rows = len(facts["products"]), findings.together(facts), [first]
    spare = plan.PROBE.seconds - first.seconds
    for step in chosen:
        left = end - time.monotonic()
        if missing := lacks(step, gpus, together) or late(step, left):
            rows.append(Row(step.name, step.what, missing, None, "not run"))
        else:
            limit = min(left, step.seconds + max(0.0, min(spare, step.seconds)))
            print(f"{step.name}: {step.what} (at most {limit:.0f} s)", flush=True)
            rows.append(run(step, gpus, out.with_suffix("") / f"{step.name}.log", limit))
            spare += step.seconds - rows[-1].seconds
            print(f"    {rows[-1].result}, {rows[-1].seconds:.0f} s: {rows[-1].showed}", flush=True)
        out.write_text(table(machine(facts), rows))
    return rows


def late(step: plan.Step, left: float) -> str:
    """Why there is no time for the step any more; "" if there is."""
    if step.seconds <= left:
        return ""
    return (
        f"may take {step.seconds} s, and {max(0.0, left):.0f} s are left: more --minutes, or "
        f"--steps {step.name}"
    )


def lacks(step: plan.Step, gpus: int, together: bool) -> str:
    """What the step needs and this machine does not have; "" if nothing."""
    for need in step.needs:
        kind, _, what = need.partition(" ")
        if kind == "gpus" and gpus < int(what):
            return f"needs {what} GPUs, and there are {gpus}"
        if kind in ("ranks", "shared") and not together:
            return "needs two ranks under NCCL, which the probe did not get"
        if kind == "module" and importlib.util.find_spec(what) is None:
            return f"needs {what}, which is not installed"
    return ""


def run(step: plan.Step, gpus: int, log: Path, limit: float) -> Row:
    """Run one step: passed if it left with 0, in its time, with no process left, and pytest
    did not skip it all."""
    env = {**QUIET, **step.env}
    if step.visible is not None:
        listed = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        env["CUDA_VISIBLE_DEVICES"] = ",".join(listed.split(",")[: step.visible])
    seen = gpus if step.visible is None else step.visible
    ended = run_limited(step.argv(sys.executable, seen), limit, log, ROOT, env)
    said = showed(log)
    if ended.code is None:
        return Row(
            step.name, step.what, f"ended after {limit:.0f} s, at: {said}", ended.seconds, "timeout"
        )
    if left := max(ended.left, ended.unkillable):
        said = f"{left} processes were left; {said}"
    skipped = "pytest" in step.command and " passed" not in said
    return Row(
        step.name,
        step.what,
        said,
        ended.seconds,
        "failed" if ended.code or left or skipped else "passed",
    )


if __name__ == "__main__":
    sys.exit(main())
