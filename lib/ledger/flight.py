"""PyTorch's Flight Recorder, which helps to explain a hang on a cluster that runs without this
course's ledger.

torch itself records the last 2000 collectives of each process. (TORCH_FR_BUFFER_SIZE sets this
number. torch 2.10 records nothing unless it is set, so `lib.backend.join` sets it.) Under NCCL a
watchdog writes the records to a file when a collective exceeds its timeout. Under gloo collectives
are recorded, too, but sends and receives are not. Since gloo has no watchdog, `dump_after` takes
its place.

    on a rank   dump_after(seconds, folder), dump(folder)  torch's pickles folder/rank_0, rank_1 ...
    afterwards  read(folder) -> {rank: [record, ...]}      table(dumps), blame(dumps)

A record is a dict that describes one collective: group, members, nth (its number in the group, as
torch counts), op, elements (of all inputs) and state.
"""

import math
import os
import pickle
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import torch
import torch.distributed as dist

from lib.backend import torch_private


def dump_after(seconds: float, folder: str) -> None:
    """On a rank: write its dump to `folder` once the rank has called no collective for `seconds`.
    A thread does this, so it works even if the rank hangs. Raises what `dump` raises.

    The recorder cannot be emptied, so on ranks that are reused it also contains the collectives of
    earlier runs. Launch with `fresh=True` to avoid this.
    """
    recorded = _recorder()  # if there is none, this raises now

    def calls():
        return [entry["record_id"] for entry in pickle.loads(recorded()).get("entries", [])]

    def later():
        seen, since = calls(), time.monotonic()
        while time.monotonic() < since + seconds:
            time.sleep(seconds / 10)
            if (now := calls()) != seen:
                seen, since = now, time.monotonic()
        dump(folder)

    # The name marks it as a thread of the launcher. It communicates nothing, so it must not count
    # as one of the program's threads; otherwise no deadlock could be proved.
    threading.Thread(target=later, daemon=True, name="lib.launch.flight").start()


def dump(folder: str) -> None:
    """On a rank: write what torch has recorded so far to `folder`/rank_<rank>. Raises RuntimeError
    if torch's recorder is off or missing."""
    found = pickle.loads(_recorder()())
    if "" in found["pg_config"]:  # gloo's dumps do not name the groups, NCCL's do
        found["pg_config"] = _groups()
    path = Path(folder, f"rank_{dist.get_rank()}")
    path.with_name(f".{path.name}").write_bytes(pickle.dumps(found))
    path.with_name(f".{path.name}").rename(path)  # no reader sees half a dump


def written(folder: str) -> int:
    """How many ranks have written their dump."""
    return len(list(Path(folder).glob("rank_*")))


def read(folder: str) -> dict[int, list[dict]]:
    """{rank: its collectives, in the order of its calls} of all dumps in `folder`. Raises
    FileNotFoundError if there are none."""
    paths = {int(path.name.removeprefix("rank_")): path for path in Path(folder).glob("rank_*")}
    if not paths:
        raise FileNotFoundError(f"no dumps in {folder}: no rank has got as far as its dump_after")
    return {rank: _records(pickle.loads(paths[rank].read_bytes())) for rank in sorted(paths)}


def _records(found):
    members = {group["name"]: _ranks(group["ranks"]) for group in found["pg_config"].values()}
    return [
        {
            "group": entry["process_group"][0],
            "members": members[entry["process_group"][0]],
            "nth": entry["collective_seq_id"],
            "op": entry["profiling_name"].partition(":")[2],  # "gloo:all_reduce"
            "elements": sum(math.prod(size) for size in entry["input_sizes"]),
            "state": "completed"
            if entry["retired"]
            else entry["state"],  # gloo's state stays "scheduled"
        }
        for entry in found.get("entries", [])
        if not entry["is_p2p"]
    ]


def table(dumps: dict[int, list[dict]]) -> str:
    """The records as a text table, one line for each."""
    lines = ["rank  group  nth  op            elements  state"]
    for rank, records in dumps.items():
        for r in records:
            lines.append(
                f"{rank:<6}{r['group']:<7}{r['nth']:<5}{r['op']:<14}{r['elements']:>8}  "
                f"{r['state']}"
            )
    return "\n".join(lines)


# exercise: lab0.blame
def blame(dumps: dict[int, list[dict]]) -> dict[str, tuple[int, str, list[int]]]:
    """The first collective of each group that went wrong: {group: (nth, op, ranks)}, or {} if none
    did.

    A collective went wrong if some rank waits in it while a member has not called it yet, or if its
    ranks called it with different ops or numbers of elements. op: the op of the most frequent call;
    if two are equally frequent, of the lower rank's call. ranks: those that have not called it, and
    those whose call differs from the most frequent one, sorted.
    """
    called, reached = defaultdict(dict), {}
    for rank in sorted(dumps):
        for record in dumps[rank]:
            called[record["group"], record["nth"]][rank] = record
            # older records may have been overwritten
            reached[record["group"], rank] = record["nth"]
    wrong = {}
    for (group, nth), records in sorted(called.items()):
        kinds = {rank: (record["op"], record["elements"]) for rank, record in records.items()}
        # if two are equally frequent, that of the lowest rank
        usual = Counter(kinds.values()).most_common(1)[0][0]
        guilty = [rank for rank, kind in kinds.items() if kind != usual]
        if any(record["state"] != "completed" for record in records.values()):
            members = next(iter(records.values()))["members"]
            guilty += [member for member in members if reached.get((group, member), 0) < nth]
        if guilty and group not in wrong:
            wrong[group] = (nth, usual[0], sorted(guilty))
    return wrong


def _recorder():
    """torch's private function that returns this process's records; there is a separate one for
    NCCL. Raises RuntimeError if the recorder is off, or if this torch has no such function."""
    if (
        os.environ.get("TORCH_FR_BUFFER_SIZE") == "0"
        or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") == "0"
    ):
        raise RuntimeError(
            "torch's Flight Recorder is off here: "
            "take TORCH_FR_BUFFER_SIZE=0 out of the environment"
        )
    function, name = torch_private.flight_recorder(dist.get_backend())
    if function is None:
        raise RuntimeError(
            f"torch {torch.__version__} has no {name}: its Flight Recorder cannot be read from "
            f"Python"
        )
    return function


def _groups():
    """The process groups of this rank, in the form that torch's dumps have under NCCL."""
    world = torch_private.registry()
    ranks = {
        name: sorted(world.pg_group_ranks.get(group, {})) for group, name in world.pg_names.items()
    }
    return {name: {"name": name, "desc": "", "ranks": str(there)} for name, there in ranks.items()}


def _ranks(text):
    """ "[0, 1, 2]" -> (0, 1, 2)"""
    return tuple(int(rank) for rank in text.strip("[]").split(",") if rank.strip())
