"""Known mistakes of WeightStash, edits of lib's code."""

from mistakes import Mistake, edit

REMEMBER, GIVE, FORGET = (
    "self.in_flight[j] = self.newest",
    "return self.newest",
    "return self.in_flight.pop(j)",
)
NEEDED, CHANGE = (
    "any(weights is self.newest for weights in self.in_flight.values())",
    "change(self.newest)",
)
CLONES = "{n: w.clone() for n, w in self.newest.items()}"

MISTAKES = (
    Mistake("nothing returned", edit(GIVE, "pass")),
    Mistake("nothing returned", edit(FORGET, "del self.in_flight[j]")),
    Mistake("not weights", edit(GIVE, "return [*self.newest.values()]")),
    Mistake("not weights", edit(CHANGE, "change(self.in_flight)")),
    Mistake("forgotten too early", edit(CHANGE, CHANGE + "; self.in_flight.clear()")),
    Mistake("forgotten too early", edit(REMEMBER,
        "self.in_flight.pop(j - 2, None); " + REMEMBER)),  # enough for p = 2
    Mistake("forgotten too early", edit(REMEMBER,
        "self.in_flight.pop(j - 4, None); " + REMEMBER)  # enough for p = 4
            .then("pop(j)", "pop(j, self.newest)")),
    Mistake("change returns nothing", edit(CHANGE, "self.newest = " + CHANGE)),
    Mistake("change is not called", edit(CHANGE, "pass")),
    Mistake("compared by elements", edit(NEEDED, "self.newest in self.in_flight.values()")),
    Mistake("changed twice", edit(CHANGE,
        "[change(weights) for weights in (self.newest, *self.in_flight.values())]")),
    Mistake("the update is lost", edit("self.newest = {name",
        "return change({name").then("items()}", "items()})")),
    Mistake("the update is lost", edit("if any(",
        "old = self.newest; self.in_flight\n        if any(")
            .then(CHANGE, "change(old)")),
    Mistake("an old version is changed", edit(FORGET,
        "self.read = self.in_flight.pop(j); return self.read")
            .then(CHANGE, f"self.newest = {CLONES.replace('newest', 'read')}; {CHANGE}")),
    Mistake("other numbers", edit("w.clone()", "w.float().double()")),
    Mistake("changed in flight", edit(NEEDED, "False")),
    Mistake("changed in flight", edit("w.clone()", "w")),
    Mistake("changed in flight", edit(REMEMBER,
        f"self.in_flight[j] = {CLONES.replace('clone', 'detach')}")),
    Mistake("the newest in backward", edit(FORGET, "self.in_flight.pop(j); return self.newest")),
    Mistake("the newest in backward", edit(REMEMBER, REMEMBER + "; self.slot = self.newest")
            .then(FORGET, "self.in_flight.pop(j); return self.slot")),
    Mistake("the newest in backward", edit("pop(j)", "pop(max(self.in_flight))")),
    Mistake("the newest in backward", edit(FORGET, "mine = self.in_flight.pop(j)\n"
                                                   "        return self.in_flight.get(j + 1, "
                                                   "mine)")),
    Mistake("a version behind", edit("self.in_flight = {}",
        "self.before, self.in_flight = weights, {}")
            .then(REMEMBER, "self.in_flight[j] = self.before")
            .then("if any(", "self.before = self.newest\n        if 1 or any(")),
    Mistake("other numbers than its forward's",
            edit(REMEMBER, f"self.in_flight[j] = {CLONES.replace('clone', 'float')}")
            .then(FORGET, "return {n: w.double() for n, w in self.in_flight.pop(j).items()}")),
    Mistake("never forgets", edit("pop(j)", "get(j)")),
    Mistake("a copy for every mini-batch", edit(REMEMBER, f"self.in_flight[j] = {CLONES}")
            .then(GIVE, "return self.in_flight[j]").then(NEEDED, "False")),
    Mistake("copies without need", edit(NEEDED, "True")),
    Mistake("one name too many", edit(FORGET,
        "self.current = self.in_flight.pop(j); return self.current")),
)  # fmt: skip
