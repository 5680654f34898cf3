"""Mistakes that are made in PrefetchingFSDP: edits of lib's. Like every *_wrong.py, no
release has this file."""

from lib.check.mistakes import Mistake, edit

IS_ONE, COMING = "0 <= place < len(self.units)", " and place not in self.coming"
BEGIN, WAIT = "self.coming[place] = start_unshard(self.units[place])", "self.coming.pop(place, [])"
TAKE = f"        self.fetch(place)\n        for work in {WAIT}:\n            work.wait()\n"
UP, DOWN = "self.fetch(place + 1)", "self.fetch(place - 1)"
BESIDE = (
    "collectives.start(collectives.all_gather, self.root.flats[0].shard.detach().clone(), "
    "self.group)"
)
MISTAKES = tuple(
    Mistake(hint, edit(old, new))
    for hint, old, new in (
        ("no end", IS_ONE, "place >= 0"),
        ("no end", IS_ONE, "place < len(self.units)"),
        ("no end", IS_ONE, "0 < place < len(self.units)"),
        ("no end", IS_ONE, "0 <= place < len(self.units) - 1"),
        (
            "not by fetch",
            "        self.fetch(place)\n",
            "        place in self.coming or self.units[place].unshard()\n",
        ),
        (
            "the next one first",
            f"self.take(place)\n        {UP}",
            f"{UP}\n        self.take(place)",
        ),
        (
            "the next one first",
            f"self.take(place)\n        {DOWN}",
            f"{DOWN}\n        self.take(place)",
        ),
        ("nothing is fetched", BEGIN, "pass"),
        (
            "not in the background",
            BEGIN,
            f"{BEGIN}\n            for work in self.coming[place]: work.wait()",
        ),
        ("not in the background", BEGIN, "self.units[place].unshard()"),
        ("not in the background", UP, "if place + 1 < len(self.units): self.take(place + 1)"),
        ("fetched again", COMING, ""),
        ("fetched again", " and not self.units[place].is_unsharded", ""),
        (
            "does not wait",
            TAKE,
            "        self.fetch(place)\n        self.coming.pop(place, None)\n",
        ),
        ("does not wait", WAIT, f"{WAIT}[:1]"),
        (
            "does not wait",
            TAKE,
            TAKE.replace("        for", "        self.units[place].attach()\n        for"),
        ),
        ("not attached", "        self.units[place].attach()\n", ""),
        (
            "only what was coming",
            TAKE,
            TAKE.replace("        self.fetch(place)\n", "").replace(", []", ""),
        ),
        (
            "only what was coming",
            TAKE,
            TAKE.replace("self.fetch(place)", "if place not in self.coming: return"),
        ),
        ("coming is not emptied", WAIT, "self.coming.get(place, [])"),
        ("not taken", f"self.take(place)\n        {DOWN}", DOWN),
        ("backward goes down", DOWN, UP),
        ("backward goes down", f"        {DOWN}\n", ""),
        ("nothing is fetched ahead", f"        {UP}\n", ""),
        ("too many whole", UP, "for other in range(place + 1, len(self.units)): self.fetch(other)"),
        ("too many whole", DOWN, f"{DOWN}\n        self.fetch(place - 2)"),
        ("gathered too often", UP, f"self.units[place].unshard()\n        {UP}"),
        ("not what it was given", BEGIN, f"{BEGIN}\n            self.coming[place] += [{BESIDE}]"),
    )
)
