"""Muon over ranks: each matrix is owned by one rank, which alone keeps its momentum and
orthogonalises it (Jordan et al. 2024).

    rank 0  gradient of W --+               M <- mu M + (1 - mu) G       momentum: the owner's alone
    rank 1  gradient of W --+- reduce --->  O <- NS((1 - mu) G + mu M)   Newton-Schulz, on all of W
    rank 2  gradient of W --+    G, owner   W <- (1 - lr wd) W - lr s O  --- broadcast --> all ranks
                                            s = sqrt(max(1, m/n)) for W (m, n)

    all matrices  [ reduce, reduce, ... ][ owners, all at once ][ broadcast, broadcast, ... ]

A step of Muon changes every direction of a matrix by about the same amount: of M = U S V^T it takes
U V^T and drops S. Newton-Schulz approximates this with matmuls only, a quintic in each singular
value:

    X <- a X + b (X X^T) X + c (X X^T)^2 X          sigma <- a sigma + b sigma^3 + c sigma^5

The shards of ZeRO do not respect the boundaries of matrices, so matrices are not sharded here: each
is assigned to one rank. Muon is meant for the matrices of hidden layers, so embedding, head, norms
and biases are trained by AdamW with ZeRO-1. Gradients may be summed or averaged, because
Newton-Schulz first divides by the norm.

With N ranks and psi elements in all matrices, all ranks together send 2 (N-1) psi elements a step,
as in ZeRO-1. A rank stores one momentum value for each parameter that it owns, about psi/N in all,
where AdamW stores two.

Sources: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks", with its
coefficients, which torch.optim.Muon has too; owners by Graham 1969, "Bounds on multiprocessing
timing anomalies".
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPS = 1e-7  # Newton-Schulz divides by this if the norm is smaller, so that zeros stay zeros


def newton_schulz(G: Tensor, steps: int = STEPS) -> Tensor:
    """Approximately the orthogonal matrix closest to G (m, n): for G = U S V^T it returns U S' V^T,
    where most values of S' are between 0.7 and 1.2.

    It is computed in G's dtype. Very small singular values stay small, because each of the `steps`
    iterations multiplies them by at most about 3.4.
    """
    a, b, c = COEFFICIENTS
    X = G.T if G.shape[0] > G.shape[1] else G  # (m, n) with m <= n: X X^T is the smaller square
    X = X / X.norm().clamp(min=EPS)  # then no singular value is above 1
    for _ in range(steps):
        A = X @ X.T  # (m, m)
        B = torch.addmm(A, A, A, beta=b, alpha=c)  # b A + c A A
        X = torch.addmm(X, B, X, beta=a)  # a X + B X
    return X.T if G.shape[0] > G.shape[1] else X


def cost(shape):
    """Multiplications of `newton_schulz` for a matrix of this shape: three matmuls in each
    iteration."""
    m, n = sorted(shape)
    return STEPS * (2 * m * m * n + m**3)


# exercise: lab4.owners
def owners(costs: Sequence[float], N: int) -> list[int]:
    """[the rank that owns matrix 0, 1, ...], chosen so that the cost of the busiest of N ranks is
    close to the least possible.

    Matrices are assigned in order of decreasing cost, each to the rank that has the least so far.
    This is a pure function, with the same result on all ranks. The cost of the busiest rank is at
    most (4 - 1/N)/3 times the least possible one (Graham 1969). For GPTs, whose matrices have
    few sizes, it was within 5 % of that in our tests on up to 16 ranks.
    """
    load, owner = [0.0] * N, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owner[i] = load.index(min(load))
        load[owner[i]] += costs[i]
    return owner


@torch.no_grad()
def update(parameter, gradient, momentum_buffer, lr, momentum, weight_decay=0.0, dtype=None):
    """One step of one matrix (m, n): changes `parameter` and its `momentum_buffer` in place.
    gradient: the sum or the mean.

    dtype: the one in which Newton-Schulz computes, such as bfloat16; None: the gradient's.
    lr is multiplied by s = sqrt(max(1, m/n)), so that a layer's output changes by a similar amount
    for all shapes.
    """
    m, n = parameter.shape
    momentum_buffer.lerp_(gradient, 1 - momentum)
    ahead = gradient.lerp(momentum_buffer, momentum)  # Nesterov's look ahead
    parameter.mul_(1 - lr * weight_decay)
    orthogonal = newton_schulz(ahead.to(dtype or ahead.dtype)).to(parameter.dtype)
    parameter.add_(orthogonal, alpha=-lr * max(1, m / n) ** 0.5)


# exercise: lab4.Muon
class Muon:
    """Muon for matrices that every rank has in full; each is updated by the rank that owns it.

        muon = Muon([p for p in model.blocks.parameters() if p.dim() == 2], lr=0.02)
        loss.backward()
        muon.step()

    matrices: equal on all ranks, in the same order. owner: the rank of the group that owns each; by
    default `owners` decides. reduce(tensor, dst, group) leaves the sum on rank dst,
    broadcast(tensor, src, group) copies; both in place. momenta: {matrix: its momentum} of the
    matrices that this rank owns, after their first update. Raises ValueError for a parameter that
    is not a matrix, and unless `owner` has one rank of the group for each matrix.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        owner: Sequence[int] | None = None,
        group: Group = None,
        reduce: Collective = collectives.reduce,
        broadcast: Collective = collectives.broadcast,
        dtype: torch.dtype | None = None,
    ) -> None:
        N, self.matrices = dist.get_world_size(group), list(matrices)
        odd = next((tuple(p.shape) for p in self.matrices if p.dim() != 2), None)
        if odd is not None:
            raise ValueError(
                f"a {odd} parameter is no matrix: give Muon those with two dimensions, "
                f"AdamW the others"
            )
        self.owner = (
            owners([cost(p.shape) for p in self.matrices], N) if owner is None else list(owner)
        )
        if len(self.owner) != len(self.matrices) or not set(self.owner) <= set(range(N)):
            raise ValueError(
                f"owner is {self.owner} for {len(self.matrices)} matrices: give one rank, 0 to "
                f"{N - 1}, for each"
            )
        self.lr, self.momentum, self.weight_decay, self.dtype = lr, momentum, weight_decay, dtype
        self.group, self.reduce, self.broadcast, self.momenta = group, reduce, broadcast, {}

    def update(self, matrix: nn.Parameter, gradient: Tensor) -> None:
        """Update `matrix` and its momentum, which starts at zero, by one step."""
        buffer = self.momenta.setdefault(matrix, torch.zeros_like(gradient))
        update(matrix, gradient, buffer, self.lr, self.momentum, self.weight_decay, self.dtype)

    @torch.no_grad()
    def step(self) -> None:
        """Call it after backward. Update every matrix on its owner, then broadcast it to all ranks.
        Every `.grad` becomes None.

        A matrix that this rank did not use (.grad is None) has a gradient of zeros.
        Sends: a reduce and a broadcast of each (m, n) matrix, 2 (N-1) mn elements over all ranks.
        All reduces come first, so that the owners work at the same time.
        """
        rank, mine = dist.get_rank(self.group), []
        for matrix, owner in zip(self.matrices, self.owner, strict=True):
            gradient = torch.zeros_like(matrix) if matrix.grad is None else matrix.grad
            matrix.grad = None
            self.reduce(gradient, owner, self.group)
            if owner == rank:
                mine.append((matrix, gradient))
        for matrix, gradient in mine:
            self.update(matrix, gradient)
        for matrix, owner in zip(self.matrices, self.owner, strict=True):
            self.broadcast(matrix, owner, self.group)
