"""lib's own works in the background, `collectives.start`, keep the same rules: hands off until
`wait()`.

    your thread      start(ring_all_reduce, x)    x + 1: "read before wait"    wait()    x + 1
    communication           [ messages, a copy, messages ... x is written here ]

The communication thread itself may touch what it was given. What a work fills is told by its
arguments: `out`, and the tensors of an all-reduce or a broadcast, which work in place; all others
it reads.
"""

import itertools

from lib.collectives import background
from lib.ledger.source import position
from tests.emulation.strict_touch import tensors_in

IN_PLACE = ("all_reduce", "broadcast", "average")


class Background:
    """A work of the communication thread, as the table of what is under way sees one: an
    item with one post."""

    numbers = itertools.count(-2, -1)

    def __init__(self, work):
        self.number, self.work, self.waited = next(self.numbers), work, False
        self.done, self.error, self.settled, self.thread = work.ended, "", False, None
        self.name = getattr(work.fn, "__name__", "an operation")
        given = list(tensors_in([*work.args]))
        in_place = any(word in self.name for word in IN_PLACE)
        self.reads = [] if in_place else given
        self.fills = list(tensors_in(work.kwargs.get("out"))) + (given if in_place else [])
        self.posts, self.landings = [self], []

    communicates = property(lambda self: background.communication_thread())

    def was_waited_for(self):
        return self.waited

    def title(self):
        return self.name

    def says(self):
        return f"{self.name} in the background ({position(*self.work.site[0])})"

    def forget(self):
        self.reads, self.fills, self.posts = [], [], []


def watch(table):
    """Every work from now on is in `table` until it has been waited for."""
    begin, wait = background.Work.__init__, background.Work.wait

    def begin_watched(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        self.item = Background(self)
        table.add(self.item, self.item)
        table.items[self.item.number] = self.item

    def wait_watched(self):
        self.item.waited = True
        out = wait(self)
        table.settle(self.item)
        return out

    background.Work.__init__, background.Work.wait = begin_watched, wait_watched
