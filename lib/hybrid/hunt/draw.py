"""Draws the ten jobs of the hunt from a seed, and knows what is wrong with each of them."""

import random

from lib.hybrid.hunt.rules import DATA, HEALTHY, JOBS, MISTAKES, STEPS, Finding, Setup, right

MESHES = (  # sizes, the slowest axis first; with experts?
    ({"dp": 2, "tp": 2}, False), ({"pp": 2, "tp": 2}, False), ({"pp": 2, "dp": 2}, False),
    ({"dp": 2, "ep": 2}, True), ({"pp": 2, "ep": 2}, True), ({"ep": 2, "tp": 2}, True),
)  # fmt: skip
LAST = STEPS - 2  # the last step in which a mistake begins


# exercise: lab6.drawn
def drawn(seed):
    """The ten jobs of a seed: [(Setup, [Rules of step 0, ...], Finding or HEALTHY), ...]. They are
    the same on every machine.

    Each of MISTAKES occurs once, on a mesh on which it is possible, and begins in a random step.
    There are also two healthy jobs. The order is random.
    """
    chance = random.Random(seed)
    jobs = []
    for mistake in (*MISTAKES, *[HEALTHY] * (JOBS - len(MISTAKES))):
        cases = [
            (sizes, mixture, case)
            for sizes, mixture in MESHES
            for case in _cases(mistake, sizes, mixture)
        ]
        sizes, mixture, (axis, evidence, changes) = chance.choice(cases)
        setup, first = (
            Setup(dict(sizes), mixture, chance.randrange(10_000)),
            chance.randrange(LAST + 1),
        )
        wrong = right(setup)._replace(**changes)
        rules = [right(setup) if step < first else wrong for step in range(STEPS)]
        jobs.append((setup, rules, Finding(mistake, axis, first, evidence) if axis else HEALTHY))
    chance.shuffle(jobs)
    return jobs


def _cases(mistake, sizes, mixture):
    """The ways to make this mistake on this mesh: [(axis, the first evidence that it changes,
    {field of Rules: its wrong axes}), ...]."""
    rules = right(Setup(sizes, mixture, 0))
    data = [axis for axis in DATA if axis in sizes]
    without = lambda axes, axis: tuple(each for each in axes if each != axis)
    less = lambda rule, axis: {rule: without(getattr(rules, rule), axis)}
    if mistake == HEALTHY:
        return [(None, None, {})]
    if mistake == "one dropout seed":
        return [(axis, "activation", less("masks", axis)) for axis in sizes if axis in rules.masks]
    if mistake == "mean over the wrong group":
        other = () if len(data) > 1 else ("tp",) if "tp" in sizes else None
        return [
            (axis, "gradient", {"mean": (*without(rules.mean, axis), *other)})
            for axis in data
            if other is not None
        ]
    if mistake == "tied embedding summed once":
        return [("pp", "gradient", less("tied", "pp"))] if "pp" in sizes else []
    if mistake == "LayerNorm not summed":
        return [("tp", "gradient", less("norms", "tp"))] if "tp" in sizes and not mixture else []
    if mistake == "the same data":
        return [(axis, "input", less("rows", axis)) for axis in data]
    if mistake == "local tokens":
        both = [
            (axis, "loss", less("counted", axis) | less("reported_tokens", axis)) for axis in data
        ]
        return both + [(axis, "gradient", less("counted", axis)) for axis in data if len(data) == 1]
    if mistake == "local norm":
        cut = [axis for axis in rules.squares if axis in sizes]
        both = [(axis, "norm", less("squares", axis) | less("reported_norm", axis)) for axis in cut]
        return both + [(axis, "update", less("squares", axis)) for axis in cut]
    return [("ep", "gradient", less("experts", "ep"))] if "ep" in sizes else []
