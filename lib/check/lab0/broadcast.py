"""Lab 0, section 5: broadcast(tensor, src, group) down a binomial tree."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import (
    GROUPS,
    GROUPS_SAY,
    WORLD,
    Case,
    called,
    groups_of,
    in_step,
    is_a,
    number,
    seen,
)
from lib.check.lab0.sums import who
from lib.collectives import tree


def _case(members, n, dtype, src):
    return Case(members, n, dtype, f"src={src}", src)


CASES = [
    *(_case(members, 7, torch.float32, src) for members in GROUPS for src in range(len(members))),
    *(_case(members, 1, torch.float64, 0) for members in GROUPS),
    *(_case(members, 1000, torch.int64, len(members) - 1) for members in GROUPS),
]
CASES.sort(key=lambda case: GROUPS.index(case.members))  # small groups first, the one that is not 0 to N-1 last


def _tensor(rank, case):
    """What a rank has before: 1000 (rank+1) + 0, 1, 2, ...  (n,)"""
    return (1000 * (rank + 1) + torch.arange(case.n, device="cpu")).to(case.dtype)


def _measure(fn):
    def one(case, group):
        tensor, want = _tensor(dist.get_rank(group), case).to(backend.device()), _tensor(case.root, case)
        returned = called(case, fn, tensor, case.root, **({"group": group} if group else {}))
        returned = returned.detach().cpu() if type(returned) is torch.Tensor else None
        out = tensor.cpu()
        return {"ok": is_a(out, want), "out": out, "returned_it": is_a(returned, want)}

    return in_step(CASES, groups_of, one)


def _what_arrives(runs):
    for _, case, records in seen(runs, CASES):
        wrong = [rank for rank, record in enumerate(records) if not record["ok"]]
        if wrong:
            return _what_is_wrong(case, wrong, records[wrong[0]])
    return None


def _what_is_wrong(case, wrong, record):
    rank, out, want = wrong[0], record["out"], _tensor(case.root, case)
    element = int((out != want).nonzero()[0])
    line = f"{case.name}: {case.rank(rank)}, element {element}: "
    line += f"expected {number(want[element])}, got {number(out[element])}"
    source = next((r for r in range(case.world_size) if torch.equal(out, _tensor(r, case))), None)
    facts = {"case": case, "rank": rank, "source": source, "wrong": wrong, "returned_it": record["returned_it"]}
    if source == rank:
        text = f"It still holds its own tensor. Without that of rank {case.root} are {who(wrong)}."
    elif source is not None:
        text = f"It holds the tensor of rank {source}, expected that of rank {case.root}."
    else:
        text = f"It holds no rank's tensor: {out.tolist()[:4]}."
    return Problem("value", f"{line}\n{text}", facts)


def _messages(runs):
    for run, case, _ in seen(runs, CASES):
        got = [[] for _ in case.members]
        for mine in wire.sent(run, case):
            for to, numel in mine:
                got[to].append(numel)
        for rank, sizes in enumerate(got):
            expected = [] if rank == case.root else [case.n]
            if sizes != expected:
                words = f"was sent {len(sizes)} messages, {sum(sizes)} elements, expected {len(expected)} of {case.n}"
                total = f"Together {sum(map(sum, got))} elements, expected (N-1)n = {(case.world_size - 1) * case.n}."
                return Problem("elements", f"{case.name}: {case.rank(rank)} {words}\n{total}", {"case": case})
    return None


def _rounds(runs):
    for run, case, _ in seen(runs, CASES):
        books, least = wire.sent(run, case), (case.world_size - 1).bit_length()
        came, holders = {case.root: 0}, [case.root]  # the round in which each rank got it; who has it, in that order
        for holder in holders:
            for nth, (to, _) in enumerate(books[holder], start=1):  # a rank sends one message at a time
                came[to] = came[holder] + nth
                holders.append(to)
        if max(came.values()) > least:
            by_rank = [len(mine) for mine in books]
            text = f"{case.name}: {max(came.values())} rounds, expected ceil(log2 N) = {least}"
            star = by_rank[case.root] == case.world_size - 1
            return Problem("rounds", f"{text}\nMessages sent by rank: {by_rank}", {"case": case, "star": star})
    return None


def _value(p, fits):
    return p.kind == "value" and fits(p.facts)


EXERCISE = Exercise(
    name="broadcast",
    reference=tree.broadcast,
    measure=_measure,
    worlds=(WORLD,),
    may_call=mistakes.P2P,
    claims=(
        Claim("the root's tensor everywhere", 6, f"{GROUPS_SAY}; every root; n = 1, 7, 1000", _what_arrives),
        Claim("no rank receives twice", 3, "N-1 messages, (N-1)n elements in all", _messages),
        Claim("holders double every round", 3, "ceil(log2 N) rounds", _rounds),
    ),
    hints=(
        mistakes.BUILT_IN,
        Hint(
            "not in place",
            lambda p: _value(p, lambda f: f["returned_it"]),
            "the caller's tensor must hold the root's values: receive into `tensor` itself.",
        ),
        Hint(
            "ranks of the world, not of the group",
            mistakes.WHOSE_RANKS.fits,
            "a peer lies outside the group. Count within the group: dist.get_rank(group), dist.get_world_size(group), "
            "partners only below world_size (N need not be a power of two) or modulo it, and `group` in every p2p "
            "call.",
        ),
        Hint(
            "rank 0 as the root",
            lambda p: _value(p, lambda f: f["case"].root in f["wrong"]),
            "the tree starts at rank 0 and not at `src`. Number the ranks from the root, v = (rank - src) mod N, "
            "build the tree on v, and translate back, rank = (v + src) mod N.",
        ),
        Hint(
            "nothing is delivered",
            lambda p: _value(p, lambda f: len(f["wrong"]) == f["case"].world_size - 1 and f["source"] == f["rank"]),
            "no rank but the root has the root's tensor. Is what is received written into `tensor`?",
        ),
        Hint(
            "only part of the tree",
            lambda p: _value(p, lambda f: f["source"] == f["rank"]),
            "who has received must pass it on: in round s = 0, 1, ... the 2^s ranks that have it send to 2^s others, "
            "for ceil(log2 N) rounds, also where N is no power of two.",
        ),
        Hint(
            "sent before it came",
            lambda p: p.kind == "value",
            "a rank passes on what it had before: it must have received before it sends.",
        ),
        Hint(
            "a receive without its send",
            mistakes.hung,
            "a rank waits for a message that nobody sends (or sends one that nobody takes). Draw the tree for N = 3: "
            "in the last round not every holder has a partner.",
        ),
        Hint(
            "sent more than once",
            lambda p: p.kind == "elements",
            "one message to each rank that lacks the tensor is enough, and none to the root.",
        ),
        Hint(
            "a star",
            lambda p: p.kind == "rounds" and p.facts["star"],
            "the root sends to all, one after another. Those that have the tensor can help: the number of holders "
            "doubles.",
        ),
        Hint(
            "a chain",
            lambda p: p.kind == "rounds",
            "each holder passes it on only once, or too late. In every round every holder sends to one that lacks it.",
        ),
    ),
)
