"""What a step of the parallel GPT puts on the wire, forward and backward, against the formulas:
exact, in bytes.

tp ranks, B rows of T tokens, D hidden, L layers. In units of (tp-1) BTD elements over all ranks:

                            forward   backward
    tensor parallel         4L + 2    4L + 2     2 all-reduces per layer each way; embedding, head 1
    sequence parallel       4L + 2    4L + 2     the same: an all-reduce is a gather and a scatter
    sequence, regathered    4L + 2    6L + 3     2 gathers more per layer, and the head's

besides 2(tp-1) 3BT for the loss, forward, and in sequence parallel 2(tp-1) ((6D)L + 2D + TD) for
what is not cut.
"""

import pytest
import torch.distributed as dist
from parallels import MODES, ROWS, batch, gpt, my_groups

from lib import launch, ledger
from lib.tensor_parallel import parallel_gpt
from lib.training.model import Shape

SHAPES = [
    Shape(vocab_size=12, seq_len=8, n_layers=L, hidden=16, n_heads=8, n_kv_heads=4, mlp_hidden=12)
    for L in (1, 3)
]
WIDER = Shape(
    vocab_size=1200, seq_len=8, n_layers=1, hidden=16, n_heads=8, n_kv_heads=4, mlp_hidden=48
)
SIZES = {(0, 1): 2, (0, 1, 2, 3): 4}
RUNS = [(mode, shape) for mode in MODES for shape in (*SHAPES, WIDER)]


def name(way, mode, shape, tp):
    return f"{way} {mode} {shape.n_layers} {shape.vocab_size} {tp}"


def step(model, mode, shape, tp):
    tokens, targets = batch(shape, 0)
    ledger.mark(name("forward", mode, shape, tp))
    x = model.embedding(tokens)
    for block in model.blocks:
        x = block(x)
    logits = model.head(model.norm(x))
    ledger.mark("")
    loss = model.loss(tokens, targets)
    ledger.mark(name("backward", mode, shape, tp))
    loss.backward()
    ledger.mark(name("gradients", mode, shape, tp))
    model.sum_gradients()
    ledger.mark(name("loss", mode, shape, tp))
    model.loss(tokens, targets)
    ledger.mark("")
    return tuple(logits.shape)


def torchs(tensor, group):
    dist.all_reduce(tensor, group=group)


def everything():
    mine, shapes = my_groups(), {}
    for members, tp in SIZES.items():
        if members in mine:
            for mode, shape in RUNS:
                shapes[mode, shape, tp] = step(
                    MODES[mode](gpt(shape), mine[members]), mode, shape, tp
                )
            for shape in SHAPES:
                step(parallel_gpt(gpt(shape), mine[members], torchs), "torchs", shape, tp)
    return shapes


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240)


def units(mode, L):
    """(forward, backward) in (tp-1) BTD elements over all ranks."""
    return 4 * L + 2, (6 * L + 3 if mode == "regathered" else 4 * L + 2)


@pytest.mark.parametrize("tp", SIZES.values())
@pytest.mark.parametrize("mode", MODES)
def test_bytes_are_the_formula_s(results, mode, tp):
    for shape in (*SHAPES, WIDER):
        sent = lambda way: results.ledger.section(name(way, mode, shape, tp)).sent("bytes")  # noqa: B023
        L, T, D = shape.n_layers, shape.seq_len, shape.hidden
        unit = 8 * (tp - 1) * ROWS * T * D  # float64
        forward, backward = units(mode, L)
        loss = 8 * 2 * (tp - 1) * 3 * ROWS * T
        assert sent("forward") == forward * unit
        assert sent("backward") == backward * unit
        assert sent("loss") == forward * unit + loss
        not_cut = 6 * D * L + 2 * D + T * D
        assert sent("gradients") == (0 if mode == "tensor" else 8 * 2 * (tp - 1) * not_cut)


@pytest.mark.parametrize("tp", SIZES.values())
def test_two_all_reduces_per_layer_each_way(results, tp):
    """Counted: the all-reduces that drive f and g are torch's here, one entry each."""
    for shape in SHAPES:
        for way in ("forward", "backward"):
            section = results.ledger.section(name(way, "torchs", shape, tp))
            for rank in range(tp):
                entries = [e for e in section.of(rank) if e.op == "all_reduce"]
                assert len(entries) == 2 * shape.n_layers + 1
                assert {e.shape for e in entries} == {(ROWS, shape.seq_len, shape.hidden)}


@pytest.mark.parametrize("mode", MODES)
def test_the_logits_stay_where_they_are(results, mode):
    for tp in SIZES.values():
        for shape in (*SHAPES, WIDER):
            assert results[0][mode, shape, tp] == (ROWS, shape.seq_len, shape.vocab_size // tp)


def test_every_rank_sends_its_share(results):
    """In sequence parallel, where rings carry everything, each of tp ranks sends 1/tp of it."""
    section = results.ledger.section(name("backward", "regathered", SHAPES[0], 4))
    assert len({section.sent("bytes", rank) for rank in range(4)}) == 1
