"""Known mistakes in PrefetchingFSDP: edits of lib's code."""

from mistakes import Mistake, edit

IS_ONE, IN_FLIGHT = "0 <= index < len(self.units)", " and index not in self.gathers"
BEGIN, WAIT = (
    "self.gathers[index] = start_unshard(self.units[index])",
    "self.gathers.pop(index, [])",
)
WAITS = f"        self.prefetch(index)\n        for work in {WAIT}:\n            work.wait()\n"
UP, DOWN = "self.prefetch(index + 1)", "self.prefetch(index - 1)"
BESIDE = (
    "collectives.start(collectives.all_gather, self.root.flats[0].shard.detach().clone(), "
    "self.group)"
)
MISTAKES = tuple(
    Mistake(hint, edit(old, new))
    for hint, old, new in (
        ("no end", IS_ONE, "index >= 0"),
        ("no end", IS_ONE, "index < len(self.units)"),
        ("no end", IS_ONE, "0 < index < len(self.units)"),
        ("no end", IS_ONE, "0 <= index < len(self.units) - 1"),
        (
            "not by prefetch",
            "        self.prefetch(index)\n",
            "        index in self.gathers or self.units[index].unshard()\n",
        ),
        (
            "the next one first",
            f"self.wait_for_unshard(index)\n        {UP}",
            f"{UP}\n        self.wait_for_unshard(index)",
        ),
        (
            "the next one first",
            f"self.wait_for_unshard(index)\n        {DOWN}",
            f"{DOWN}\n        self.wait_for_unshard(index)",
        ),
        ("prefetch starts nothing", BEGIN, "pass"),
        (
            "not in the background",
            BEGIN,
            f"{BEGIN}\n            for work in self.gathers[index]: work.wait()",
        ),
        ("not in the background", BEGIN, "self.units[index].unshard()"),
        (
            "not in the background",
            UP,
            "if index + 1 < len(self.units): self.wait_for_unshard(index + 1)",
        ),
        ("prefetched again", IN_FLIGHT, ""),
        ("prefetched again", " and not self.units[index].is_unsharded", ""),
        (
            "does not wait",
            WAITS,
            "        self.prefetch(index)\n        self.gathers.pop(index, None)\n",
        ),
        ("does not wait", WAIT, f"{WAIT}[:1]"),
        (
            "does not wait",
            WAITS,
            WAITS.replace("        for", "        self.units[index].attach()\n        for"),
        ),
        ("not attached", "        self.units[index].attach()\n", ""),
        (
            "only what was prefetched",
            WAITS,
            WAITS.replace("        self.prefetch(index)\n", "").replace(", []", ""),
        ),
        (
            "only what was prefetched",
            WAITS,
            WAITS.replace("self.prefetch(index)", "if index not in self.gathers: return"),
        ),
        ("gathers is not emptied", WAIT, "self.gathers.get(index, [])"),
        ("not waited for", f"self.wait_for_unshard(index)\n        {DOWN}", DOWN),
        ("backward goes down", DOWN, UP),
        ("backward goes down", f"        {DOWN}\n", ""),
        ("nothing is prefetched", f"        {UP}\n", ""),
        (
            "too many unsharded",
            UP,
            "for other in range(index + 1, len(self.units)): self.prefetch(other)",
        ),
        ("too many unsharded", DOWN, f"{DOWN}\n        self.prefetch(index - 2)"),
        ("gathered too often", UP, f"self.units[index].unshard()\n        {UP}"),
        ("not what it was given", BEGIN, f"{BEGIN}\n            self.gathers[index] += [{BESIDE}]"),
    )
)
