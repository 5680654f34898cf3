"""Writes the first page: what the course is, two runs to replay, and a figure with its claim for
each lab.

The text is in landing.html. Titles, hours, figures and the code of the deadlock are taken from the
labs' notebooks, so that they cannot become outdated.
"""

import base64
import re
from html import escape
from pathlib import Path

from nbformat import NotebookNode

from lib.course import notebook

from . import runs
from .notebooks import still

HERE = Path(__file__).parent
HOURS = re.compile(
    r"core path takes about \*\*([\d.]+) hours\*\*.*?about \*\*([\d.]+) hours", re.DOTALL
)
TITLE = re.compile(r"# (?:(Lab \d+) - )?(.*)")
DESCRIPTION = (
    "A hands-on course on distributed training in PyTorch: seven labs in which you build "
    "collectives, data, pipeline and tensor parallelism, ZeRO and mixtures of experts on real "
    "ranks, without a GPU."
)
# {lab: (the cell whose figure represents it, the figure's claim)}
FIGURES = {
    "lab0_concepts": (
        "cost-figure",
        "Latency decides for small tensors and bandwidth for large ones, so no all-reduce is the "
        "fastest at every size.",
    ),
    "lab1_data_parallel": (
        "overlap-figure",
        "Most of the communication is hidden if gradients are sent while the backward pass is "
        "still running.",
    ),
    "lab2_pipeline_parallel": (
        "zerobubble-figure",
        "If the backward pass is split in two, its second half fills time in which the ranks of "
        "1F1B are idle.",
    ),
    "lab3_tensor_parallel": (
        "price-figure",
        "Tensor parallelism pays within an NVLink domain, but not across four nodes.",
    ),
    "lab4_zero_fsdp": (
        "memory-figure",
        "Each stage of ZeRO shards one more part of what every rank used to store in full.",
    ),
    "lab5_moe": (
        "capacity-figure",
        "With a fixed capacity some tokens find no slot, while slots of other experts stay empty.",
    ),
    "lab6_hybrid_3d": (
        "cost-published-figure",
        "A cost model predicts the step times of published runs that it was not fitted to.",
    ),
}


def page(root: Path, labs: list[str], address: str, figures: Path, alts: dict[str, str]) -> str:
    """The text of index.md. Also writes the labs' figures into `figures`. alts: {name of a recorded
    run: its alt text}."""
    solutions = {lab: notebook.read(notebook.solution_path(root, lab)) for lab in labs}
    stored = runs.stored()["deadlock"]
    parts = {
        "COUNT": {7: "seven"}.get(len(labs), str(len(labs))),
        "FIRST": labs[0],
        "HOURS": _hours(list(solutions.values())),
        "RING": still("ring_all_reduce", alts["ring_all_reduce"]),
        "DEADLOCK": still("deadlock", alts["deadlock"]),
        "CODE": f"<pre>{escape(_code(solutions))}</pre>",
        "VERDICT": escape("\n".join(stored["verdict"])),
        "LABS": "\n".join(_card(lab, solution, figures) for lab, solution in solutions.items()),
        "REPOSITORY": f'<a href="{address}">the repository</a>' if address else "the repository",
        "AUTHORS": _authors(),
        "LICENCE": f'<a href="{address}/blob/main/LICENSE">MIT licence</a>'
        if address
        else "MIT licence",
    }
    html = (HERE / "landing.html").read_text(encoding="utf-8")
    html = re.sub("@([A-Z]+)@", lambda found: parts[found[1]], html)
    trees = [("Labs", labs), ("More", ["glossary"])]
    tocs = "\n\n".join(
        "\n".join(
            ["```{toctree}", ":hidden:", ":maxdepth: 2", f":caption: {name}", "", *pages, "```"]
        )
        for name, pages in trees
    )
    return "\n".join([
        "---", "myst:", "  html_meta:", f'    "description": "{DESCRIPTION}"',
        f'    "property=og:description": "{DESCRIPTION}"',
        '    "property=og:title": "Distributed training, by building it"',
        f'    "property=og:image": "{_site(address)}_static/og.png"', "---", "",
        "# Distributed training, by building it", "", "```{raw} html", html, "```", "", tocs, "",
    ])  # fmt: skip


def _site(address: str) -> str:
    """The address at which GitHub Pages publishes a repository; "" if the repository is not on
    GitHub. We need it because og:image has to be a full address."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)", address)
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def _hours(solutions: list[NotebookNode]) -> str:
    """The sentences about how long the labs take, with the sums of the hours in their first
    cells."""
    found = [HOURS.search(solution.cells[0].source) for solution in solutions]
    core, full = (sum(float(one[part]) for one in found if one) for part in (1, 2))
    return (
        f"The core path of all labs takes about {core:.0f} hours, and everything together about "
        f"{full:.0f}. Each lab takes an afternoon or two."
    )


def _code(solutions: dict[str, NotebookNode]) -> str:
    """The cell that deadlocks, without the line that runs it."""
    lab, cell_id, _ = runs.RUNS["deadlock"]
    cells = [
        cell for cell in solutions.get(lab, NotebookNode(cells=[])).cells if cell.id == cell_id
    ]
    return cells[0].source.split("\n\n")[0] if cells else ""


def _card(lab: str, solution: NotebookNode, figures: Path) -> str:
    """A lab with its figure, as an item of a list."""
    number, title = TITLE.match(solution.cells[0].source).groups()
    image, claim = "", ""
    if lab in FIGURES:
        cell_id, claim = FIGURES[lab]
        (cell,) = (one for one in solution.cells if one.id == cell_id)
        output = next(one for one in cell.outputs if "image/png" in one.get("data", {}))
        (figures / f"{lab}.png").write_bytes(base64.b64decode(output.data["image/png"]))
        size = output.metadata["image/png"]
        image = (
            f'<img src="_static/figures/{lab}.png" alt="{escape(size["alt"])}" loading="lazy" '
            f'width="{size["width"]}" height="{size["height"]}">'
        )
    link = f'<a href="{lab}.html"><span>{number or ""}</span> {escape(title)}</a>'
    return f"<li>{link}<p>{claim}</p>{image}</li>"


def _authors() -> str:
    """The copyright holders that LICENSE names."""
    text = (notebook.ROOT / "LICENSE").read_text(encoding="utf-8")
    return re.search(r"Copyright \(c\) \d+ (.*)", text)[1]
