"""A linear layer in blocks on a q x q grid: values, gradients, and bytes beside the 1-D pair's."""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from watching import numbers, off

from lib import launch, ledger
from lib.collectives import ring_all_reduce
from lib.tensor_parallel.two_d import linear_2d

n, I, O = 12, 6, 18  # all multiples of 1, 2 and 3


def grid(q):
    """(row group, column group, i, j) of this rank, if it is one of the first q^2. Every
    rank must call it."""
    rows = [dist.new_group([i * q + j for j in range(q)]) for i in range(q)]
    columns = [dist.new_group([i * q + j for i in range(q)]) for j in range(q)]
    i, j = divmod(dist.get_rank(), q)
    return (rows[i], columns[j], i, j) if i < q else None


def block(x, i, j, q):
    return x.tensor_split(q, 0)[i].tensor_split(q, 1)[j]


def case(q, row, column, i, j):
    """How far Y, dX and dW of this rank's blocks are from one process's."""
    x, w, dy = (numbers(seed, *shape) for seed, shape in enumerate([(n, I), (I, O), (n, O)]))
    one = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    y = F.gelu(one[0] @ one[1])
    y.backward(dy)
    mine = [block(leaf, i, j, q).clone().requires_grad_() for leaf in (x, w)]
    ledger.mark(f"{q} forward")
    product = linear_2d(*mine, row, column)
    ours = F.gelu(product)  # on blocks as on the whole
    ledger.mark(f"{q} backward")
    ours.backward(block(dy, i, j, q))
    ledger.mark("")
    pairs = [(ours.detach(), y.detach()), (mine[0].grad, one[0].grad), (mine[1].grad, one[1].grad)]
    return [off(a, block(b, i, j, q)) for a, b in pairs]


def refused(row, column):
    said = []
    for shapes, groups in [
        (((2, 3), (4, 2)), (row, column)),
        (((2, 3), (3, 2)), (row, dist.group.WORLD)),
        (((2, 2, 3), (3, 2)), (row, column)),
    ]:
        try:
            linear_2d(*(torch.zeros(shape) for shape in shapes), *groups)
        except ValueError as error:
            said.append(str(error))
    return said


def run_each():
    seen = {}
    for q in (1, 2, 3):
        mine = grid(q)
        if mine is not None:
            seen[q] = case(q, *mine)
    ledger.mark("1-D")
    # the two all-reduces of a column layer and the row layer after it, forward and backward
    for _ in range(2):
        ring_all_reduce(torch.ones(n, I, dtype=torch.float64))
    ledger.mark("")
    return seen, refused(*mine[:2])


@functools.cache
def results():
    return launch.capture(run_each, backend="gloo", nproc=9, timeout=240)


def test_every_block_is_that_of_one_process():
    for q in (1, 2, 3):
        for rank in range(q * q):
            assert max(results()[rank][0][q]) < 1e-12, (q, rank)
            assert len(results()[rank][0][q]) == 3
        assert all(q not in seen for seen, _ in results()[q * q :])


def elements_2d(n, d_in, d_out, q):
    """Elements that all ranks together send for one layer: {"forward": ..., "backward": ...}."""
    forward = (q - 1) * (n * d_in + d_in * d_out)  # every block of X and of W goes to q-1 ranks
    return {"forward": forward, "backward": 2 * forward}


def elements_1d(n, hidden, p):
    """The same for a 1-D pair of layers, column and then row, `hidden` wide outside: an
    all-reduce each way."""
    return {"forward": 2 * (p - 1) * n * hidden, "backward": 2 * (p - 1) * n * hidden}


def test_bytes_are_the_formula():
    for q in (1, 2, 3):
        for way, elements in elements_2d(n, I, O, q).items():
            assert results().ledger.section(f"{q} {way}").sent("bytes") == 8 * elements
    assert elements_2d(n, I, O, 3) == {"forward": 360, "backward": 720}
    one_d = elements_1d(n, I, 9)
    assert results().ledger.section("1-D").sent("elements") == one_d["forward"] + one_d["backward"]


def test_where_two_dimensions_send_less_than_one():
    def mlp(n, h, q):
        two_d = [sum(elements_2d(n, *shape, q).values()) for shape in ((h, 4 * h), (4 * h, h))]
        return sum(two_d), sum(elements_1d(n, h, q * q).values())

    two, one = mlp(10_000, 10, 2)
    assert two > one  # however long the batch
    assert mlp(240, 10, 3)[0] == mlp(240, 10, 3)[1]  # n = 24h
    assert mlp(241, 10, 3)[0] < mlp(241, 10, 3)[1] and mlp(239, 10, 3)[0] > mlp(239, 10, 3)[1]


def test_what_does_not_fit_is_refused_with_its_numbers():
    for _, said in results():
        assert said[0].startswith("x (2, 3) times weight (4, 2): x is (n/3, I/3)")
        assert said[1] == "a row of 3 ranks and a column of 9: the grid must be square, q x q"
        assert said[2].startswith("x (2, 2, 3) times weight (3, 2)") and len(said) == 3
