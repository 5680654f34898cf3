"""Which unit is whole when: the units that an FSDP is checked with note what is done to them.

    events     gather 0 | forward 0 | free 0 | gather 1 | forward 1 | free 1 | ...
    rules      a unit that computes is whole, and as new as its shards; beside it there are `most` - 1 others at most

A `WatchedUnit` does not free its memory: it fills it with NaN, so that whoever computes with a unit that is not there
gets numbers that cannot be right, and the process lives on. A `FreedUnit` frees it.
"""

import math
from collections import Counter

from lib import zero
from lib.check.framework import Problem

WHOLE = {True: "gathered", False: "views of what was gathered"}


class WatchedUnit(zero.Unit):
    """lib's Unit, which tells `watch`."""

    def __init__(self, *args):
        self.watch, self.has = None, False
        super().__init__(*args)

    @property
    def holds(self):
        """Has it memory for the whole?"""
        return self.has

    def allocate(self):
        super().allocate()
        self.has = True
        if self.watch:
            self.watch.allocated()

    def attach(self):
        super().attach()
        if self.watch:
            self.watch.attached(self)

    def unshard(self):
        self.allocate()
        if self.watch:
            self.watch.filled.add(self.watch.place(self))
        for flat in self.flats:
            zero.gather_parameters(flat, self.all_gather)
        self.attach()

    def reshard(self):
        self.forget()
        self.is_unsharded = self.has = False
        if self.watch:
            self.watch.freed(self)

    def forget(self):
        for flat in self.flats:
            flat.whole.fill_(math.nan)

    def reduce_gradients(self):
        if self.watch:
            self.watch.reduces[self.watch.place(self)] += 1
        super().reduce_gradients()


class FreedUnit(WatchedUnit):
    """Its memory goes, as that of lib's does."""

    def forget(self):
        zero.Unit.reshard(self)

    @property
    def holds(self):
        """Measured."""
        return any(flat.whole.untyped_storage().nbytes() for flat in self.flats)


class Watch:
    """What one rank's FSDP does with its units. `broken`: the first rule of each kind that was not kept."""

    def __init__(self, where, most):
        self.where, self.most = where, most  # most: units that may be whole at a time, beside the root
        self.fsdp, self.step, self.evaluates = None, 0, False
        self.gathers, self.reduces = Counter(), Counter()  # in a backward and its forward: {place: how often}
        self.elements = 0  # reduce-scattered meanwhile
        self.filled = set()  # places that have been gathered, or begun to be, since they were freed
        self.stale = set()  # places that are whole with weights of the step before
        self.broken = {}  # {"value" or "memory": Problem}

    def watches(self, fsdp, given):
        """From now on."""
        self.fsdp = fsdp
        given.flats = fsdp.flats
        given.noting = self.called
        self.units = {**dict(enumerate(fsdp.units)), "root": fsdp.root}
        self.of_shard = {flat.shard.data_ptr(): place for place, unit in self.units.items() for flat in unit.flats}
        for place, unit in self.units.items():
            unit.watch = self
            if place != "root":
                fsdp.module.layers[place].at = lambda way, place=place: self.computes(way, place)

    def place(self, unit):
        return next(place for place, other in self.units.items() if other is unit)

    def note(self, claim, kind, text, **facts):
        when = "in an evaluation" if self.evaluates else f"step {self.step + 1}"
        self.broken.setdefault(claim, Problem(kind, f"{self.where}, {when}: {text}", facts))

    def held(self):
        """The places of the units that have memory for the whole."""
        return [place for place, unit in enumerate(self.fsdp.units) if unit.holds]

    def allocated(self):
        held = self.held()
        if len(held) > self.most:
            text = f"units {', '.join(map(str, held))} have memory at a time, expected {self.most} at most"
            self.note("memory", "memory", f"{text}, and the root", held=held)

    def attached(self, unit):
        self.stale.discard(self.place(unit))

    def freed(self, unit):
        self.stale.discard(self.place(unit))
        self.filled.discard(self.place(unit))

    def computes(self, way, place):
        """A layer's forward or backward begins."""
        facts = {"way": way, "place": place, "gathers": self.gathers[place]}
        attached = self.fsdp.units[place].is_unsharded
        if not attached or place not in self.filled:
            text = f"the {way} of unit {place} began while its parameters were not {WHOLE[place not in self.filled]}"
            self.note("value", "not whole", text, **facts)
        elif place in self.stale:
            self.note("value", "stale", f"the {way} of unit {place} ran with the weights before the last step", **facts)
        others = [other for other in self.held() if other != place]
        if len(others) > self.most - 1:
            text = f"during the {way} of unit {place}, the units {', '.join(map(str, others))} had memory too"
            self.note("memory", "memory", text, held=self.held(), **facts)

    def backward_is_over(self):
        self._sent()
        self.nothing_is_left()

    def optimizer_stepped(self):
        self.stale = {place for place, unit in enumerate(self.fsdp.units) if unit.is_unsharded}
        self.step += 1

    def nothing_is_left(self):
        """Is every unit sharded again, and the root?"""
        left = [place for place, unit in self.units.items() if unit.holds]
        if left:
            self.note("memory", "left", f"in the end unit {left[0]} is still whole", held=left)

    def called(self, name, tensor):
        """An answer calls what it was given."""
        if name == "all_gather":
            self.gathers[self.of_shard.get(tensor.data_ptr())] += 1
        else:
            self.elements += tensor.numel()

    def _sent(self):
        """A backward is over: was every unit gathered for it and for its forward, and everything reduced once?"""
        for place, unit in self.units.items():
            want = (1 if place == "root" else 2) * len(unit.flats)
            if self.gathers[place] != want:
                name = "the root" if place == "root" else f"unit {place}"
                text = f"gathers of {name}'s flats: {self.gathers[place]}, expected {want}"
                self.note("sent", "gathers", text, got=self.gathers[place], want=want, place=place)
        want = sum(flat.padded for flat in self.fsdp.flats if flat.trained)
        if self.elements != want:
            text = f"{self.elements} elements were reduce-scattered, expected {want}: every padded gradient once"
            self.note("sent", "reduced", text, got=self.elements, want=want)
        self.gathers.clear()
        self.reduces.clear()
        self.elements = 0
