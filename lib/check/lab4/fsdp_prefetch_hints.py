"""The mistakes that are made in PrefetchingFSDP, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab4.fsdp_given import CALLS_LIB, OTHERWISE


def _kind(*kinds):
    return lambda p: p.kind in kinds


def _ahead(fits):
    return lambda p: p.kind == "ahead" and fits(p.facts)


HINTS = (
    CALLS_LIB,
    Hint(
        "no end",
        lambda p: p.kind == "no such unit" or (p.kind == "raised" and "IndexError" in p.text),
        "behind the last unit and before the first there is nothing to fetch: 0 <= place < len(self.units). "
        "(units[-1] is the last one.)",
    ),
    Hint(
        "nothing is fetched",
        _kind("nothing fetched"),
        "self.coming[place] = zero.start_unshard(self.units[place]).",
    ),
    Hint(
        "not in the background",
        lambda p: p.kind == "at once" or _ahead(lambda f: f["whole"])(p),
        "fetch begins, and does not wait: zero.start_unshard(unit) returns works. take waits for them, when the unit "
        "is needed.",
    ),
    Hint(
        "fetched again",
        _kind("again"),
        "fetch does nothing for a unit that is on its way (place in self.coming) or whole (unit.is_unsharded).",
    ),
    Hint(
        "does not wait",
        _kind("not waited"),
        "a unit has a gather for each of its flats: wait() for every work in self.coming[place] before it is used.",
    ),
    Hint(
        "not attached",
        _kind("not attached"),
        "when the gathers have ended, the parameters become views of what came: self.units[place].attach().",
    ),
    Hint(
        "only what was coming",
        lambda p: p.kind == "not coming" or (p.kind == "raised" and "KeyError" in p.text),
        "nobody may have fetched the unit before: take begins with fetch(place), which does nothing if it is coming.",
    ),
    Hint(
        "coming is not emptied",
        _kind("coming stays"),
        "take the works out of self.coming (pop): what is left there counts as on its way for ever.",
    ),
    Hint(
        "not taken",
        lambda p: p.kind == "not whole",
        "before a unit computes it is taken: take(place) in before_forward and in before_backward.",
    ),
    Hint(
        "backward goes down",
        _ahead(lambda f: f["way"] == "backward"),
        "in backward unit place-1 comes after unit place, and is fetched while this one computes.",
    ),
    Hint(
        "nothing is fetched ahead",
        _ahead(lambda f: True),
        "after take(place) comes fetch of the next one, place+1 in forward: it is gathered while this one computes.",
    ),
    Hint(
        "too many whole",
        _kind("memory", "left"),
        "fetch the next unit and no other: two are whole at a time, the one that computes and the one that comes.",
    ),
    Hint(
        "gathered too often",
        _kind("gathers", "reduced"),
        "a unit is gathered once for forward and once for backward.",
    ),
    OTHERWISE,
)
