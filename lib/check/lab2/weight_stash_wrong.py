"""Known mistakes of WeightStash, edits of lib's (mistakes.py); a release leaves this file out."""

from lib.check.mistakes import Mistake, edit

REMEMBER, GIVE, FORGET = (
    "self.under_way[j] = self.newest",
    "return self.newest",
    "return self.under_way.pop(j)",
)
NEEDED, CHANGE = (
    "any(weights is self.newest for weights in self.under_way.values())",
    "change(self.newest)",
)
CLONES = "{n: w.clone() for n, w in self.newest.items()}"

MISTAKES = (
    Mistake("nothing returned", edit(GIVE, "pass")),
    Mistake("nothing returned", edit(FORGET, "del self.under_way[j]")),
    Mistake("not weights", edit(GIVE, "return [*self.newest.values()]")),
    Mistake("not weights", edit(CHANGE, "change(self.under_way)")),
    Mistake("forgotten too early", edit(CHANGE, CHANGE + "; self.under_way.clear()")),
    Mistake("forgotten too early", edit(REMEMBER,
        "self.under_way.pop(j - 2, None); " + REMEMBER)),  # enough for p = 2
    Mistake("change is not called", edit(CHANGE, "pass")),
    Mistake("changed twice", edit(CHANGE,
        "[change(weights) for weights in (self.newest, *self.under_way.values())]")),
    Mistake("the update is lost", edit("self.newest = {name",
        "return change({name").then("items()}", "items()})")),
    Mistake("the update is lost", edit("if any(",
        "old = self.newest; self.under_way\n        if any(")
            .then(CHANGE, "change(old)")),
    Mistake("an old version is changed", edit(FORGET,
        "self.read = self.under_way.pop(j); return self.read")
            .then(CHANGE, f"self.newest = {CLONES.replace('newest', 'read')}; {CHANGE}")),
    Mistake("other numbers", edit("w.clone()", "w.float().double()")),
    Mistake("changed under way", edit(NEEDED, "False")),
    Mistake("changed under way", edit("w.clone()", "w")),
    Mistake("changed under way", edit(REMEMBER,
        f"self.under_way[j] = {CLONES.replace('clone', 'detach')}")),
    Mistake("the newest in backward", edit(FORGET, "self.under_way.pop(j); return self.newest")),
    Mistake("the newest in backward", edit(REMEMBER, REMEMBER + "; self.slot = self.newest")
            .then(FORGET, "self.under_way.pop(j); return self.slot")),
    Mistake("the newest in backward", edit("pop(j)", "pop(max(self.under_way))")),
    Mistake("the newest in backward", edit(FORGET, "mine = self.under_way.pop(j)\n"
                                                   "        return self.under_way.get(j + 1, "
                                                   "mine)")),
    Mistake("a version behind", edit("self.under_way = {}",
        "self.before, self.under_way = weights, {}")
            .then(REMEMBER, "self.under_way[j] = self.before")
            .then("if any(", "self.before = self.newest\n        if 1 or any(")),
    Mistake("other numbers than its forward's",
            edit(REMEMBER, f"self.under_way[j] = {CLONES.replace('clone', 'float')}")
            .then(FORGET, "return {n: w.double() for n, w in self.under_way.pop(j).items()}")),
    Mistake("never forgets", edit("pop(j)", "get(j)")),
    Mistake("a copy for every mini-batch", edit(REMEMBER, f"self.under_way[j] = {CLONES}")
            .then(GIVE, "return self.under_way[j]").then(NEEDED, "False")),
    Mistake("copies without need", edit(NEEDED, "True")),
    Mistake("one name too many", edit(FORGET,
        "self.current = self.under_way.pop(j); return self.current")),
)  # fmt: skip
