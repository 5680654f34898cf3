"""What the tests of tensor parallelism share: groups of one launch, models, training on one process
and on ranks.

Equal means: differs from the single process's by less than `tolerance` times the largest number in
it.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.tensor_parallel import parallel_gpt, regathered_column_parallel, sequence_parallel_gpt
from lib.tensor_parallel.layouts import rectangle
from lib.training.model import GPT, Shape

GROUPS = [(0,), (0, 1), (0, 1, 2, 3), (1, 3)]  # the last one's ranks are not the world's
STEPS, ROWS = 2, 3
TOLERANCE = 1e-12
SHAPES = {
    "heads": Shape(vocab_size=12, seq_len=8, n_layers=2, hidden=8, n_heads=4),
    "grouped-query": Shape(
        vocab_size=20, seq_len=8, n_layers=2, hidden=16, n_heads=8, n_kv_heads=4, mlp_hidden=12
    ),
}
MODES = {
    "tensor": parallel_gpt,
    "sequence": sequence_parallel_gpt,
    "regathered": partial(sequence_parallel_gpt, column_linear=regathered_column_parallel),
}


def groups():
    """On every rank: {members: group}. The world is None, as the default argument is."""
    made = {
        members: dist.new_group(members)
        for members in GROUPS
        if len(members) < dist.get_world_size()
    }
    return {members: made.get(members) for members in GROUPS}


def my_groups():
    """{members: group} of the groups that this rank is in; the others are for other ranks."""
    return {members: group for members, group in groups().items() if dist.get_rank() in members}


def gpt(shape, tied=True, dtype=torch.float64):
    """The plain model, alike wherever it is built. Biases are not 0, as GPT-2's are: or
    none would be missed."""
    model = GPT(shape).to(dtype)
    draw = torch.Generator("cpu").manual_seed(3)
    if not tied:
        model.head.weight = nn.Parameter(model.head.weight.detach() + 0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.1 * torch.randn(parameter.shape, generator=draw, device="cpu")).to(
                parameter
            )
    return model


def batch(shape, step, length=None):
    """tokens, targets: (ROWS, T) int64."""
    draw = torch.Generator("cpu").manual_seed(step)
    size = (2, ROWS, length or shape.seq_len)
    tokens, targets = torch.randint(shape.vocab_size, size, generator=draw, device="cpu").to(
        backend.device()
    )
    return tokens, targets


def snapshot(model):
    """({name: gradient}, {name: parameter}), copies; a tied parameter once, no gradient of
    what is frozen."""
    named = list(model.named_parameters())
    gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}
    return gradients, {name: p.detach().clone() for name, p in named}


def train(model, shape, sum_gradients=lambda: None):
    """STEPS steps of SGD: [(logits, loss, {name: gradient}, {name: parameter})], of this rank's
    part.

    sum_gradients: called after each backward; a plain model needs none.
    """
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens, targets = batch(shape, step)
        logits, loss = model(tokens).detach(), model.loss(tokens, targets)
        loss.backward()
        sum_gradients()
        gradients, _ = snapshot(model)
        optimizer.step()
        seen.append((logits, loss.detach(), gradients, snapshot(model)[1]))
    return seen


def scale(name, tensors):
    """The largest number in tensors[name]; the true gradient of attention's key bias is zero: its
    weight's instead."""
    return tensors[name.replace("k.bias", "k.weight")].abs().max().item()


def differences(got, want, tolerance=TOLERANCE):
    """["head.weight: off by 0.1, 1e-12 allowed", ...] of two {name: tensor}."""
    assert got.keys() == want.keys()
    wrong = []
    for name, right in want.items():
        off, allowed = (got[name] - right).abs().max().item(), tolerance * scale(name, want)
        if not off <= allowed or got[name].shape != right.shape or got[name].dtype != right.dtype:
            wrong.append(f"{name}: off by {off:.3g}, {allowed:.3g} allowed")
    return wrong


def pairs_computed(layout):
    """[[pairs of step 0, of step 1, ...] per rank]: those of the rectangles, some of which the mask
    then hides.

    Contiguous, t = T/cp: rank r computes (r + 1) t^2. Zigzag: every rank (cp + 1)/2 * t^2, the same
    at every step but the first.
    """

    def area(queries, keys):
        a, b = rectangle(queries, keys)
        return (len(queries) - a) * b

    cp = len(layout)
    return [[area(layout[r], layout[(r - step) % cp]) for step in range(cp)] for r in range(cp)]
