"""Lab 0, section 5: broadcast(tensor, src, group) down a binomial tree."""

from dataclasses import replace

import torch

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import ALONE, GROUPS, GROUPS_SAY, WORLD, Case, is_a, own, seen
from lib.check.claims import claim, kept, values
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import narrowed, rounded_words, two, who
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.traffic import sent
from lib.collectives.tree import broadcast


def _case(members, n, dtype, src):
    return Case(members, n, dtype, f"src={src}", src)


CASES = [
    *(_case(members, 7, torch.float32, src) for members in GROUPS for src in range(len(members))),
    *(_case(members, 1, torch.float64, 0) for members in GROUPS),
    *(_case(members, 1000, torch.int64, len(members) - 1) for members in GROUPS),
]
# small groups first, the one that is not 0 to N-1 last
CASES.sort(key=lambda case: GROUPS.index(case.members))
CASES = (
    *CASES, _case(ALONE, 3, torch.float32, 0), _case(GROUPS[2], 0, torch.float32, 1),
    replace(CASES[0], again=1)
)  # fmt: skip
CALLS = Calls(
    CASES,
    give=lambda case, rank: {"tensor": own(rank, case.n, case.dtype), "src": case.root},
    want=lambda case, rank: own(case.root, case.n, case.dtype),
    into="tensor",
)


def _explain(case, rank, out, want, records):
    """facts: source, the rank whose tensor is there; returned_it."""
    element = int((out != want).nonzero()[0])
    x, y = two(want[element], out[element])
    line = f"{case.name}: {case.rank(rank)}, element {element}: expected {x}, got {y}"
    source = next(
        (r for r in range(case.world_size) if torch.equal(out, own(r, case.n, case.dtype))), None
    )
    facts = {
        "source": source,
        "returned_it": is_a(records[rank]["returned"], want),
        "narrowed": narrowed(out, want),
    }
    wrong = [r for r, record in enumerate(records) if not record["ok"]]
    if facts["narrowed"]:
        text = rounded_words(case.dtype)
    elif source == rank:
        text = f"It still holds its own tensor. Without that of rank {case.root} are {who(wrong)}."
    elif source is not None:
        text = f"It holds the tensor of rank {source}, expected that of rank {case.root}."
    else:
        text = f"It holds no rank's tensor: {out.tolist()[:4]}."
    return Problem("value", f"{line}\n{text}", facts)


def _messages(runs):
    for run, case, _ in seen(runs, CASES):
        got = [[] for _ in case.members]
        for mine in sent(run, case):
            for to, numel in mine:
                got[to].append(numel)
        for rank, sizes in enumerate(got):
            expected = [] if rank == case.root else [case.n]
            if [n for n in sizes if n] != [n for n in expected if n]:
                words = (
                    f"was sent {len(sizes)} messages, {sum(sizes)} elements, expected "
                    f"{len(expected)} of {case.n}"
                )
                total = (
                    f"Together {sum(map(sum, got))} elements, expected (N-1)n = "
                    f"{(case.world_size - 1) * case.n}."
                )
                return Problem(
                    "elements", f"{case.name}: {case.rank(rank)} {words}\n{total}", {"case": case}
                )
    return None


def _rounds(runs):
    for run, case, _ in seen(runs, CASES):
        if case.n == 0:  # an empty message need not be sent
            continue
        logs, least = sent(run, case), (case.world_size - 1).bit_length()
        # the round in which each rank got it; who has it, in that order
        came, holders = {case.root: 0}, [case.root]
        for holder in holders:
            # a rank sends one message at a time
            for nth, (to, _) in enumerate(logs[holder], start=1):
                came[to] = came[holder] + nth
                holders.append(to)
        if max(came.values()) > least:
            by_rank = [len(mine) for mine in logs]
            text = f"{case.name}: {max(came.values())} rounds, expected ceil(log2 N) = {least}"
            star = by_rank[case.root] == case.world_size - 1
            return Problem(
                "rounds", f"{text}\nMessages sent by rank: {by_rank}", {"case": case, "star": star}
            )
    return None


def _value(fits):
    return lambda p: p.kind == "value" and fits(p.facts)


def _wrong_root(p):
    """Did the root receive: another tensor than its own, or from itself? Not only where a
    group has other ranks."""
    received = _value(lambda f: f["case"].root in f["wrong"])(p) or s.refused("to itself")(p)
    return received and not s.mixed_up_ranks(p)


EXERCISE = Exercise(
    name="broadcast", reference=broadcast, measure=CALLS, bonus=True, worlds=(WORLD,),
    may_call=s.P2P,
    leaves_out=BUILT | IN_PLACE,
    claims=(
        claim("the root's tensor everywhere", 6, f"{GROUPS_SAY}; every root; n = 0, 1, 7, 1000",
              values(CALLS, _explain), kept(CASES)),
        claim("no rank receives twice", 3, "N-1 messages, (N-1)n elements in all", _messages),
        claim("holders double every round", 3, "ceil(log2 N) rounds", _rounds),
    ),
    hints=(
        s.BUILT_IN, s.NARROW,
        Hint("not in place", _value(lambda f: f["returned_it"]),
             "the caller's tensor must hold the root's values: receive into `tensor` itself."),
        Hint("rank 0 as the root", _wrong_root,
             "the tree starts at rank 0 and not at `src`. Number the ranks from the root, v = "
             "(rank - src) mod N, build the tree on v, and translate back, rank = (v + src) mod "
             "N."),
        s.WHOSE_RANKS.saying(
            "a peer lies outside the group. Count within the group: dist.get_rank(group), "
            "dist.get_world_size(group), partners only below world_size (N need not be a power of "
            "two) or modulo it, and `group` in every p2p call."),
        s.nothing_there(CASES),
        Hint("nothing is delivered",
             _value(lambda f: len(f["wrong"]) == f["case"].world_size - 1
                    and f["source"] == f["rank"]),
             "no rank but the root has the root's tensor. Is what is received written into "
             "`tensor`?"),
        Hint("only part of the tree", _value(lambda f: f["source"] == f["rank"]),
             "who has received must pass it on: in round s = 0, 1, ... the 2^s ranks that have it "
             "send to 2^s others, for ceil(log2 N) rounds, also where N is no power of two."),
        Hint("sent before it came", s.kind("value"),
             "a rank passes on what it had before: it must have received before it sends."),
        Hint("a receive without its send", s.hung,
             "a rank waits for a message that no rank sends (or sends one that no rank takes). "
             "Draw the tree for N = 3: in the last round not every holder has a partner."),
        s.WRONG_DTYPE,
        Hint("sent more than once", s.kind("elements"),
             "one message to each rank that lacks the tensor is enough, and none to the root."),
        Hint("a star", s.kind("rounds", star=True),
             "the root sends to all, one after another. Those that have the tensor can help: the "
             "number of holders doubles."),
        Hint("a chain", s.kind("rounds"),
             "each holder passes it on only once, or too late. In every round every holder sends "
             "to one that lacks it."),
        s.alone(CASES), s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
