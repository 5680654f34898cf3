"""Lab 1, section 3: broadcast_parameters(module, group), after which all ranks hold
rank 0's model."""

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import FINE, Setting, called, form_of, groups_of, in_step, is_a, seen
from lib.check.claims import claim, each, element
from lib.check.comm import COLLECTIVES
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.lab1.models import Small
from lib.data_parallel import replicate

# a frozen parameter; a buffer that no state_dict lists
FROZEN, UNLISTED = {"scale"}, {"norm.cache"}


class _Model(Small):
    """With a norm, whose buffers are in a module of its own: one is (), one is not persistent."""

    def __init__(self, seed):
        super().__init__(seed, FINE[torch.float64])
        self.norm = nn.BatchNorm1d(3, affine=False).double()
        self.norm.register_buffer("cache", torch.zeros(3, dtype=torch.float64), persistent=False)
        for number, buffer in enumerate([self.seen, *self.norm.buffers()]):
            buffer.copy_(buffer + (1 + seed + number) * FINE[buffer.dtype])


def _tensors(model):
    """{name: tensor} of parameters and buffers; a tied one has its first name."""
    return dict([*model.named_parameters(), *model.named_buffers()])


def _model(case, rank):
    return _Model(20 + rank + 10 * case.again)


EMPTY = _Model(0)
SIZE = sum(tensor.numel() for tensor in _tensors(EMPTY).values())
BUFFERS = {name for name, _ in EMPTY.named_buffers()}
CASES = *(Setting(members, SIZE) for members in (*GROUPS, ALONE)), Setting(GROUPS[0], SIZE, again=1)


def _measure(fn):
    def one(case, group):
        model = _model(case, case.members.index(dist.get_rank())).to(backend.device())
        before, places = (
            _tensors(model),
            {name: t.data_ptr() for name, t in _tensors(model).items()},
        )
        wants = {name: t.requires_grad for name, t in before.items()}
        called(case, fn, model, *([] if group is None else [group]))
        after = _tensors(model)
        values = {name: t.detach().cpu() for name, t in after.items()}
        return {
            "ok": all(is_a(values.get(name), t.detach().cpu())
                      for name, t in _tensors(_model(case, 0)).items()),
            "values": values,
            "replaced": [n for n, t in before.items()
                         if after.get(n) is not t or t.data_ptr() != places[n]],
            "asks": [n for n, t in after.items() if t.requires_grad != wants.get(n)],
        }  # fmt: skip

    return in_step(CASES, groups_of, one, dist.new_group())


def _arrives(case, rank, record):
    if record["ok"]:
        return None
    models = [
        {name: t.detach() for name, t in _tensors(_model(case, r)).items()}
        for r in range(case.world_size)
    ]
    values, root = record["values"], models[0]
    off = [name for name in root if not is_a(values.get(name), root[name])]
    out, want, where = values.get(off[0]), root[off[0]], f"{case.name}: {case.rank(rank)}, {off[0]}"
    if out is None or out.shape != want.shape or out.dtype != want.dtype:
        return Problem("replaced", f"{where}: expected {form_of(want)}, got {form_of(out)}")
    found = element(where, out, want)
    source = next((r for r in range(case.world_size) if torch.equal(out, models[r][off[0]])), None)
    total = sum(model[off[0]] for model in models)
    found.facts |= {"case": case, "off": {*off}, "source": source, "rank": rank}
    found.facts["sum"] = torch.equal(out, total) or torch.allclose(
        out.double(), total / case.world_size
    )
    found.facts["nothing"] = source == rank and len(off) == len(root)
    whose = {None: "no rank's", rank: "still its own"}.get(source, f"rank {source}'s")
    names = f"all {len(off)} tensors" if len(off) == len(root) else ", ".join(off)
    found.text += f"\nIt is {whose}; expected rank 0's. Wrong on this rank: {names}."
    return found


def _in_place(case, rank, record):
    where = f"{case.name}: {case.rank(rank)}"
    if record["replaced"]:
        text = (
            f"{where}, {record['replaced'][0]}: there is another tensor in its place; expected the "
            f"old one, written to"
        )
        return Problem("replaced", text)
    if record["asks"]:
        return Problem(
            "requires_grad", f"{where}, {record['asks'][0]}: its requires_grad has changed"
        )
    return None


def _elements(runs):
    """(N-1) n together, by broadcasts or by messages."""
    for run, case, _ in seen(runs, CASES):
        N, n, section = case.world_size, case.n, run.ledger.section(case.name)
        books = [section.of(member) for member in case.members]
        for rank, entries in enumerate(books):
            stranger = next((e for e in entries if not e.is_message and e.op != "broadcast"), None)
            if stranger is not None:
                words = (
                    f"called {stranger.op}, expected that rank 0's tensors are sent, and nobody "
                    f"else's"
                )
                return Problem(
                    "elements", f"{case.name}: {case.rank(rank)} {words}", {"everyone": True}
                )
        got = sum(e.numel for entries in books for e in entries if e.op == "send")
        got += (N - 1) * sum(e.numel for e in books[0] if e.op == "broadcast")
        if got != (N - 1) * n:
            text = (
                f"{case.name}: {got} elements were sent, expected (N-1)n = {(N - 1) * n}: {n} to "
                f"each rank but 0"
            )
            tied = (N - 1) * (n + EMPTY.shared.weight.numel())
            return Problem(
                "elements", text, {"tied": got == tied, "everyone": got >= 2 * (N - 1) * n}
            )
    return None


def _off(fits):
    """Predicate: fits(names of the tensors that are wrong)."""
    return lambda p: bool(p.fact("off")) and fits(p.facts["off"])


EXERCISE = Exercise(
    name="broadcast_parameters", reference=replicate.broadcast_parameters, measure=_measure,
    worlds=(WORLD,),
    may_call=COLLECTIVES,
    leaves_out={
        "under way": "a function that returns when it is done, and has no backward",
        "empty rank": "every rank holds the same model",
        "generators": "no argument is an iterator",
        "returned": "it returns nothing: the module holds the result",
        "given used": "no function is given to it",
        "memory": "one tensor after the other or all at once: the docstring leaves it open",
    },
    claims=(
        claim("rank 0's model on every rank", 3, f"1 rank, {GROUPS_SAY}; tied, frozen, buffers",
              each(CASES, _arrives)),
        claim("in place", 1, "the same tensors, their requires_grad unchanged",
              each(CASES, _in_place)),
        claim("elements on the wire", 2, "(N-1)n over all ranks", _elements),
    ),
    hints=(
        s.CALLED_LIB.saying("build it from collectives.broadcast or dist.broadcast."),
        Hint("a root of the world, not of the group", s.refused("outside the group"),
             "dist.broadcast's src is a rank of the world. Rank 0 of the group is group_src=0, or "
             "use collectives.broadcast(tensor, 0, group)."),
        Hint("in place on a leaf", s.refused("in place"),
             "autograd guards parameters: write to them under @torch.no_grad(), or to p.detach(), "
             "which shares their memory."),
        Hint("not every rank takes part", s.either(s.hung, s.kind("mismatch", "died")),
             "a broadcast is called by every rank of the group, with the same root, the same "
             "tensors in the same order, and `group`."),
        s.NARROW,
        Hint("not in the state dict", _off(lambda off: off == UNLISTED),
            "module.state_dict() has no buffer that is not persistent, and a tied parameter twice. "
            "Use module.parameters() and module.buffers()."),
        Hint("buffers forgotten", _off(lambda off: off == BUFFERS),
             "the buffers still differ. module.parameters() has no buffers: module.buffers() are "
             "needed too."),
        Hint("frozen ones forgotten", _off(lambda off: FROZEN <= off <= FROZEN | BUFFERS),
             "a parameter with requires_grad False has no gradient, but it has a value, which must "
             "be rank 0's too."),
        Hint("the sum or the mean of all", s.fact("sum"),
            "that is all ranks' values summed or averaged. Every rank must get rank 0's."),
        Hint("nothing is delivered", s.fact("nothing"),
             "no tensor of the model was written. Broadcast into the parameters themselves: `p = "
             "...` and p.clone() leave the model as it was."),
        Hint("another rank's", lambda p: p.fact("source") not in (None, p.fact("rank")),
            "the root is rank 0 of the group."),
        Hint("some are left out", s.kind("value"), "all parameters and all buffers, one by one."),
        Hint("another tensor in its place", s.kind("replaced"),
             "the optimizer and the tied layers hold the old tensor. Receive into it, or copy: "
             "p.copy_(received)."),
        Hint("requires_grad changed", s.kind("requires_grad"), "leave requires_grad as it was."),
        Hint("tied ones twice", s.fact("tied"),
             "a tied parameter has two names, and is sent under both. module.parameters() gives it "
             "once."),
        Hint("everyone sends", s.fact("everyone"),
             "only rank 0's values are needed: a broadcast sends (N-1)n. An all-gather sends "
             "N(N-1)n, an all-reduce 2(N-1)n."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
