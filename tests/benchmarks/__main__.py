"""`make bench`: every speed claim of this course next to what it is compared with, in one run.

    python -m tests.benchmarks [NAME ...] [--quick] [--strict] [--write-thresholds]
                               [--out results/bench]

A benchmark is a file bench_<name>.py beside this one with `run(quick) -> report.Outcome`; the first
line of its docstring says what it is. How two sides are compared is in measure.py, and on ranks in
rounds.py. Exit code 0 unless a benchmark broke; a bar that is missed is a result, and an error only
with --strict.
"""

import argparse
import importlib
import json
import pathlib
import sys
import time
import traceback

from tests.benchmarks import report

HERE = pathlib.Path(__file__).parent


def discover() -> dict:
    """{name: module} of every bench_<name>.py here, by name."""
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    return {name: importlib.import_module(f"tests.benchmarks.bench_{name}") for name in names}


def main(arguments=None, benchmarks=None) -> int:
    benchmarks = discover() if benchmarks is None else benchmarks
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Speed, side by side with torch's own.",
        epilog="; ".join(f"{name}: {title(module)}" for name, module in benchmarks.items()),
    )  # fmt: skip
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which (all): {', '.join(benchmarks)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes and rounds: does it work?"
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument(
        "--write-thresholds",
        action="store_true",
        help="let lib's all_reduce choose by what it finds",
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("results/bench"), help="folder for results"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(benchmarks):
        parser.error(
            f"no benchmark is called {', '.join(sorted(unknown))}: there are "
            f"{', '.join(benchmarks)}"
        )
    if options.write_thresholds and options.quick:
        parser.error("--write-thresholds needs the numbers of a full run: leave out --quick")
    names = options.names or list(benchmarks)
    if options.write_thresholds and "algorithms" not in names:
        parser.error("--write-thresholds needs the benchmark algorithms: add its name")
    options.out.mkdir(parents=True, exist_ok=True)

    facts, outcomes, broken = report.machine(), {}, []
    print(
        f"{facts['cpu']}, {facts['cores']} cores; torch {facts['torch']}, Python {facts['python']}"
    )
    for line in ([report.QUICK] if options.quick else []) + [
        f"warning: {w}" for w in report.warnings(facts)
    ]:
        print(line)
    for name in names:
        print(f"\n--- {name}: {title(benchmarks[name])}", flush=True)
        began = time.perf_counter()
        try:
            # The one that measures the thresholds has to look at more world sizes when it is to
            # write them.
            extra = (
                {"write_thresholds": True}
                if options.write_thresholds and name == "algorithms"
                else {}
            )
            outcome = benchmarks[name].run(options.quick, **extra)
        except Exception:
            broken.append(name)
            traceback.print_exc(file=sys.stdout)
            continue
        outcomes[name] = outcome
        outcome.drawing.save(options.out / f"{name}.png")
        record = report.as_json(name, outcome, facts, options.quick)
        (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(report.as_text(outcome))
        print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    (options.out / "README-table.md").write_text(report.as_markdown(outcomes, facts, options.quick))

    missed = {name: outcome.missed for name, outcome in outcomes.items() if outcome.missed}
    print()
    for name, rows in missed.items():
        for row in rows:
            print(f"missed: {name}, {row}: {row.bar}, got {row.cells()[5]}")
    for name in broken:
        print(f"broken: {name}")
    held = sum(row.bar is not None for outcome in outcomes.values() for row in outcome.rows)
    print(f"{held - sum(map(len, missed.values()))} of {held} bars met; results in {options.out}")
    if options.quick:
        print(report.QUICK)
    return 1 if broken or (options.strict and missed) else 0


def title(module) -> str:
    return module.__doc__.splitlines()[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
