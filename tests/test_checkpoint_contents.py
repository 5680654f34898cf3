"""Checkpoints: every bit comes back, and what is damaged is named."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import said, save_at
from torch import nn

from lib import launch
from lib.training import checkpoint

DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def numbers(dtype):
    """Random bits, so that nan, inf and the smallest numbers are among them; (1000,)."""
    generator = torch.Generator().manual_seed(1)
    if dtype == torch.bool:
        return torch.randint(2, (1000,), generator=generator) == 1
    size = torch.empty((), dtype=dtype).element_size()
    return torch.randint(256, (1000 * size,), generator=generator, dtype=torch.uint8).view(dtype)


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8)


def contents(folder):
    """One rank: states go out and come back."""
    folder, seen = Path(folder), {}
    state = {str(dtype): numbers(dtype) for dtype in DTYPES}
    checkpoint.save(folder / "bits", 0, state)
    back = checkpoint.load(folder / "bits")[0]
    seen["bits"] = {
        name: back[name].dtype == x.dtype and torch.equal(bytes_of(back[name]), bytes_of(x))
        for name, x in state.items()
    }

    flat = torch.arange(100_000.0)
    turned = torch.arange(6.0).view(2, 3).t()
    checkpoint.save(folder / "shard", 0, {}, own={"shard": flat[10:20], "turned": turned})
    own, facts = checkpoint.load(folder / "shard")[1:]
    seen["shard"] = torch.equal(own["shard"], flat[10:20]) and torch.equal(own["turned"], turned)
    seen["size"] = (facts.path / "rank_0.pt").stat().st_size

    model = nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    everything = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "more": (1.5, None, [torch.float16]),
    }
    checkpoint.save(folder / "states", 0, everything)
    back = checkpoint.load(folder / "states")[0]
    other = nn.Linear(2, 3)
    other.load_state_dict(back["model"])
    fresh = torch.optim.AdamW(other.parameters())
    fresh.load_state_dict(back["optimizer"])
    seen["states"] = (
        all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))
        and str(fresh.state_dict()) == str(optimizer.state_dict())
        and back["more"] == (1.5, None, [torch.float16])
    )

    seen["refused"] = [
        said(checkpoint.save, folder / "refused", 0, {"a": [1, np.ones(2)]}),
        said(checkpoint.save, folder / "refused", 0, {}, own={"where": Path("x")}),
        said(checkpoint.save, folder / "refused", 0, {"rate": np.float64(0.1)}),
        said(checkpoint.save, folder / "refused", -1, {}),
    ]
    seen["refused left"] = (folder / "refused").exists()
    return seen


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return launch.capture(contents, tmp_path_factory.mktemp("one"), nproc=1, backend="gloo")[0]


def test_every_dtype_comes_back_bit_for_bit(one):
    assert one["bits"] == {str(dtype): True for dtype in DTYPES}


def test_a_shard_is_saved_without_what_it_is_cut_from(one):
    assert one["shard"] and one["size"] < 4000  # bytes; the whole has 400,000


def test_states_of_models_and_optimizers_come_back(one):
    assert one["states"]


def test_what_could_not_be_loaded_again_is_not_saved(one):
    array, path, number, step = one["refused"]
    assert (
        array.startswith("TypeError: shared['a'][1] is a numpy.ndarray")
        and "torch.from_numpy" in array
    )
    assert path.startswith("TypeError: own['where'] is a pathlib.PosixPath")
    assert number.startswith("TypeError: shared['rate'] is a numpy.float64")
    assert step == "ValueError: step is -1: steps count from 0"
    assert not one["refused left"]


def flip_a_bit(file):
    """In a tensor's contents, which torch.load takes as they are."""
    content = bytearray(file.read_bytes())
    content[content.index(torch.full((100,), 42.0).numpy().tobytes())] ^= 1
    file.write_bytes(content)
    torch.load(file, weights_only=True)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = [
    ("shared.pt", flip_a_bit, "checksum"), ("shared.pt", cut, "not a zip"),
    ("rank_0.pt", Path.unlink, "missing"),
    ("rank_0.pt", cut, "not a zip"), ("rank_0.pt", lambda file: file.write_bytes(b""), "not a zip"),
]  # fmt: skip


def damaged(folder):
    folder, seen = Path(folder), []
    save_at(folder / "start", 40)
    save_at(folder / "start", 42)
    for number, (name, damage, _) in enumerate(DAMAGES):
        here = folder / str(number)
        shutil.copytree(folder / "start", here)
        damage(here / "step_00000042" / name)
        error = said(checkpoint.load, here)
        older = checkpoint.load(here, step=40)[2].step
        shutil.rmtree(here / "step_00000042")
        cut(here / "step_00000040" / "shared.pt")
        seen.append((error, older, said(checkpoint.load, here)))
    return seen


def test_a_damaged_file_is_named_and_the_next_older_step(tmp_path):
    seen = launch.capture(damaged, tmp_path, nproc=1, backend="gloo")[0]
    for (name, _, reason), (error, older, last) in zip(DAMAGES, seen, strict=True):
        assert error is not None and error.startswith("RuntimeError"), (name, error)
        assert f"step_00000042/{name} is damaged (" in error and reason in error
        assert error.endswith("/step_00000042; the next older is step 40")
        assert older == 40
        assert last.endswith("/step_00000040; there is no older one")
