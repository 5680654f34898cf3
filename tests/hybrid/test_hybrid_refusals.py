"""What a Hybrid refuses says which numbers do not fit, and what would."""

import pytest
import torch
from hybrid_cases import OPTIMIZERS, Run, build, sizes

from lib import launch
from lib.hybrid import Hybrid, load_hybrid, local_batch, mesh_of, save_hybrid
from lib.hybrid.mesh import Mesh
from lib.training.model import GPT, Shape


def small(**changes):
    numbers = {"vocab_size": 8, "seq_len": 8, "n_layers": 2, "hidden": 4, "n_heads": 2}
    return Shape(**{**numbers, **changes})


def hybrid(mesh, length=4, **changes):
    return Hybrid(
        GPT(small(**changes)), mesh, torch.zeros(2, length, dtype=torch.int64), 1, OPTIMIZERS["sgd"]
    )


def refused(make):
    """The text of the ValueError; AssertionError if there is none."""
    try:
        make()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def try_each(folder):
    by = {axis: mesh_of(**{axis: 2}) for axis in ("dp", "cp", "tp", "pp")}
    save_hybrid(
        folder,
        1,
        build(Run(sizes(tp=2), b=12), Mesh(sizes(tp=2), [("dp", "ep", "cp"), ("dp", "cp")])),
    )
    return {
        "rows": refused(lambda: local_batch(torch.zeros(5, 4), by["dp"])),
        "few rows": refused(lambda: local_batch(torch.zeros(1, 4), by["dp"])),
        "tokens": refused(lambda: hybrid(by["cp"], length=5)),
        "dropout": refused(lambda: hybrid(by["cp"], dropout=0.1)),
        "heads": refused(lambda: hybrid(by["tp"], hidden=3, n_heads=3)),
        "layers": refused(lambda: hybrid(by["pp"], n_layers=1)),
        "axes": refused(lambda: hybrid(Mesh({"pp": 1, "dp": 2, "tp": 1}))),
        "sets": refused(lambda: hybrid(Mesh(sizes(dp=2)))),
        "world": refused(lambda: mesh_of(pp=2, dp=2)),
        "shape": refused(lambda: load_hybrid(folder, hybrid(by["tp"]))),
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("refusals"))
    return launch.capture(try_each, folder, backend="gloo", nproc=2, timeout=100, ledger=False)


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "rows": "5 rows over dp=2 x ep=1 ranks: use 4 or 6 rows",
        "few rows": "1 rows over dp=2 x ep=1 ranks: use 2 rows",
        "tokens": "5 tokens over cp=2 ranks are [3, 2]: 2cp=4 has to divide them",
        "dropout": "dropout is 0.1: ring attention has none, use dropout=0.0 or cp=1",
        "heads": "n_heads 3 over tp=2 ranks is not whole",
        "layers": "1 layer into 2 stages: use 1 stage",
        "axes": "no axis cp in the mesh pp=1, dp=2, tp=1: add cp=1 where you do not use it",
        "sets": "no group along dp, ep, cp, only along pp; dp; ep; cp; tp: Mesh(sizes, "
        "sets=[('dp', 'ep', 'cp')])",
        "world": "mesh pp=2 * dp=2 * ep=1 * cp=1 * tp=1 = 4, but world_size is 2: use pp=1 or dp=1",
        "shape": "embedding.token.weight for tp=2 is (8, 16) in",
    }.items(),
)
def test_it_names_the_numbers_and_the_next_move(results, name, text):
    for seen in results:
        assert text in seen[name]
