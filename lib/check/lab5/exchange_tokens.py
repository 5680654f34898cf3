"""Lab 5, section 6: exchange_tokens(routed_tokens, send_counts, receive_counts, group, all_to_all),
routed tokens and their gradients.

    rank i's row k for rank j     100 i + 10 j + k, and 1000 more in each further column
    its gradient                  10000 more than the row, on whichever rank it is

So every wrong number says from where it is, to where it should have been sent, and which row it is
of. Two exchanges may be in flight when backward begins: the rows sent back again, or others in a
smaller group.
"""

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.attempt import attempted
from lib.check.cases import FINE, Setting, groups_and_control, in_step, seen
from lib.check.claims import claim, kept, noted, off
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.traffic import only_calls
from lib.moe import exchange as libs

WORLD, D = 4, 3
WAYS = ("forward", "backward")
GROUPS = ((0, 1), (0, 1, 2), tuple(range(WORLD)), (1, 3), (2,))
GROUPS_SAY = "1, 2, 3, 4 ranks, a subgroup"
TO_ONE, HOME, BESIDE, NONE = (
    "all to rank 0",
    "a second exchange, home",
    "a second exchange, in pairs",
    "no rows",
)
# rows from rank i to rank j, where the group has so many ranks
UNEVEN = [[2, 3, 1, 2], [1, 4, 2, 0], [0, 0, 0, 0], [5, 1, 0, 3]]
# rank 2 has nothing to do in TO_ONE
COUNTS = {
    TO_ONE: [[3, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]],
    NONE: [[0] * WORLD] * WORLD,
}
CASES = tuple(Setting(m) for m in GROUPS) + tuple(
    Setting(GROUPS[2], what=w) for w in (TO_ONE, HOME, BESIDE, NONE)
)
PAIRS = (Setting((0, 1), what="its pairs"), Setting((2, 3), what="its pairs"))


def section(case, way):
    """Of the ledger."""
    return f"{case.name}, {way}"


def counts_of(case, rank):
    """(rows to each rank, rows from each)"""
    counts, ranks = COUNTS.get(case.what, UNEVEN), range(case.world_size)
    return [counts[rank][j] for j in ranks], [counts[i][rank] for i in ranks]


def _rows(case, pairs, columns=D):
    """The rows of the (sender, receiver) pairs, end to end: (rows, columns)."""
    counts = COUNTS.get(case.what, UNEVEN)
    firsts = torch.tensor(
        [100.0 * i + 10 * j + k for i, j in pairs for k in range(counts[i][j])], dtype=torch.float64
    )
    rows = firsts[:, None] + 1000 * torch.arange(columns)
    return (rows * FINE[torch.float64]).to(backend.device())


class Exchange:
    """One rank's part of one exchange: what it is given, what should come."""

    def __init__(self, case, rank, group, columns=D):
        ranks = range(case.world_size)
        self.case, self.rank, self.group = case, rank, group
        self.sent = _rows(case, [(rank, j) for j in ranks], columns)
        self.want = self.received = _rows(case, [(i, rank) for i in ranks], columns)
        self.leaf, self.given = self.sent.clone().requires_grad_(), counts_of(case, rank)
        self.lists = [*map(list, self.given)]
        self.dy = 10000 * FINE[torch.float64]

    def run(self, fn, all_to_all):
        self.y = fn(self.leaf, *self.lists, self.group, all_to_all)
        if self.case.what == HOME:
            self.want, self.y = (
                self.sent,
                fn(self.y, *map(list, self.given[::-1]), self.group, all_to_all),
            )
        self.copy = self.y.detach().clone() if torch.is_tensor(self.y) else None

    def backward(self):
        (self.y * (self.want + self.dy)).sum().backward()

    def wrong_rows(self, where):
        problem = off(f"{where}: what arrived", self.y, self.want)
        if problem and problem.kind == "value":
            firsts = lambda rows: sorted(rows[:, 0].tolist())
            problem.facts |= {"same_rows": firsts(self.y) == firsts(self.want)}
        return problem

    def wrong_gradient(self, where):
        want, got = self.sent + self.dy, self.leaf.grad
        if got is None:
            return Problem(
                "no graph",
                f"{where}: no gradient of routed_tokens: autograd knows no way back from what "
                f"arrived",
            )
        problem = off(f"{where}: the gradient of routed_tokens", got, want)
        if problem:
            N = self.case.world_size
            problem.facts |= {"gradient": True, "zeros": not got.any()}
            problem.facts |= {
                "scaled": any(off("", got, want * factor) is None for factor in (N, 1 / N))
            }
        return problem

    def touched(self, where):
        if tuple(self.lists) == self.given and torch.equal(self.leaf.detach(), self.sent):
            return None
        return Problem(
            "touched",
            f"{where}: routed_tokens or a list of counts has changed, which were given",
        )


def _groups_of(cases):
    groups, pairs = groups_and_control(cases), [dist.new_group(pair.members) for pair in PAIRS]
    return {case: (*groups[case], pairs[dist.get_rank() // 2]) for case in cases}


def _measure(fn):
    return measured(lambda case: fn)


def measured(answer_of):
    """The records of answer_of(case), called as exchange_tokens is."""
    held = []
    one = lambda case, groups: _one(answer_of(case), held, case, groups)
    records = in_step(CASES, _groups_of, one, wire=dist.new_group())
    for record, exchanges in held:
        record["kept"] = not record["ok"] or all(
            torch.equal(one.y.detach(), one.copy) for one in exchanges
        )
    return records


def _one(fn, held, case, groups):
    group, control, pair = groups
    rank = case.members.index(dist.get_rank())
    where, exchanges = f"{case.name}: {case.rank(rank)}", [Exchange(case, rank, group)]
    if case.what == BESIDE:
        exchanges.append(Exchange(PAIRS[rank // 2], rank % 2, pair, columns=2))
    recorder = Recorder(
        control, allowed=[case.members] + [p.members for p in PAIRS] * (case.what == BESIDE)
    )
    recorder.begin("forward")
    forward = lambda: [one.run(fn, recorder.all_to_all) for one in exchanges]
    _, problem = attempted(recorder, section(case, "forward"), f"{where}, forward", forward)
    problem = problem or next(filter(None, (one.wrong_rows(where) for one in exchanges)), None)
    value, gradient = problem, None
    touched = (
        None if problem else next(filter(None, (one.touched(where) for one in exchanges)), None)
    )
    if recorder.agreed(value is None):
        calls, lost = recorder.calls, not all(one.y.requires_grad for one in exchanges)
        text = f"{where}: what arrived has no gradient: autograd knows no way back"
        gradient = Problem("no graph", text) if lost else None
        if recorder.agreed(not lost):
            recorder.begin("backward")
            backward = lambda: [one.backward() for one in exchanges]
            _, problem = attempted(
                recorder, section(case, "backward"), f"{where}, backward", backward
            )
            gradient = problem or next(
                filter(None, (one.wrong_gradient(where) for one in exchanges)), None
            )
            if gradient:
                gradient.facts |= {"way": "backward", "calls": len(recorder.calls)}
            recorder.calls = calls + recorder.calls
    record = {
        "ok": not value and not gradient,
        "value": value,
        "gradient": gradient,
        "touched": touched,
    }
    record |= recorder.record()
    held.append((record, exchanges))
    return record


def _sent(record, rank, way):
    """(whole numbers, others) that left this rank, a global one, for others."""
    sent = [0, 0]
    for call in record["calls"]:
        if call.phase == way and call.elements:
            to, me = call.counts[: len(call.ranks)], call.ranks.index(rank)
            sent[call.dtype.is_floating_point] += call.elements * (sum(to) - to[me]) // sum(to)
    return tuple(sent)


def as_many(cases, expected):
    """A judge: each rank sent others so many elements. expected(case, rank, way) -> (counts,
    elements of rows)."""

    def judge(runs):
        for _, case, records in seen(runs, cases):
            for rank, record in enumerate(records):
                for way in WAYS:
                    got = _sent(record, case.members[rank], way)
                    want = expected(case, rank, way)
                    if got != want:
                        text = (
                            f"{case.name}, {way}: {case.rank(rank)} sent {_told(got)}, expected "
                            f"{_told(want)}"
                        )
                        return Problem(
                            "elements", text, {"case": case, "way": way, "got": got, "want": want}
                        )
        return None

    return judge


def _told(elements):
    counts, rows = elements
    return f"{rows} elements of rows" + (f" and {counts} counts" if counts else "")


def elements_of(case, rank, way):
    """(counts, elements of rows) that leave the rank, for `as_many`."""

    def leave(case, rank, columns, way):
        lists = counts_of(case, rank)[way == "backward"]
        return columns * (sum(lists) - lists[rank])

    n = leave(case, rank, D, way)
    if case.what == HOME:
        n += leave(case, rank, D, WAYS[way == "forward"])
    if case.what == BESIDE:
        n += leave(PAIRS[rank // 2], rank % 2, 2, way)
    return 0, n


def lists_do_not_fit(p):
    """Were counts given that do not fit the rows, or the other ranks' counts?"""
    clash = p.kind == "clash" and not p.facts["over"] and {*p.facts["ops"]} == {"all_to_all"}
    return clash or s.raised("ValueError")(p)


BACKWARD = s.fact("way", "backward")
TWO = s.in_case(CASES, lambda case: case.what in (HOME, BESIDE))
EXCHANGE_TOKENS = Exercise(
    name="exchange_tokens", reference=libs.exchange_tokens, measure=_measure, worlds=(WORLD,),
    may_call=MAY_CALL,
    leaves_out={
        "generators": "the counts are lists, as the notebook gives them",
        "memory": "it makes what it returns",
    },
    claims=(
        claim("rows to their ranks", 3, f"{GROUPS_SAY}; uneven, none", noted(CASES, "value")),
        claim("gradients the same way back", 4, "also through two exchanges",
              noted(CASES, "gradient")),
        claim("each row once, each way", 2, "elements, by the all_to_all it was given",
              only_calls(CASES, None, WAYS, section), as_many(CASES, elements_of)),
        claim("rows and counts left alone", 1, "", noted(CASES, "touched"), kept(CASES)),
    ),
    hints=(
        s.CALLED_LIB,
        s.NO_GROUP,
        s.NARROW,
        Hint("counts of another exchange", s.both(BACKWARD, TWO),
             "one exchange was right, of two the backward takes the other's counts. Each call "
             "keeps its own lists: in ctx, or in a Function that is defined inside your function."),
        Hint("ranks of the world, not of the group", s.both(s.kind(*s.SHAPES), s.mixed_up_ranks),
             "groups of ranks 0, 1, 2, ... were right. Ranks are counted within the group: "
             "dist.get_rank(group) and dist.get_world_size(group)."),
        Hint("backward without the swap", s.both(BACKWARD, lists_do_not_fit),
             "in backward dy has a row for each that was received, and is sent back to where that "
             "came from: the two lists are swapped, all_to_all(dy, group, receive_counts, "
             "send_counts)."),
        Hint("the lists the wrong way round", lists_do_not_fit,
             "all_to_all(tensor, group, send_counts, receive_counts): first what is sent, then "
             "what is received."),
        Hint("not every rank calls", s.either(s.hung, s.kind("mismatch", "died", "clash")),
             "all ranks of the group call all_to_all, also those that have nothing to send or get "
             "nothing, in backward too."),
        Hint("nothing returned", s.kind("form", got="None"),
             "the function must end with a `return` of the tokens that arrived."),
        s.NO_GRAPH.saying(
            "what all_to_all returns is unknown to autograd. Write a torch.autograd.Function: "
            "forward is the exchange, and so is backward. Return "
            "MyFunction.apply(routed_tokens)."),
        Hint("backward sends nothing", s.both(BACKWARD, s.either(s.fact("calls", 0),
            s.fact("zeros"))),
             "the gradients of this rank's tokens are on the ranks to which these were sent: "
             "backward has to fetch them, by an all_to_all."),
        Hint("gradient scaled", s.fact("scaled"),
             "a token is on one rank at a time. Its gradient comes back as it is, nothing is "
             "summed and nothing averaged."),
        Hint("another gradient", s.fact("gradient"),
             "the gradient of row i of `routed_tokens` is dy of that same row, where it was sent."),
        Hint("nobody", s.in_case(CASES, lambda case: case != CASES[0], "raised"),
             "a rank may have no tokens to send, or get none: (0, D) is a tensor like any other."),
        s.NOT_GIVEN,
        Hint("rows in another order", s.kind("value"),
             "those from rank 0 come first, then those from rank 1: the order in which all_to_all "
             "returns them."),
        Hint("more than the rows", s.kind("elements"),
             "each token for another rank is sent once in each direction, unpadded, and none "
             "twice."),
        Hint("changed in place", s.kind("touched"),
             "leave `routed_tokens` and the lists as they are; return a new tensor."),
        Hint("shapes do not fit", s.either(s.kind("form"), s.refused("shape")),
             "(sum(send_counts), D) goes in, and (sum(receive_counts), D) comes out; in backward "
             "it is the other way round."),
        s.NOT_KEPT,
        *s.ANYWHERE,
    ),
)  # fmt: skip
