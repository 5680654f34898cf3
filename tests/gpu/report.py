"""The table of a run, in Markdown, to be pasted into README.md: the machine, and
what each step showed."""

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

SHOWED = "showed: "


@dataclass(frozen=True)
class Row:
    """A step: what ran, what it showed. result: "passed", "failed", "timeout" or "not run"."""

    step: str
    what: str
    showed: str
    seconds: float | None
    result: str


def table(machine: str, rows: list[Row], day: datetime.date | None = None) -> str:
    """A line on the machine, a table with a row per step, and how many steps ended how."""
    lines = [
        f"**{day or datetime.date.today()}**: {machine}", "",
        "| step | what ran | what it showed | seconds | result |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        seconds = "-" if row.seconds is None else f"{row.seconds:.0f}"
        result = row.result if row.result == "passed" else f"**{row.result}**"
        lines.append(
            "| " + " | ".join(map(_cell, (row.step, row.what, row.showed, seconds, result))) + " |"
        )
    results = [row.result for row in rows]
    return "\n".join(
        [*lines, "", ", ".join(f"{results.count(r)} {r}" for r in dict.fromkeys(results)) + ".", ""]
    )


def _cell(text):
    return " ".join(text.split()).replace("|", "\\|") or "-"


def showed(log: Path) -> str:
    """What a step showed: its line "showed: ..."; pytest's summary, and what failed; else
    the last that it said."""
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [line.strip(" =\r") for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    said = [
        line
        for line in lines
        if line and not line.startswith(("[rank", "[W", "[E", "NCCL version"))
    ]
    own = [line.removeprefix(SHOWED) for line in said if line.startswith(SHOWED)]
    summary = [
        line
        for line in said
        if re.search(r"\d+ (passed|failed|skipped|errors?)\b.* in [\d.]+s", line)
    ]
    failed = [
        line.split(" - ")[0].split("::")[-1]
        for line in said
        if line.startswith(("FAILED ", "ERROR "))
    ]
    line = (
        own[-1]
        if own
        else "; ".join([summary[-1], *failed])
        if summary
        else said[-1]
        if said
        else "nothing"
    )
    return line if len(line) <= 600 else line[:597] + "..."


def machine(facts: dict) -> str:
    """GPU, driver, torch and NCCL: of what the table is. `facts`: what `probe.collect` returns."""
    torch, smi = facts["torch"], facts["smi"]
    names = [
        line["name"] for product in facts["products"] for line in product["lines"] if "name" in line
    ]
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    return (
        f"{gpus}, driver {smi.get('driver', 'none')}, torch {torch.get('torch', '?')}, "
        f"NCCL {torch.get('nccl') or 'none'}, Python {torch.get('python', '?')}"
    )


def seconds(facts: dict) -> str:
    """What the raw ranks showed, in a line: is there a Work, and the seconds of each thing."""
    if "pair" not in facts:
        return "no two ranks under NCCL were tried"
    lines = facts["pair"]["ranks"][0]["lines"]
    (no_work,) = [line["no_work"] for line in lines if "no_work" in line] or [None]
    said = {
        True: "a synchronous all_reduce has no Work; ",
        False: "a synchronous all_reduce has a Work; ",
    }.get(no_work, "")
    for line in lines:
        for what, name in (("hook", "a parameter's hook"), ("reducer", "DDP's reducer")):
            if what in line:
                thread, default = line[what]
                said += f"{name} runs on {thread} thread, default device {default}; ".replace(
                    "main", "the main"
                )
    contexts = [
        line["seconds"]
        for p in facts["products"]
        for line in p["lines"]
        if line["what"] == "context"
    ]
    took = ", ".join(f"{line['what']} {line['seconds']:g} s" for line in lines)
    return f"{said}context {max(contexts, default=0):g} s, {took}"
