"""Answers to Lab 4's PrefetchingFSDP: wrong ones, each with the hint that it must get, and right
ones.

Those that differ from lib's by an edit are in mistakes_PrefetchingFSDP.py.
"""

from as_an_answer import as_an_answer

from lib import zero
from lib.zero import prefetch


class AsInTheNotebook(zero.PrefetchingFSDP):
    def prefetch(self, index: int) -> None:
        if (
            0 <= index < len(self.units)
            and index not in self.gathers
            and not self.units[index].is_unsharded
        ):
            self.gathers[index] = zero.start_unshard(self.units[index])

    def wait_for_unshard(self, index: int) -> None:
        self.prefetch(index)
        for work in self.gathers.pop(index, []):
            work.wait()
        self.units[index].attach()

    def before_forward(self, index: int) -> None:
        self.wait_for_unshard(index)
        self.prefetch(index + 1)

    def before_backward(self, index: int) -> None:
        self.wait_for_unshard(index)
        self.prefetch(index - 1)


# wrong


class OnlyTheHooks(zero.PrefetchingFSDP):
    before_forward = AsInTheNotebook.before_forward


class AsksLibs(AsInTheNotebook):
    def prefetch(self, index: int) -> None:
        super(AsInTheNotebook, self).prefetch(index)


class OnceABackward(AsInTheNotebook):
    """Fetches a unit in forward once, until its backward has ended: a second forward before
    it finds none."""

    def before_forward(self, index: int) -> None:
        seen = self.__dict__.setdefault("seen", set())
        if index not in seen:
            super().before_forward(index)
        seen.add(index)

    def after_backward(self, index: int) -> None:
        super().after_backward(index)
        self.seen.discard(index)


class NotWritten(zero.PrefetchingFSDP):
    def prefetch(self, index: int) -> None:
        raise NotImplementedError

    wait_for_unshard = before_forward = before_backward = prefetch


# right


class NextFirst(AsInTheNotebook):
    """The next is fetched before this one is taken, which is on its way already; ends
    looked after elsewhere."""

    def before_forward(self, index: int) -> None:
        if index not in self.gathers:
            self.begin(index)
        if index + 1 < len(self.units):
            self.begin(index + 1)
        self.wait_for_unshard(index)

    def begin(self, index: int) -> None:
        unit = self.units[index]
        if not (unit.is_unsharded or index in self.gathers):
            self.gathers[index] = zero.start_unshard(unit)

    def prefetch(self, index: int) -> None:
        if index in range(len(self.units)):
            self.begin(index)

    def wait_for_unshard(self, index: int) -> None:
        unit = self.units[index]
        if unit.is_unsharded:
            return
        if index not in self.gathers:
            self.begin(index)
        works = self.gathers[index]
        del self.gathers[index]
        for work in reversed(works):
            work.wait()
        unit.attach()


WRONG = {
    OnlyTheHooks: "called what it builds",
    AsksLibs: "called what it builds",
    OnceABackward: "not waited for",
    NotWritten: "not written",
}

RIGHT = [AsInTheNotebook, NextFirst, as_an_answer(prefetch.PrefetchingFSDP)]
