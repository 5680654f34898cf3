"""What is begun in the background, and waited for, by a PrefetchingFSDP: noted by this rank's own thread, in order.

    started 1 | forward 0 ... | waited 1 | started 2 | forward 1 ...          events, no times

A gather that was started before a unit computes, and that nobody has waited for yet, runs beside the compute, on any
machine and under any load.
"""

from contextlib import contextmanager

import torch

from lib import collectives
from lib.check.lab4.fsdp_watched import Watch
from lib.collectives import background


class AheadWatch(Watch):
    """`Watch`, which is told of the works too. works: {place: [a unit's gathers since its memory was freed]}."""

    def __init__(self, where):
        super().__init__(where, most=2)
        self.works, self.waited = {}, set()

    def started(self, work, args):
        place = self.of_shard.get(args[0].data_ptr()) if args and torch.is_tensor(args[0]) else None
        if place is not None:
            self.works.setdefault(place, []).append(work)
            self.filled.add(place)

    def is_waited_for(self, place):
        """Has every gather of the unit been waited for?"""
        return all(id(work) in self.waited for work in self.works.get(place, []))

    def freed(self, unit):
        super().freed(unit)
        self.works.pop(self.place(unit), None)

    def computes(self, way, place):
        if self.fsdp.units[place].is_unsharded and not self.is_waited_for(place):
            text = f"the {way} of unit {place} began and nobody had waited for its gathers"
            self.note("value", "not waited", text, way=way, place=place)
        super().computes(way, place)
        if not self.evaluates:
            self._look_ahead(way, place)

    def _look_ahead(self, way, place):
        """Is the gather of the unit that computes next under way?"""
        coming = place + (1 if way == "forward" else -1)
        if not 0 <= coming < len(self.fsdp.units):
            return
        under_way = [p for p in self.works if p in range(len(self.fsdp.units)) and not self.is_waited_for(p)]
        if coming not in under_way:
            facts = {"way": way, "whole": self.fsdp.units[coming].is_unsharded, "others": under_way}
            then = "it was whole already" if facts["whole"] else f"under way were those of {under_way or 'no unit'}"
            text = f"during the {way} of unit {place} unit {coming} was not being gathered: {then}"
            self.note("ahead", "ahead", text, **facts)


@contextmanager
def noting_starts(watch):
    """Within, every work that is started, by whomever, is told to `watch`; so is its first wait."""

    def start(fn, *args, **kwargs):
        work = background.start(fn, *args, **kwargs)
        watch.started(work, args)
        works.append(work)  # alive, or another could get its id
        plain = work.wait

        def wait():
            watch.waited.add(id(work))
            return plain()

        work.wait = wait
        return work

    works, before = [], collectives.start
    collectives.start = start
    try:
        yield
    finally:
        collectives.start = before
