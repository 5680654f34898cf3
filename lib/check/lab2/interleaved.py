"""Lab 2, section 6: interleaved(p, m, v), v thinner stages on every rank.

    rank i has stages  i, i+p, i+2p, ...  p micro-batches through the first,
                                          the same p through the second, ...

Right is what has the bubble (p-1)/(vm+p-1) and keeps no more than Megatron-LM's order does. That
order's warmup is longer than the bubble needs where messages take no time, and is chosen for
messages that do; a shorter one, with the same bubble, is right as well. With v = 1 the schedule is
1F1B, as in Megatron-LM, whose interleaved schedule asks for v > 1.
"""

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab2 import hints, schedules
from lib.check.lab2.on_ranks import gradients
from lib.check.lab2.schedules import each, words
from lib.check.pure import all_seen, refused
from lib.pipeline.schedules import interleaved
from lib.pipeline.simulate import kept

# p, m, v
CASES = [
    (2, 2, 2),
    (2, 4, 2),
    (3, 6, 2),
    (4, 8, 2),
    (2, 4, 3),
    (4, 8, 4),
    (1, 3, 2),
    (3, 6, 1),
    (3, 4, 1),
    (4, 2, 1),
]
CASES_SAY = "p = 1 to 4; m = 2 to 8; v = 1, 2, 3, 4"
# whatever becomes of an m that makes groups larger or smaller than p
REFUSED = [(2, 5, 2), (3, 7, 2), (4, 9, 3)]


def _kept(schedule, p, m, v):
    for i, actions in enumerate(schedule):
        at, got = schedules.most([live for live, _ in kept(actions)])
        most = min(v * m, (v - 1) * p + 2 * (p - 1 - i) + 1) if v > 1 else min(m, p - i)
        if got > most:
            text = (
                f"rank {i} keeps {got} micro-batches x stages after {actions[at]}, expected {most} "
                f"at most"
            )
            return Problem("kept", f"{text}\n{schedules.row(schedule, i, actions[at])}")
    return None


def _first_backward(actions):
    return next(at for at, action in enumerate(actions) if action.kind == "B")


def _all_microbatches_first(schedule, p, m, v):
    """Does a rank run all m micro-batches through its first stage before any goes
    through its second?"""
    forwards = [action for action in schedule[0] if action.kind == "F"]
    return [action.stage for action in forwards[:m]] == [0] * m


def _chunk_by_chunk(schedule, p, m, v):
    """Is a rank done with its first stage, backward too, before it goes on to the second?"""
    return v == 1 or {action.stage for action in schedule[0][: 2 * m]} == {0}


def _one_by_one(schedule, p, m, v):
    """Does each micro-batch go through all stages of a rank before the next one comes?"""
    forwards = [action for action in schedule[0] if action.kind == "F"]
    return [action.microbatch for action in forwards] == sorted(
        action.microbatch for action in forwards
    )


def _backward_from_the_first(schedule, p, m, v):
    return schedule[0][_first_backward(schedule[0])].stage < (v - 1) * p or v == 1


def _warmups_shrink(schedule, p, m, v):
    warmups = [_first_backward(actions) for actions in schedule]
    return warmups == sorted(warmups, reverse=True)


EXERCISE = Exercise(
    name="interleaved", reference=interleaved, measure=schedules.measure(interleaved,
        CASES + REFUSED), worlds=(),
    leaves_out=schedules.LEAVES_OUT,
    claims=(
        claim("every action once, on its rank", 3, CASES_SAY, schedules.once("FB", CASES)),
        claim("needs before it, no deadlock", 3, "on every rank and between them",
              each(CASES, schedules.runs_through)),
        claim("no more kept", 3, "rank i: (v-1)p + 2(p-1-i) + 1 at most", each(CASES, _kept)),
        claim("bubble (p-1)/(vm+p-1)", 5, "simulated: B = 2F, B = F",
              each(CASES, schedules.bubble)),
        claim("p must divide m", 2, "where v > 1; else a ValueError",
              refused(REFUSED, words, lambda p, m, v: f"{p} does not divide {m}")),
        claim("the whole batch's gradients", 2, "on 2 and 4 ranks, 2(vp-1)m messages",
              gradients([CASES[1], (4, 8, 2)])),
    ),
    hints=(
        *hints.FORM,
        Hint("whole rounds where v is 1",
             lambda p: "case" in p.facts and p.facts["case"] in CASES
             and p.facts["case"][1] % p.facts["case"][0] > 0,
             "v = 1 is 1F1B, for every m: only thinner stages take p micro-batches at a time."),
        Hint("refuses what divides",
             lambda p: p.kind == "raised" and isinstance(p.facts.get("error"), ValueError),
             "here p divides m, so there is nothing to refuse: `if m % p: raise ...`."),
        Hint("another rank's stage", s.kind("wrong rank"),
             "the pipeline goes round the ranks: stage s is on rank s mod p, so rank i has "
             "stages i, i+p, i+2p, ..."),
        *hints.NUMBERS,
        hints.WHOLE_BACKWARD,
        hints.NO_BACKWARD,
        Hint(
            "one stage per rank",
            lambda p: (
                p.kind == "missing"
                and {a for a in p.facts["expected"] if a.stage >= p.facts["case"][0]}
                <= p.facts["missing"]
            ),
            "each rank has v stages, i, i+p, ... i+(v-1)p, and runs F and B of each.",
        ),
        Hint("some left out", s.kind("missing"),
             "every rank runs F and B of each of its v stages for all m micro-batches: 2vm "
             "actions."),
        hints.TWICE,
        Hint("backward first", lambda p: p.kind == "order" and hints.begins_backward(p),
             "a backward reads what its own forward kept: the list of a rank begins with its "
             "warmup of forwards."),
        Hint("all micro-batches through one stage",
             lambda p: p.kind == "order" and all_seen(_all_microbatches_first)(p),
             "forwards go in groups of p micro-batches: p through the rank's first stage, the same "
             "p through its second, ... and only then the next p. You take all m through the first "
             "stage before the second."),
        Hint("warmup too short", s.kind("order"),
             "a rank's first backward comes after its warmup, (v-1)p + 2(p-1-i) forwards, and one "
             "forward more: then the micro-batch has been through all other stages. In each pair "
             "the forward stands first."),
        Hint("one chunk after another",
             lambda p: p.kind == "deadlock" and all_seen(_chunk_by_chunk)(p),
             "stage p+i is part of the same pipeline as stage i, not a second one: no gradient "
             "comes back to stage i before the micro-batch has been forward through all stages."),
        Hint("backward from the first",
             lambda p: p.kind == "deadlock" and all_seen(_backward_from_the_first)(p),
             "gradients come from the end: backward a rank goes through its stages from the last "
             "to the first."),
        Hint("one micro-batch at a time",
             lambda p: p.kind == "deadlock" and all_seen(_one_by_one)(p),
             "you take each micro-batch through all stages of a rank before the next one. Between "
             "two stages it goes round all other ranks; meanwhile the rank can take p-1 others "
             "through the same stage."),
        Hint("the warmup grows down the pipeline",
             lambda p: p.kind == "deadlock" and not all_seen(_warmups_shrink)(p),
             "the first rank is farthest from the end and needs the longest warmup: (v-1)p + "
             "2(p-1-i) on rank i."),
        Hint("orders that do not fit", s.kind("deadlock", "bubble"),
             "all ranks go through the micro-batches of a round in the same order, forward and "
             "backward, and each rank runs ahead of the next: draw p = 2, m = 4, v = 2."),
        Hint("all forwards first",
             lambda p: p.kind == "kept" and all_seen(lambda lists, p, m,
             v: _first_backward(lists[0]) == v * m)(p),
             "that is GPipe, with v stages per rank. After its warmup a rank runs one forward, one "
             "backward."),
        Hint("1F1B where v is 1",
             lambda p: p.kind == "kept" and p.facts["case"][2] == 1,
             "v = 1 is 1F1B: rank i warms up with p-1-i forwards. The twofold 2(p-1-i) is for "
             "v > 1."),
        Hint("warmup too long", s.kind("kept"),
             "(v-1)p + 2(p-1-i) forwards are enough on rank i before it takes turns; each more is "
             "kept in memory."),
        Hint("no error", s.kind("not refused"),
             "p micro-batches enter together. Where p does not divide m: raise ValueError with "
             "both numbers in it."),
        Hint("not a ValueError", s.kind("another error"),
             'if m % p: raise ValueError(f"m = {m} ... p = {p} ...").'),
        *s.ANYWHERE,
    ),
)  # fmt: skip
