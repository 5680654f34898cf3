"""Answers to Lab 4's PrefetchingFSDP: wrong ones, each with the hint that it must get, and right ones.

The wrong ones differ from `AsInTheNotebook`, a right one, in one method.
"""

from as_an_answer import as_an_answer

from lib import zero
from lib.zero import prefetch


class AsInTheNotebook(zero.PrefetchingFSDP):
    def fetch(self, place):
        if 0 <= place < len(self.units) and place not in self.coming and not self.units[place].is_unsharded:
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
    def before_forward(self, place):
        self.take(place)
        self.fetch(place + 1)


class AsksLibs(AsInTheNotebook):
    def fetch(self, place):
        super(AsInTheNotebook, self).fetch(place)


class NoUpperEnd(AsInTheNotebook):
    def fetch(self, place):
        if place >= 0 and place not in self.coming and not self.units[place].is_unsharded:
            self.coming[place] = zero.start_unshard(self.units[place])


class NoLowerEnd(AsInTheNotebook):
    def fetch(self, place):
        if place < len(self.units) and place not in self.coming and not self.units[place].is_unsharded:
            self.coming[place] = zero.start_unshard(self.units[place])


class FetchesNothing(AsInTheNotebook):
    def fetch(self, place):
        pass


class WaitsAtOnce(AsInTheNotebook):
    def fetch(self, place):
        super().fetch(place)
        for work in self.coming.get(place, []):
            work.wait()


class OnThisThread(AsInTheNotebook):
    def fetch(self, place):
        if 0 <= place < len(self.units) and not self.units[place].is_unsharded:
            self.units[place].unshard()


class ThoughComing(AsInTheNotebook):
    def fetch(self, place):
        if 0 <= place < len(self.units) and not self.units[place].is_unsharded:
            self.coming[place] = zero.start_unshard(self.units[place])


class ThoughWhole(AsInTheNotebook):
    def fetch(self, place):
        if 0 <= place < len(self.units) and place not in self.coming:
            self.coming[place] = zero.start_unshard(self.units[place])


class NeverWaits(AsInTheNotebook):
    def take(self, place):
        self.fetch(place)
        self.coming.pop(place, None)
        self.units[place].attach()


class WaitsForTheFirst(AsInTheNotebook):
    def take(self, place):
        self.fetch(place)
        for work in self.coming.pop(place, [])[:1]:
            work.wait()
        self.units[place].attach()


class NeverAttaches(AsInTheNotebook):
    def take(self, place):
        self.fetch(place)
        for work in self.coming.pop(place, []):
            work.wait()


class OnlyWhatWasComing(AsInTheNotebook):
    def take(self, place):
        for work in self.coming.pop(place):
            work.wait()
        self.units[place].attach()


class OnlyIfComing(AsInTheNotebook):
    def take(self, place):
        if place in self.coming:
            for work in self.coming.pop(place):
                work.wait()
            self.units[place].attach()


class ComingStays(AsInTheNotebook):
    def take(self, place):
        self.fetch(place)
        for work in self.coming.get(place, []):
            work.wait()
        self.units[place].attach()


class NotTakenInBackward(AsInTheNotebook):
    def before_backward(self, place):
        self.fetch(place - 1)


class UpInBackward(AsInTheNotebook):
    def before_backward(self, place):
        self.take(place)
        self.fetch(place + 1)


class NoneAhead(AsInTheNotebook):
    def before_forward(self, place):
        self.take(place)


class NoneAheadInBackward(AsInTheNotebook):
    def before_backward(self, place):
        self.take(place)


class AllAtOnce(AsInTheNotebook):
    def before_forward(self, place):
        self.take(place)
        for other in range(len(self.units)):
            if other > place:
                self.fetch(other)


class TwoAhead(AsInTheNotebook):
    def before_backward(self, place):
        self.take(place)
        self.fetch(place - 1)
        self.fetch(place - 2)


class TakesTheNextToo(AsInTheNotebook):
    """Whole before it is needed: nothing runs beside the compute."""

    def before_forward(self, place):
        self.take(place)
        if place + 1 < len(self.units):
            self.take(place + 1)


class AndAnotherTime(AsInTheNotebook):
    """Gathers by itself what is there already."""

    def before_forward(self, place):
        self.take(place)
        self.units[place].unshard()
        self.fetch(place + 1)


class ByLibsGather(AsInTheNotebook):
    """Beside what it was given."""

    def fetch(self, place):
        from lib import collectives

        if 0 <= place < len(self.units) and place not in self.coming and not self.units[place].is_unsharded:
            flat = self.units[place].flats[0]
            works = zero.start_unshard(self.units[place])
            again = collectives.start(collectives.all_gather, flat.shard.detach().clone(), flat.group)
            self.coming[place] = [*works, again]


class NotWritten(zero.PrefetchingFSDP):
    def fetch(self, place):
        raise NotImplementedError

    take = before_forward = before_backward = fetch


# right


class NextFirst(AsInTheNotebook):
    """The next is fetched before this one is taken, which is on its way already; ends looked after elsewhere."""

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
    NoUpperEnd: "no end",
    NoLowerEnd: "no end",
    FetchesNothing: "nothing is fetched",
    WaitsAtOnce: "not in the background",
    OnThisThread: "not in the background",
    TakesTheNextToo: "not in the background",
    ThoughComing: "fetched again",
    ThoughWhole: "fetched again",
    NeverWaits: "does not wait",
    WaitsForTheFirst: "does not wait",
    NeverAttaches: "not attached",
    OnlyWhatWasComing: "only what was coming",
    OnlyIfComing: "only what was coming",
    ComingStays: "coming is not emptied",
    NotTakenInBackward: "not taken",
    UpInBackward: "backward goes down",
    NoneAheadInBackward: "backward goes down",
    NoneAhead: "nothing is fetched ahead",
    AllAtOnce: "too many whole",
    TwoAhead: "too many whole",
    AndAnotherTime: "gathered too often",
    ByLibsGather: "not what it was given",
    NotWritten: "not written",
}

RIGHT = [AsInTheNotebook, NextFirst, as_an_answer(prefetch.PrefetchingFSDP)]
