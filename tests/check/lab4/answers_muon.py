"""Answers to Lab 4's muon, part by part: wrong ones, each with the hint that it must get, and right
ones.

Those that differ from lib's by an edit are in mistakes_muon.py; those here are written
otherwise.
"""

import heapq
import random

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import zero
from lib.zero import muon


def by_a_heap(costs, N):
    """Right."""
    heap, owner = [(0, rank) for rank in range(N)], [0] * len(costs)
    for cost, i in sorted(((c, i) for i, c in enumerate(costs)), reverse=True):
        load, owner[i] = heapq.heappop(heap)
        heapq.heappush(heap, (load + cost, owner[i]))
    return owner


def with_exchanges(costs, N):
    """Right: any placement, then a matrix moves or two change places, as long as
    the loads come nearer."""
    owner = [i % N for i in range(len(costs))]
    load = [sum(c for c, o in zip(costs, owner, strict=True) if o == rank) for rank in range(N)]
    better = True
    while better:
        better = False
        for i, c in enumerate(costs):
            to = load.index(min(load))
            if owner[i] != to and load[to] + c < load[owner[i]]:
                load[owner[i]] -= c
                load[to] += c
                owner[i], better = to, True
        for i, c in enumerate(costs):
            for j, d in enumerate(costs):
                a, b = owner[i], owner[j]
                if (
                    a != b
                    and c > d
                    and max(load[a] - c + d, load[b] - d + c) < max(load[a], load[b])
                ):
                    load[a] += d - c
                    load[b] += c - d
                    owner[i], owner[j], better = b, a, True
    return tuple(owner)


def contiguous(costs, N):
    share, owner, done = sum(costs) / N, [], 0
    for cost in costs:
        owner.append(min(N - 1, int(done / share)))
        done += cost
    return owner


def a_quarter_idle(costs, N):
    """The last rank is kept free."""
    return by_a_heap(costs, max(1, N - 1))


def first_of_equals(costs, N):
    """list.index finds the first matrix of that cost."""
    load, owner = [0] * N, [0] * len(costs)
    for cost in sorted(costs, reverse=True):
        rank = load.index(min(load))
        owner[costs.index(cost)] = rank
        load[rank] += cost
    return owner


def from_the_last_on(costs, N):
    """To who has least, but not by size."""
    load, owner = [0] * N, [0] * len(costs)
    for i in reversed(range(len(costs))):
        owner[i] = load.index(min(load))
        load[owner[i]] += costs[i]
    return owner


def in_turn_from_the_last_rank(costs, N):
    return [N - 1 - i % N for i in range(len(costs))]


def ties_by_lot(costs, N):
    load, owner = [0] * N, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        least = [rank for rank in range(N) if load[rank] == min(load)]
        owner[i] = random.Random().choice(least)
        load[owner[i]] += costs[i]
    return owner


def from_where_it_was(costs, N, load=[]):  # noqa: B006
    """The loads of one call are where the next begins."""
    load += [0] * N
    owner = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owner[i] = min(range(N), key=lambda rank: load[rank])
        load[owner[i]] += costs[i]
    return owner


def calls_lib(costs, N):
    return muon.owners(costs, N)


def returns_nothing(costs, N):
    by_a_heap(costs, N)


def an_iterator(costs, N):
    return iter(by_a_heap(costs, N))


def lists_of_each_rank(costs, N):
    return [[i for i, o in enumerate(by_a_heap(costs, N)) if o == rank] for rank in range(N)]


def sorts_in_place(costs, N):
    owner = by_a_heap(costs, N)
    costs.sort()
    return owner


def leaves_one_out(costs, N):
    return by_a_heap(costs, N)[1:]


def a_rank_more_than_there_is(costs, N):
    return [rank + 2 for rank in by_a_heap(costs, N)]


def needs_a_largest(costs, N):
    costs[costs.index(max(costs))]
    return by_a_heap(costs, N)


class AsInTheNotebook(zero.Muon):
    """Right: the mean instead of the sum, and every part in a loop of its own."""

    @torch.no_grad()
    def step(self):
        rank, N, here = dist.get_rank(self.group), dist.get_world_size(self.group), {}
        for i, matrix in enumerate(self.matrices):
            here[i] = torch.zeros_like(matrix) if matrix.grad is None else matrix.grad / N
            matrix.grad = None
        for i, gradient in here.items():
            self.reduce(gradient, self.owner[i], self.group)
        for i, matrix in enumerate(self.matrices):
            if self.owner[i] == rank:
                self.update(matrix, here[i])
        self.bring_back()

    def bring_back(self):
        for matrix, owner in zip(self.matrices, self.owner, strict=True):
            self.broadcast(matrix.detach(), owner, self.group)


class OwnerByOwner(zero.Muon):
    """Right: in another order, the last owner's first."""

    def step(self):
        rank, sums = dist.get_rank(self.group), {}
        order = sorted(range(len(self.matrices)), key=lambda i: (-self.owner[i], i))
        with torch.no_grad():
            for i in order:
                p = self.matrices[i]
                sums[i] = self.reduce(
                    torch.zeros_like(p) + (0 if p.grad is None else p.grad),
                    self.owner[i],
                    self.group,
                )
                p.grad = None
            for i in order:
                if self.owner[i] == rank:
                    self.update(self.matrices[i], sums[i])
            for i in reversed(order):
                self.matrices[i].copy_(
                    self.broadcast(self.matrices[i].detach().clone(), self.owner[i], self.group)
                )


class Inherits(zero.Muon):
    pass


class Leaves(zero.Muon):
    """RuntimeError: a leaf that requires grad is used in an in-place operation."""

    def step(self):
        for matrix in self.matrices:
            matrix += 1


class OwnReduce(AsInTheNotebook):
    def step(self):
        from lib import collectives

        self.reduce = collectives.reduce
        super().step()


class ByDist(AsInTheNotebook):
    def bring_back(self):
        for matrix, owner in zip(self.matrices, self.owner, strict=True):
            src = owner if self.group is None else dist.get_global_rank(self.group, owner)
            dist.broadcast(matrix.detach(), src, group=self.group)


class OwnersOnly(AsInTheNotebook):
    """Only the owner calls."""

    def bring_back(self):
        for matrix, owner in zip(self.matrices, self.owner, strict=True):
            if owner == dist.get_rank(self.group):
                self.broadcast(matrix.detach(), owner, self.group)


class BackTwice(AsInTheNotebook):
    def bring_back(self):
        super().bring_back()
        super().bring_back()


class BackFirst(AsInTheNotebook):
    """What is sent is changed afterwards."""

    @torch.no_grad()
    def step(self):
        rank = dist.get_rank(self.group)
        sums = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.matrices]
        for p, gradient, owner in zip(self.matrices, sums, self.owner, strict=True):
            p.grad = None
            self.reduce(gradient, owner, self.group)
            if owner == rank:
                p.data.mul_(1 - 1e-3)
        self.bring_back()
        for p, gradient, owner in zip(self.matrices, sums, self.owner, strict=True):
            if owner == rank:
                p.data.div_(1 - 1e-3)
                self.update(p, gradient)


class OnlyWhatItUsed(zero.Muon):
    """An owner without a gradient of its own leaves its matrix as it is."""

    @torch.no_grad()
    def step(self):
        rank, mine = dist.get_rank(self.group), []
        for p, owner in zip(self.matrices, self.owner, strict=True):
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            self.reduce(gradient, owner, self.group)
            if owner == rank and p.grad is not None:
                mine.append((p, gradient))
            p.grad = None
        for p, gradient in mine:
            self.update(p, gradient)
        for p, owner in zip(self.matrices, self.owner, strict=True):
            self.broadcast(p, owner, self.group)


class SumsOfAllSteps(zero.Muon):
    """Right in the first step."""

    @torch.no_grad()
    def step(self):
        rank = dist.get_rank(self.group)
        self.sums = getattr(self, "sums", None) or [torch.zeros_like(p) for p in self.matrices]
        for p, total, owner in zip(self.matrices, self.sums, self.owner, strict=True):
            total += 0 if p.grad is None else p.grad
            p.grad = None
            self.reduce(total, owner, self.group)
        for p, total, owner in zip(self.matrices, self.sums, self.owner, strict=True):
            if owner == rank:
                self.update(p, total)
        for p, owner in zip(self.matrices, self.owner, strict=True):
            self.broadcast(p, owner, self.group)


DRAWS_LOTS = (ties_by_lot,)
RIGHT = {
    "owners": [by_a_heap, with_exchanges, as_an_answer(muon.owners)],
    "Muon": [AsInTheNotebook, OwnerByOwner],
}
WRONG = {
    "owners": {
        contiguous: "runs of neighbours",
        a_quarter_idle: "a rank is idle",
        first_of_equals: "equal costs are one matrix",
        from_the_last_on: "not balanced",
        in_turn_from_the_last_rank: "by number, not by cost",
        calls_lib: "called what it builds",
        returns_nothing: "not a list of ranks",
        an_iterator: "not a list of ranks",
        lists_of_each_rank: "not a list of ranks",
        sorts_in_place: "arguments changed",
        ties_by_lot: "another list on each rank",
        from_where_it_was: "another list on each rank",
        leaves_one_out: "not one for each",
        a_rank_more_than_there_is: "no such rank",
        needs_a_largest: "nothing there",
    },
    "Muon": {
        Inherits: "called what it builds",
        Leaves: "a leaf changed in place",
        OwnReduce: "not what it was given",
        ByDist: "not what it was given",
        OwnersOnly: "not every rank",
        BackTwice: "not once each",
        BackFirst: "broadcast too early",
        OnlyWhatItUsed: "the owner does nothing",
        SumsOfAllSteps: "left over from the step before",
    },
}
