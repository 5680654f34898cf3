"""Answers to Lab 2's WeightStash, beside its MISTAKES: wrong ones, each with its
hint, and right ones."""

from collections import deque

from as_an_answer import as_an_answer

from lib.pipeline import stash


def copied(weights):
    return {name: w.clone() for name, w in weights.items()}


class Plain:
    def __init__(self, weights):
        self.newest, self.in_flight = weights, {}

    def for_forward(self, j):
        self.in_flight[j] = self.newest
        return self.newest

    def for_backward(self, j):
        return self.in_flight.pop(j)

    def needed(self):
        return any(weights is self.newest for weights in self.in_flight.values())

    def update(self, change):
        if self.needed():
            self.newest = copied(self.newest)
        change(self.newest)


# wrong


class InheritsLibs(stash.WeightStash):
    pass


class AsksLibs(Plain):
    def __init__(self, weights):
        self.libs = stash.WeightStash(weights)
        self.for_forward, self.for_backward, self.update = (
            self.libs.for_forward, self.libs.for_backward, self.libs.update,
        )  # fmt: skip


class OneForAllStages(Plain):
    """What is in flight is kept in the class: right as long as a process has one stage."""

    in_flight = {}  # noqa: RUF012

    def __init__(self, weights):
        self.newest = weights


class ADefaultArgument(Plain):
    def __init__(self, weights, in_flight={}):  # noqa: B006
        self.newest, self.in_flight = weights, in_flight


class BackwardWithoutNames(Plain):
    def for_backward(self, j):
        return tuple(super().for_backward(j).values())


class HidesItInTheClass(Plain):
    read = []  # noqa: RUF012

    def for_backward(self, j):
        self.read.append(self.in_flight[j])
        return self.in_flight.pop(j)


class ListOfAllVersions(Plain):
    """Every version there has been, and its number for each mini-batch."""

    def __init__(self, weights):
        self.versions, self.number = [weights], {}

    def for_forward(self, j):
        self.number[j] = len(self.versions) - 1
        return self.versions[-1]

    def for_backward(self, j):
        return self.versions[self.number.pop(j)]

    def update(self, change):
        self.versions.append(copied(self.versions[-1]))
        change(self.versions[-1])


class TheOldOnesMove:
    """The newest stay where they are in memory, and mini-batches that read them get a copy: the
    tensors that their forward read have changed."""

    def __init__(self, weights):
        self.newest, self.read = weights, {}

    def for_forward(self, j):
        self.read[j] = self.newest
        return self.newest

    def for_backward(self, j):
        weights = self.read[j]
        del self.read[j]
        return weights

    def update(self, change):
        readers = [j for j, weights in self.read.items() if weights is self.newest]
        if readers:
            self.read.update(dict.fromkeys(readers, copied(self.newest)))
        change(self.newest)


class NotWritten:
    def __init__(self, weights):
        raise NotImplementedError


# right


class FirstInFirstOut:
    """1F1B takes mini-batches back in the order in which they went off: a queue needs no j."""

    def __init__(self, weights):
        self.versions = deque()
        self.newest = weights

    def for_forward(self, j):
        self.versions.append(self.newest)
        return self.newest

    def for_backward(self, j):
        return self.versions.popleft()

    def update(self, change):
        if self.versions and self.versions[-1] is self.newest:
            self.newest = copied(self.newest)
        change(self.newest)


class CopiesWhileAnyIsOut(FirstInFirstOut):
    def update(self, change):
        if self.versions:
            self.newest = copied(self.newest)
        change(self.newest)


class ByNumber:
    """Versions by number, with how many mini-batches still need each."""

    def __init__(self, weights):
        self.k, self.versions, self.readers, self.number = 0, {0: weights}, {0: 0}, {}

    def for_forward(self, j):
        self.number[j] = self.k
        self.readers[self.k] += 1
        return self.versions[self.k]

    def for_backward(self, j):
        k = self.number.pop(j)
        self.readers[k] -= 1
        return self.versions[k] if self.readers[k] or k == self.k else self.versions.pop(k)

    def update(self, change):
        weights = self.versions[self.k]
        if self.readers[self.k] == 0:
            del self.versions[self.k]
        else:
            weights = copied(weights)
        self.k += 1
        self.versions[self.k], self.readers[self.k] = weights, 0
        change(weights)


WRONG = {
    InheritsLibs: "called what it builds",
    AsksLibs: "called what it builds",
    OneForAllStages: "kept on the class",
    ADefaultArgument: "kept on the class",
    BackwardWithoutNames: "not weights",
    HidesItInTheClass: "never forgets",
    ListOfAllVersions: "never forgets",
    CopiesWhileAnyIsOut: "copies what no one reads",
    TheOldOnesMove: "changed in flight",
    NotWritten: "not written",
}

RIGHT = [Plain, as_an_answer(stash.WeightStash), FirstInFirstOut, ByNumber]
