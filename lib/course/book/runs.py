"""Records what the animated figures show. These are real runs of the notebooks' own cells, stored
in runs.json.

    python -m lib.course record     # runs the cells again and stores their data; half a minute

An animation is drawn from the same kind of data as the figure above it in the notebook.
"""

import json
from pathlib import Path

import nbformat

from lib.course import execute, notebook, reach
from lib.course.notebook import CourseError

STORED = Path(__file__).with_name("runs.json")

# {name: (lab, id of the cell below which the animation is shown, the code that makes its data)}.
# `record` first runs the cells that this code needs.
RUNS = {
    "ring_all_reduce": ("lab0_concepts", "ring-figure", """
from lib.collectives.contents import traced
from lib.plots import chunks, messages
done = launch.capture(traced, use(ring_all_reduce), nproc=4)
panels = messages.rounds(done.ledger.entries)
states, arrived = chunks.states_after(done, panels)
data = {"rounds": [[[send.rank, send.peer] for send in panel] for panel in panels],
        "arrived": [sorted(places) for places in arrived],
        "states": [[[sum(counts) for counts in rank] for rank in state] for state in states]}"""),
    "broadcast_tree": ("lab0_concepts", "broadcast-figure", """
from lib.plots import messages
done = launch.run(run_broadcast, use(broadcast), nproc=8)
data = {"ranks": 8, "root": 2, "rounds": [[[send.rank, send.peer] for send in panel] \
for panel in messages.rounds(done.ledger.entries)]}"""),
    "deadlock": ("lab0_concepts", "messages-deadlock-run", """
from lib.launch.errors import RankError

def one_receives_first():
    other = 1 - dist.get_rank()
    mine, theirs = torch.ones(3), torch.zeros(3)
    if dist.get_rank() == 0:
        dist.send(mine, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)

def events(ledger):
    happened = [(when, entry.rank, entry.op, entry.peer, what) for entry in ledger.entries
                for what, when in (("posted", entry.posted), ("done", entry.wait_to)) if when]
    return [event[1:] for event in sorted(happened)]

try:
    launch.run(both_send_first, nproc=2, backend="gloo")
except RankError as error:
    data = {"hangs": events(error.ledger), "verdict": str(error).splitlines()}
data["works"] = events(launch.run(one_receives_first, nproc=2, backend="gloo").ledger)"""),
    "one_f_one_b_and_zb_h1": ("lab2_pipeline_parallel", "measured-all", """
names = ["1F1B", "ZB-H1"] * 6
ranks = launch.run(trials.paced, [cases[n] for n in names], nproc=4, backend="gloo", ledger=False)
shortest = {}
for name, run in zip(names, trials.runs(ranks)):
    if name not in shortest or run.makespan < shortest[name].makespan:
        shortest[name] = run
zero = {name: min(bar.start for bar in run.bars) for name, run in shortest.items()}
data = {name: [[bar.rank, bar.action.kind, bar.action.microbatch, bar.start - zero[name], \
bar.end - zero[name]]
               for bar in run.bars] for name, run in shortest.items()}"""),
    "gather_and_free": ("lab4_zero_fsdp", "fsdp-figure", """
data = {"events": launch.run(sharded.unit_events, use(FSDP), use(Unit), nproc=2)[0], \
"units": SHAPE.n_layers, "ranks": 2}"""),
    "tokens_to_experts": ("lab5_moe", "parallel-figure", """
data = {"rows": launch.run(compare.tokens_to_ranks, SHAPE, nproc=4, ledger=False)}"""),
}  # fmt: skip


def stored() -> dict:
    """{name: what was recorded}, from runs.json."""
    return json.loads(STORED.read_text(encoding="utf-8"))


def record(root: Path, names: list[str]) -> None:
    """Run the code of the RUNS with these names and store their data. Raises CourseError if a cell
    fails or prints no data."""
    kept = stored() if STORED.exists() else {}
    for name in names:
        lab, _, source = RUNS[name]
        solution = notebook.read(notebook.solution_path(root, lab))
        cells = reach.needed(solution, source)
        dump = nbformat.v4.new_code_cell(
            f"{source}\nimport json\nprint('DATA' + json.dumps(data))", id="dump"
        )
        run = nbformat.v4.new_notebook(cells=[*cells, dump], metadata=solution.metadata)
        execute.run(run, root / "solutions", cell_timeout=300)
        said = "".join(output.get("text", "") for output in dump.outputs)
        if "DATA" not in said:
            raise CourseError(f"{name}: the cells of {lab} printed no data")
        kept[name] = json.loads(said.split("DATA")[1].splitlines()[0])
    lines = [
        f"{json.dumps(name)}: {json.dumps(_short(kept[name]))}" for name in RUNS if name in kept
    ]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _short(data):
    """The same data, with times rounded to a tenth of a millisecond."""
    if isinstance(data, dict):
        return {key: _short(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_short(value) for value in data]
    return round(data, 4) if isinstance(data, float) else data
