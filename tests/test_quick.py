"""Does this machine run the labs? Half a minute: the one test that students get to run first.

It asks nothing of the answers, and goes through what every lab needs: ranks, the ledger, checks,
notebooks.
"""

import json
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lib import check, launch
from lib.check.exercises import EXERCISES, FUNCTIONS
from lib.collectives import all_reduce, ring_all_reduce

ROOT = Path(__file__).parents[1]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))


def cells(path):
    """The source of each code cell of a notebook."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def test_four_ranks_meet_and_the_ledger_counts():
    def ring():
        x = torch.arange(10.0) * (dist.get_rank() + 1)
        return ring_all_reduce(x), all_reduce(torch.ones(3))

    results = launch.capture(ring, nproc=4, backend="gloo")
    for summed, ones in results:
        assert torch.equal(summed, torch.arange(10.0) * 10)
        assert torch.equal(ones, torch.full((3,), 4.0))
    ring_bytes = 2 * 3 * 10 * 4  # 2(N-1)n elements of 4 bytes
    assert results.ledger.matrix("bytes").sum() >= ring_bytes


def test_there_are_labs_and_each_asks_for_exercises_that_exist():
    assert LABS
    for path in LABS:
        source = "\n".join(cells(path))
        asked = set(re.findall(r"^check\.(?!points\b)(\w+)\(", source, re.MULTILINE))
        assert asked and asked <= set(EXERCISES), path.name
        assert set(re.findall(r"\buse\((\w+)\)", source)) <= set(FUNCTIONS), path.name


def test_what_cells_run_until_yours_passes_is_there():
    for name, part in FUNCTIONS.items():
        assert part.reference is None or callable(part.reference), name


def test_an_unwritten_answer_has_no_points_and_a_wrong_one_is_told_why(capsys):
    def broadcast(tensor, root=0, group=None):
        raise NotImplementedError

    with pytest.raises(check.CheckFailed, match="not written yet"):
        check.broadcast(broadcast)
    assert "0 of 12 bonus points" in capsys.readouterr().out

    def broadcast(tensor, root=0, group=None):
        return tensor  # delivers nothing

    with pytest.raises(check.CheckFailed):
        check.broadcast(broadcast)
    shown = capsys.readouterr().out
    assert " cause: " in shown and "12 of 12" not in shown
