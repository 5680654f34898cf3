"""Answers to Lab 4's PrefetchingFSDP: wrong ones, each with the hint that it must get, and right
ones.

Those that differ from lib's by an edit are in lib/check/lab4/prefetching_fsdp_wrong.py.
"""

from as_an_answer import as_an_answer

from lib import zero
from lib.zero import prefetch


class AsInTheNotebook(zero.PrefetchingFSDP):
    def fetch(self, place):
        if (
            0 <= place < len(self.units)
            and place not in self.coming
            and not self.units[place].is_unsharded
        ):
            self.coming[place] = zero.start_unshard(self.units[place])

    def take(self, place):
        self.fetch(place)
        for work in self.coming.pop(place, []):
            work.wait()
        self.units[place].attach()

    def before_forward(self, place):
        self.take(place)
        self.fetch(place + 1)

    def before_backward(self, place):
        self.take(place)
        self.fetch(place - 1)


# wrong


class OnlyTheHooks(zero.PrefetchingFSDP):
    before_forward = AsInTheNotebook.before_forward


class AsksLibs(AsInTheNotebook):
    def fetch(self, place):
        super(AsInTheNotebook, self).fetch(place)


class OnceABackward(AsInTheNotebook):
    """Fetches a unit in forward once, until its backward has ended: a second forward before
    it finds none."""

    def before_forward(self, place):
        seen = self.__dict__.setdefault("seen", set())
        if place not in seen:
            super().before_forward(place)
        seen.add(place)

    def after_backward(self, place):
        super().after_backward(place)
        self.seen.discard(place)


class NotWritten(zero.PrefetchingFSDP):
    def fetch(self, place):
        raise NotImplementedError

    take = before_forward = before_backward = fetch


# right


class NextFirst(AsInTheNotebook):
    """The next is fetched before this one is taken, which is on its way already; ends
    looked after elsewhere."""

    def before_forward(self, place):
        if place not in self.coming:
            self.begin(place)
        if place + 1 < len(self.units):
            self.begin(place + 1)
        self.take(place)

    def begin(self, place):
        unit = self.units[place]
        if not (unit.is_unsharded or place in self.coming):
            self.coming[place] = zero.start_unshard(unit)

    def fetch(self, place):
        if place in range(len(self.units)):
            self.begin(place)

    def take(self, place):
        unit = self.units[place]
        if unit.is_unsharded:
            return
        if place not in self.coming:
            self.begin(place)
        works = self.coming[place]
        del self.coming[place]
        for work in reversed(works):
            work.wait()
        unit.attach()


WRONG = {
    OnlyTheHooks: "called lib's",
    AsksLibs: "called lib's",
    OnceABackward: "not taken",
    NotWritten: "not written",
}

RIGHT = [AsInTheNotebook, NextFirst, as_an_answer(prefetch.PrefetchingFSDP)]
