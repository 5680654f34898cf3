"""Answers to Lab 2's WeightStash: wrong ones, each with the hint that it must get, and right ones.

The wrong ones differ from `Plain`, a right one, in one method.
"""

from collections import deque

from as_an_answer import as_an_answer

from lib.pipeline import stash


def copied(weights):
    return {name: w.clone() for name, w in weights.items()}


class Plain:
    def __init__(self, weights):
        self.newest, self.under_way = weights, {}

    def for_forward(self, j):
        self.under_way[j] = self.newest
        return self.newest

    def for_backward(self, j):
        return self.under_way.pop(j)

    def needed(self):
        return any(weights is self.newest for weights in self.under_way.values())

    def update(self, change):
        if self.needed():
            self.newest = copied(self.newest)
        change(self.newest)


# wrong


class InheritsLibs(stash.WeightStash):
    pass


class ReturnsNothing(Plain):
    def for_forward(self, j):
        self.under_way[j] = self.newest


class BackwardReturnsNothing(Plain):
    def for_backward(self, j):
        del self.under_way[j]


class ReturnsAList(Plain):
    def for_forward(self, j):
        return list(super().for_forward(j).values())


class ChangesTheDictionary(Plain):
    def update(self, change):
        if self.needed():
            self.newest = copied(self.newest)
        change(self.under_way)


class ForgetsAtEachUpdate(Plain):
    def update(self, change):
        super().update(change)
        self.under_way.clear()


class KeepsTheLastTwo(Plain):
    """Enough for two ranks."""

    def for_forward(self, j):
        self.under_way.pop(j - 2, None)
        return super().for_forward(j)


class NeverChanges(Plain):
    def update(self, change):
        if self.needed():
            self.newest = copied(self.newest)


class ChangesEveryVersion(Plain):
    def update(self, change):
        if self.needed():
            self.newest = copied(self.newest)
        change(self.newest)
        for weights in self.under_way.values():
            change(weights)


class LosesTheCopy(Plain):
    def update(self, change):
        change(copied(self.newest) if self.needed() else self.newest)


class ChangesTheOldOne(Plain):
    """The copy is to be the old version; but who is under way has the old one."""

    def update(self, change):
        old = self.newest
        if self.needed():
            self.newest = copied(self.newest)
        change(old)


class ChangesWhatBackwardRead(Plain):
    """A step from the weights that the gradient is of."""

    def for_backward(self, j):
        self.read = self.under_way.pop(j)
        return self.read

    def update(self, change):
        self.newest = copied(self.read)
        change(self.newest)


class RoundsItsCopies(Plain):
    def update(self, change):
        if self.needed():
            self.newest = {name: w.float().double() for name, w in self.newest.items()}
        change(self.newest)


class NoStash(Plain):
    def needed(self):
        return False


class ASecondName(Plain):
    def update(self, change):
        if self.needed():
            self.newest = dict(self.newest)
        change(self.newest)


class Detached(Plain):
    def for_forward(self, j):
        self.under_way[j] = {name: w.detach() for name, w in self.newest.items()}
        return self.newest


class TheNewest(Plain):
    def for_backward(self, j):
        self.under_way.pop(j)
        return self.newest


class OneSlot(Plain):
    """What the latest forward has read."""

    def for_forward(self, j):
        self.slot = self.newest
        return super().for_forward(j)

    def for_backward(self, j):
        self.under_way.pop(j)
        return self.slot


class LastInFirstOut(Plain):
    def for_backward(self, j):
        return self.under_way.pop(max(self.under_way))


class AVersionBehind(Plain):
    """It remembers what was the newest before."""

    def __init__(self, weights):
        super().__init__(weights)
        self.before = weights

    def for_forward(self, j):
        self.under_way[j] = self.before
        return self.newest

    def update(self, change):
        self.before = self.newest
        self.newest = copied(self.newest)
        change(self.newest)


class TheNextOnes(Plain):
    """Mini-batch j gets what j+1 ran forward with, where there is one."""

    def for_backward(self, j):
        mine = self.under_way.pop(j)
        return self.under_way.get(j + 1, mine)


class InHalfThePrecision(Plain):
    """What nobody reads for a while takes less room."""

    def for_forward(self, j):
        self.under_way[j] = {name: w.float() for name, w in self.newest.items()}
        return self.newest

    def for_backward(self, j):
        return {name: w.double() for name, w in self.under_way.pop(j).items()}


class NeverForgets(Plain):
    def for_backward(self, j):
        return self.under_way[j]


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


class CopiesAtEachForward(Plain):
    def for_forward(self, j):
        self.under_way[j] = copied(self.newest)
        return self.under_way[j]

    def needed(self):
        return False


class CopiesAlways(Plain):
    def needed(self):
        return True


class NamesWhatItReadLast(Plain):
    """One old version lives longer than anybody needs it."""

    def for_backward(self, j):
        self.current = self.under_way.pop(j)
        return self.current


class NotWritten:
    def __init__(self, weights):
        raise NotImplementedError


WRONG = {
    InheritsLibs: "called what it builds",
    ReturnsNothing: "nothing returned",
    BackwardReturnsNothing: "nothing returned",
    ReturnsAList: "not weights",
    ChangesTheDictionary: "not weights",
    ForgetsAtEachUpdate: "forgotten too early",
    KeepsTheLastTwo: "forgotten too early",
    NeverChanges: "change is not called",
    ChangesEveryVersion: "changed twice",
    LosesTheCopy: "the update is lost",
    ChangesTheOldOne: "the update is lost",
    ChangesWhatBackwardRead: "an old version is changed",
    RoundsItsCopies: "other numbers",
    NoStash: "changed under way",
    ASecondName: "changed under way",
    Detached: "changed under way",
    TheNewest: "the newest in backward",
    OneSlot: "the newest in backward",
    LastInFirstOut: "the newest in backward",
    AVersionBehind: "a version behind",
    TheNextOnes: "the newest in backward",
    InHalfThePrecision: "other numbers than its forward's",
    NeverForgets: "never forgets",
    ListOfAllVersions: "never forgets",
    CopiesAtEachForward: "a copy for every mini-batch",
    CopiesAlways: "copies without need",
    NamesWhatItReadLast: "one name too many",
    NotWritten: "not written",
}


# right


class FirstInFirstOut:
    """1F1B takes mini-batches back in the order in which they went off: a queue needs no j. Copies while any is out."""

    def __init__(self, weights):
        self.versions = deque()
        self.newest = weights

    def for_forward(self, j):
        self.versions.append(self.newest)
        return self.newest

    def for_backward(self, j):
        return self.versions.popleft()

    def update(self, change):
        if self.versions:
            self.newest = copied(self.newest)
        change(self.newest)


class TheOldOnesMove:
    """The newest stay where they are in memory; who is under way with them goes on with a copy."""

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


RIGHT = [Plain, as_an_answer(stash.WeightStash), FirstInFirstOut, TheOldOnesMove, ByNumber]
