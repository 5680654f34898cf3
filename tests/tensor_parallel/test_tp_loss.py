"""Vocabulary over ranks: embedding and cross-entropy are the plain ones, and V is not in
what they send."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallels import GROUPS, my_groups

from lib import launch, ledger
from lib.tensor_parallel import (
    scatter_sequence,
    vocab_parallel_cross_entropy,
    vocab_parallel_embedding,
)

B, T, D = 3, 4, 5
SIZES = [4, 12, 400]  # of the vocabulary


def draw(seed, *shape):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float64)


def ids(seed, V):
    found = torch.randint(
        V, (B, T), generator=torch.Generator("cpu").manual_seed(seed), device="cpu"
    )
    found[0, 0], found[-1, -1] = 0, V - 1  # on the first rank and on the last
    return found


def logits_of(V):
    """Several kinds, all at once (5B, T, V): usual, all alike, shifted, huge both ways, one
    certain token."""
    z = draw(V, B, T, V)
    certain = z.clone()
    certain[..., V // 2] = 80.0
    return torch.cat([z, torch.zeros_like(z), z + 1000.0, 1e4 * z, certain])


def losses(group):
    """{(V, reduction): (largest error of the loss, of its gradient)}, relative to the
    largest number."""
    rank, tp, seen = dist.get_rank(group), dist.get_world_size(group), {}
    for V in SIZES:
        targets = ids(1, V).repeat(5, 1)
        for reduction in ("mean", "sum"):
            whole = logits_of(V).requires_grad_()
            part = whole.detach().chunk(tp, -1)[rank].contiguous().requires_grad_()
            want = F.cross_entropy(whole.flatten(0, 1), targets.flatten(), reduction=reduction)
            (3 * want).backward()
            got = vocab_parallel_cross_entropy(part, targets, group, reduction)
            (3 * got).backward()
            off = part.grad - whole.grad.chunk(tp, -1)[rank]
            seen[V, reduction] = (
                ((got - want) / want).abs().item(),
                (off.abs().max() / whole.grad.abs().max()).item(),
            )
    return seen


def embeddings(group):
    """Are the vectors and the gradient of the weight the plain ones? To the last bit: all
    terms but one are 0."""
    rank, tp, seen = dist.get_rank(group), dist.get_world_size(group), {}
    for V in SIZES:
        tokens, weight, grad = ids(2, V), draw(3, V, D).requires_grad_(), draw(4, B, T, D)
        part = weight.detach().chunk(tp)[rank].clone().requires_grad_()
        want, got = F.embedding(tokens, weight), vocab_parallel_embedding(tokens, part, group)
        want.backward(grad)
        got.backward(grad)
        mine = vocab_parallel_embedding(tokens, part.detach(), group, scatter_sequence)
        seen[V] = [
            torch.equal(got, want), torch.equal(part.grad, weight.grad.chunk(tp)[rank]),
            torch.equal(mine, want.chunk(tp, 1)[rank]),
        ]  # fmt: skip
    return seen


def errors(group):
    """What is said of ids outside the vocabulary, and of shapes. No rank sends anything
    before it raises."""
    tp, said = dist.get_world_size(group), []
    logits, weight = draw(0, B, T, 12 // tp), draw(0, 12 // tp, D)
    outside = ids(0, 12)
    outside[1, 1] = 12
    for call in (
        lambda: vocab_parallel_cross_entropy(logits, outside, group),
        lambda: vocab_parallel_cross_entropy(logits, outside[:, :2] - 5, group),
        lambda: vocab_parallel_embedding(outside - 1, weight, group),
    ):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return said


def sent(group):
    tp = dist.get_world_size(group)
    for V in SIZES:
        logits = draw(0, B, T, V // tp).requires_grad_()
        ledger.mark(f"loss {V} {tp}")
        loss = vocab_parallel_cross_entropy(logits, ids(0, V), group)
        ledger.mark(f"loss backward {V} {tp}")
        loss.backward()
        weight = draw(0, V // tp, D).requires_grad_()
        ledger.mark(f"embedding {V} {tp}")
        x = vocab_parallel_embedding(ids(0, V), weight, group)
        ledger.mark(f"embedding backward {V} {tp}")
        x.sum().backward()
        ledger.mark("")


def everything():
    seen = {}
    for members, group in my_groups().items():
        seen[members] = {part.__name__: part(group) for part in (losses, embeddings, errors)}
        if members in [(0, 1), (0, 1, 2, 3)]:
            sent(group)
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240)


def of(results, part):
    return [(members, results[member][members][part]) for members in GROUPS for member in members]


def test_loss_and_gradient_are_the_plain_ones_for_large_and_equal_logits_too(results):
    for members, seen in of(results, "losses"):
        for case, (loss, gradient) in seen.items():
            assert loss < 1e-12 and gradient < 1e-12, (members, case, loss, gradient)


def test_vectors_and_their_gradients_are_the_plain_ones_to_the_last_bit(results):
    for members, seen in of(results, "embeddings"):
        assert all(all(equal) for equal in seen.values()), (members, seen)


def test_ids_outside_the_vocabulary_and_shapes_are_errors_not_zeros(results):
    for _, (target, shape, token) in of(results, "errors"):
        assert "to 12: the vocabulary has 12, 0 to 11" in target
        assert "want targets (3, 4), got (3, 2): one target per token" in shape
        assert "ids from -1 to 11" in token


@pytest.mark.parametrize("tp", [2, 4])
def test_bytes_do_not_depend_on_the_vocabulary(results, tp):
    for V in SIZES:
        section = lambda what: results.ledger.section(f"{what} {V} {tp}").sent("elements")  # noqa: B023
        # the largest, the sum, the target's: all-reduced
        assert section("loss") == 2 * (tp - 1) * 3 * B * T
        assert section("embedding") == 2 * (tp - 1) * B * T * D
        assert section("loss backward") == section("embedding backward") == 0
