"""What the checks of Lab 2's schedules have in common: which action is wrong, how much a schedule
keeps, and how long it takes. A schedule is data, so no ranks are needed.

    fn(p, m)  -->  [[0F0, 0F1, ...], [1F0, ...], ...]
    a list per rank? --> every action once? --> can the ranks run it? --> in order, kept, and idle

    nothing, iterators, lists, one list, actions   a list of actions for each rank
    kinds, unknown, wrong rank, twice, mixed,
    no backward, missing, missing W, ...           every action once, on the rank of its stage
    begins backward, B before F, ..., deadlock     what an action needs comes before it
    out of order                                   each kind in the order of the micro-batches
    kept by rank 0, kept, idle                     no more, and no longer, than with lib's own

If one of these does not hold, a text is shown under its name, in most cases the message of
lib.pipeline's `validate`; `kept` and `idle` are numbers. The first pipelines are small, so that the
printed lists are short. The first case comes twice in a row: a call that leaves something behind
for the next one fails in the second, where nothing else can be the cause. Pipelines with few
micro-batches come last, so that a mistake which only they reveal is not taken for another one.
"""

import re

from lib.check.claims import iterator
from lib.check.explain import cut, kind_of
from lib.check.left_out import BUILT, NO_TENSORS
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.pipeline.actions import KINDS, Action, loop
from lib.pipeline.simulate import UNIT, grid, kept, simulate
from lib.pipeline.validate import ScheduleError, validate

CASES_SAY = "p = 1, 2, 3, 4, 8; m = 1 to 16"
SIZES = [(2, 3), (4, 4), (3, 5), (4, 8), (1, 4), (8, 16), (3, 1), (4, 2), (1, 1)]  # p, m
LEAVES_OUT = BUILT | {
    "precise": "actions, which no type rounds",
    "empty rank": "every rank has its share of the actions",
}
EVERY_ACTION = (
    RETURNED, "iterators", "lists", "one list", "actions", "kinds", "unknown", "wrong rank",
    "twice", "mixed", "no backward", "missing", *(f"missing {kind}" for kind in KINDS),
    "changed later",
)  # fmt: skip
NEEDS = (
    "begins backward", *(f"{b} before {a}" for a, b in ("FF", "FB", "FI", "IW", "BB", "II")),
    "deadlock", "out of order",
)  # fmt: skip
ALWAYS = ("lists", "missing", "deadlock")  # these are shown even if nothing is wrong
KEPT = ("kept", *(f"kept by rank {rank}" for rank in range(8)))
# the times for schedules with B: it takes twice as long as F, or as long as F
WHOLE = (UNIT, {"F": 1, "B": 1})
HALVES = ({"F": 1, "I": 1, "W": 1}, {"F": 3, "I": 4, "W": 2})  # and for those with I and W
WIDTH = 90  # characters of a line of the grid in a verdict


def words(p, m, v=None):
    return f"p = {p}, m = {m}" + (f", v = {v}" if v else "")


def sizes(case) -> tuple[int, ...]:
    """(p, m), or (p, m, v) if the exercise has v."""
    return tuple(map(int, re.findall(r" = (\d+)", case.what)))


def measure(builds, kinds, amounts, jobs=SIZES, refused=(), **how):
    """The measure of a schedule. builds: lib's own function. refused: cases in which that raises a
    ValueError, and the answer should too. how: further arguments of `judge`."""
    names = [words(*job) for job in jobs]
    names.insert(1, f"{names[0]}, and once more")
    errors = [f"{words(*job)}: {job[0]} does not divide {job[1]}" for job in refused]

    def script(make, case, show):
        if case.what in errors:
            show.refused(make, *sizes(case))
        else:
            judge(show.run(make, *sizes(case)), show, sizes(case), kinds, amounts, **how)

    return SideBySide(script, builds, here(*names, *errors), groups=None, excused=NO_TENSORS)


def judge(out, show, of, kinds, amounts, ordered=True, stages=1, placement=loop):
    """Show what is wrong with a schedule. of: (p, m), with v = `stages`, or (p, m, v).

    amounts: amounts(show, schedule, kinds, p, m) shows how much the schedule keeps and how long it
        takes. It is called only if the ranks can run the schedule.
    ordered: each stage has to run every kind in the order of the micro-batches.
    placement: as for `validate`.
    """
    p, m, v = (*of, stages)[:3]
    problem = misread(out, p) or wrong(out, kinds, m, v, placement)
    name, text = problem or (ordered and out_of_order(out)) or (ALWAYS[0], "")
    show.said(dict.fromkeys([*ALWAYS, name]), {name: text})
    if not text:
        show.judged = [list(actions) for actions in out]  # for on_ranks.py, which executes it
        amounts(show, show.judged, kinds, p, m)


def amounts(show, schedule, kinds, p, m):
    for rank in range(p):
        keeps(show, f"kept by rank {rank}", schedule, rank)
    idle(show, schedule, kinds)


def keeps(show, name, schedule, rank):
    """Show the most micro-batches x stages that a rank keeps, with F done and B or W not."""
    most, at = most_kept(schedule[rank])
    show(name, most, at_most=True, beside=f"{most} after {at}, {row(schedule, rank, at)}")


def most_kept(actions):
    """(the most micro-batches x stages that a rank keeps, the action after which it first keeps
    that many)"""
    counts = [live + waiting for live, waiting in kept(actions)]
    return max(counts), actions[counts.index(max(counts))]


def idle(show, schedule, kinds):
    """Show how long rank 0 is idle in a simulation. One rank is enough, because all ranks have the
    same amount of work and are therefore idle equally long."""
    for times in HALVES if "W" in kinds else WHOLE:
        run = simulate(schedule, times)
        told = ", ".join(f"{kind} = {time}" for kind, time in times.items() if kind in kinds)
        beside = f"for {told}\n{drawn(schedule, times)}".rstrip()
        show("idle", run.makespan - run.busy[0], at_most=True, beside=beside)


def misread(out, p):
    """(name, text) if the result is not a list (or tuple) of p lists of Actions, else None."""
    if out is None:
        return RETURNED, "got None, expected a list of actions for each rank"
    if found := iterator(out, "rank {} has"):
        return "iterators", found.text
    lists = isinstance(out, (list, tuple)) and all(_is_list(actions) for actions in out)
    if not lists or len(out) != p:
        expected = f"{p} list{'s'[: p > 1]} of actions, one per rank"
        return "lists", f"got {described(out)}, expected {expected}"
    if p > 1 and isinstance(out[0], list) and all(actions is out[0] for actions in out):
        return "one list", f"got the same list {p} times, expected a list for each rank"
    for rank, actions in enumerate(out):
        for action in actions:
            if not isinstance(action, Action):
                shown = f"{cut(action, 40)}, " if type(action) in (tuple, list, str, int) else ""
                shown += f"{kind_of(action)}, expected lib.pipeline's Action"
            elif {type(action.stage), type(action.microbatch)} == {int} and action.kind in KINDS:
                continue
            else:
                shown = f"Action{cut((*action,), 40)}, expected "
                shown += f"Action(stage, one of {' '.join(KINDS)}, micro-batch)"
            return "actions", f"rank {rank} has {shown}"
    return None


def _is_list(actions):
    return isinstance(actions, (list, tuple)) and not isinstance(actions, Action)


def described(out):
    if not isinstance(out, (list, tuple)) or isinstance(out, Action):
        return kind_of(out)
    inside = sorted({type(item).__name__ for item in out}) or ["list"]
    if len(inside) > 1:
        return f"{kind_of(out)} of {' and '.join(inside)}"
    return f"{len(out)} {inside[0]}{'s'[: len(out) != 1]}"


def wrong(schedule, kinds, m, v=1, placement=loop):
    """(name, text) of the first action that is wrong or missing, or None. kinds: the kinds of
    action in this exercise. The names are listed at the top of this file."""
    every = [action for actions in schedule for action in actions]
    other = next((action for action in every if action.kind not in kinds), None)
    if other:
        text = f"{other} is there: expected are the kinds {' '.join(kinds)}"
        return _with_row("kinds", text, schedule, other)
    try:
        validate(schedule, m, v, placement)
    except ScheduleError as error:
        name, text, (action, *needs) = error.kind, str(error), error.actions
    else:
        return None
    if name == "missing":
        stages = range(v * len(schedule))
        expected = (Action(stage, kind, j) for j in range(m) for stage in stages for kind in kinds)
        action, *more = [one for one in expected if one not in {*every}]
        rank = placement(len(schedule), len(stages))[action.stage]
        text = f"rank {rank} never runs {action}"
        if {a.kind for a in every} <= {"F"}:
            name = "no backward"
        elif {a.kind for a in more} <= {action.kind}:
            name = f"missing {action.kind}"
    if name == "order":
        begins = any(actions[0].kind != "F" for actions in schedule)
        name = "begins backward" if begins else f"{action.kind} before {needs[0].kind}"
    return _with_row(name, text, schedule, action)


def out_of_order(schedule):
    """(name, text) of the first action that comes after one of the same stage and kind with a later
    micro-batch, or None."""
    latest = {}
    for rank, actions in enumerate(schedule):
        for action in actions:
            before = latest.setdefault(action[:2], action)
            if action.microbatch < before.microbatch:
                text = f"rank {rank} runs {action} after {before}"
                return _with_row("out of order", text, schedule, action)
            latest[action[:2]] = action
    return None


def _with_row(name, text, schedule, action):
    holds = [rank for rank, actions in enumerate(schedule) if action in actions]
    named = [rank for rank in holds if text.startswith(f"rank {rank} ")]
    rank = [*named, *holds, action.stage % len(schedule)][0]
    return name, text if name == "deadlock" else f"{text}\n{row(schedule, rank, action)}"


def row(schedule, rank, action=None):
    """One rank's list on one line. Of a long list, only the part around `action` is shown."""
    actions, show = schedule[rank], 16
    first = actions.index(action) - show // 2 if action in actions else 0
    first = max(0, min(first, len(actions) - show))
    shown = [*map(str, actions[first : first + show])]
    shown = ["..."] * (first > 0) + shown + ["..."] * (first + show < len(actions))
    return f"rank {rank}: {' '.join(shown) or 'an empty list'}"


def drawn(schedule, times=UNIT):
    """The grid of a valid schedule if it is small enough to read, else ""."""
    lines = grid(schedule, times).splitlines()
    return "\n".join(lines) if len(lines) <= 4 and max(map(len, lines)) <= WIDTH else ""
