"""The rows of the comparison: ours and torch's run here and now; DeepSpeed's too where it is
installed, else as stored.

Stored: the same run on another machine, with the versions in the file. Losses, bytes and elements
are not times: they do not depend on the machine, but for the last digits of a loss.
"""

import functools
import importlib.metadata
import importlib.util
import json
from pathlib import Path

from lib import launch, ledger
from lib.demo.beside import volume
from lib.demo.beside.deepspeed_zero import Engine
from lib.demo.beside.job import Row, train
from lib.demo.beside.sides import FullyShard, Ours, one_process
from lib.measuring.seeds import stamp

FILE = Path(__file__).with_name("deepspeed.json")
WORLDS, MICROBATCHES = (2, 4), (1, 2)
OURS = [*(("ours", stage) for stage in range(4)), ("FSDP2", 3)]
REDUCE = "DeepSpeed, reduce"  # at stages 1 and 2 it can be told to reduce each shard to its owner
THEIRS = [*(("DeepSpeed", stage) for stage in range(4)), (REDUCE, 1), (REDUCE, 2)]


def make(who, stage):
    """The function of k that `job.train` takes."""
    if who == "ours":
        return functools.partial(Ours, stage)
    if who == "FSDP2":
        return FullyShard
    return functools.partial(
        Engine, stage, **({"use_multi_rank_bucket_allreduce": False} if who == REDUCE else {})
    )


def on_ranks(runs, complete):
    """On every rank: {(who, stage, k): what `job.train` returns}, of each k in `complete`; the
    others only send."""
    runs = [(who, stage, k) for who, stage in runs for k in MICROBATCHES]
    for run in runs:  # every step but the first sends the same
        train(make(*run[:2]), section(*run), run[2], count=None, steps=2)
    ledger.uninstall()  # it holds on to the last op, whose tensors would be among the bytes
    return {run: train(make(*run[:2]), section(*run), run[2]) for run in runs if run[2] in complete}


def section(who, stage, k):
    """The name of a run's section in the ledger."""
    return f"{who} {stage} {k}"


def rows_of(runs, N, timeout, complete=MICROBATCHES):
    """[Row, ...] of these runs on N ranks. Launches them, on the CPU, where the stored ones were
    made.

    complete: the numbers of micro-batches whose losses and bytes are asked for; of the others, what
    they send.
    """
    results, rows = (
        launch.capture(on_ranks, runs, complete, nproc=N, backend="gloo", timeout=timeout),
        [],
    )
    for who, stage, k in [(who, stage, k) for who, stage in runs for k in MICROBATCHES]:
        of_ranks = [rank.get((who, stage, k), ([], 0, 0)) for rank in results]
        losses, most = of_ranks[0][0], [max(rank[i] for rank in of_ranks) for i in (1, 2)]
        given = volume.given(results.ledger.section(section(who, stage, k)))
        rows.append(Row(who, stage, N, k, losses, *most, given, volume.sent(given, N)))
    return rows


def alone():
    """The row of one process on the whole batch: its losses; nothing else is counted."""
    return Row("one process", 0, 1, 1, one_process(), 0, 0, {}, 0.0)


def our_rows(N=4, complete=MICROBATCHES):
    """[Row, ...]: one process, ours at stages 0 to 3, FSDP2, each with 1 and 2 micro-batches on N
    ranks. Seconds."""
    return [alone(), *rows_of(OURS, N, 300, complete)]


def installed():
    """Is DeepSpeed here?"""
    return importlib.util.find_spec("deepspeed") is not None


def deepspeed_rows(N=4):
    """[Row, ...] of DeepSpeed's stages, run here. About 20 s."""
    return rows_of(THEIRS, N, timeout=600)


def stored():
    """What is stored: {"deepspeed": its version, "torch": ..., "python": ..., "date": ...,
    "rows": [Row, ...]}."""
    record = json.loads(FILE.read_text())
    return record | {"rows": [Row(**row) for row in record["rows"]]}


def results(N=4):
    """[Row, ...] of all sides on N ranks, 2 or 4. Says so where DeepSpeed's rows are stored ones.

    Of 2 micro-batches ours have only what they send: that is what the table shows.
    Raises ValueError for an N that is not stored.
    """
    if installed():
        return our_rows(N, complete=(1,)) + deepspeed_rows(N)
    record = stored()
    theirs = [row for row in record["rows"] if row.N == N and row.who in dict(THEIRS)]
    if not theirs:
        raise ValueError(
            f"nothing is stored for {N} ranks: use {' or '.join(map(str, WORLDS))}, or install "
            f"DeepSpeed"
        )
    print(
        f"DeepSpeed is not installed here (make setup "
        f"EXTRAS=deepspeed): its rows are stored ones,\n"
        f"of DeepSpeed {record['deepspeed']} with torch {record['torch']}, {record['date']}. Ours "
        f"and torch's ran now."
    )
    return our_rows(N, complete=(1,)) + theirs


def store():
    """Run all sides at 2 and 4 ranks, and write the file."""
    rows = [
        alone(),
        *(row for N in WORLDS for row in rows_of(OURS, N, timeout=300) + deepspeed_rows(N)),
    ]
    record = {
        "what": "lib.demo.beside: losses per step, bytes and elements of the last step, written by "
        "`python -m lib.demo.beside`",
        "deepspeed": importlib.metadata.version("deepspeed"),
        **stamp(),
        "rows": [row._asdict() for row in rows],
    }
    FILE.write_text(json.dumps(record, indent=1) + "\n")
