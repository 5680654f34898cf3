"""The mistakes that are made in relay_step, told by what came of them, and the hint for each.

Where a run hangs, or its messages do not fit, the ranks' logs tell which rank left the order of
the relay, and how:

    rank i of p     recv from i-1    send to i+1    recv from i+1    send to i-1
"""

from typing import NamedTuple

from lib.check import symptoms as s
from lib.check.exercise import Hint
from lib.check.lab2.relay_cases import CASES, REUSED, WIDTHS, order, sends
from lib.check.symptoms import failed, hung


class Astray(NamedTuple):
    """The first rank of the case that did other than the relay asks. did: (op, peer), or None: it
    returned instead."""

    rank: int
    p: int
    did: tuple | None
    should: tuple | None  # None: nothing more


def astray(problem):
    """The Astray of a run that failed in a case, or None."""
    case = s.case_of(problem, CASES)
    for rank, (member, should) in enumerate(
        zip(case.members, order(case), strict=True) if case else ()
    ):
        mine = failed(problem).book.of(member)
        did = [(e.op, case.members.index(e.peer) if e.peer in case.members else None) for e in mine]
        at = next(
            (k for k, pair in enumerate(zip(did, should, strict=False)) if pair[0] != pair[1]),
            len(did),
        )
        if at < len(did):
            return Astray(rank, case.world_size, did[at], should[at] if at < len(should) else None)
        marks = [e.file for e in problem.facts["ledger"].of(member) if e.op == "mark"]
        if at < len(should) and marks and marks[-1] == "":  # it has returned
            return Astray(rank, case.world_size, None, should[at])
    return None


def left(fits):
    """Fits if a rank left the relay's order, in this way."""
    return lambda p: (hung(p) or p.kind == "mismatch") and (a := astray(p)) is not None and fits(a)


def another_group(problem):
    """Did it fail in another group than the case's, or only where the group's ranks
    are not the world's?"""
    case, run = s.case_of(problem, CASES), failed(problem)
    if case is None or run is None:
        return False
    return s.mixed_up_ranks(problem) or any(e.members != case.members for e in run.book.entries)


def wrong_size(back, fits=lambda got, want, rank: True):
    """Fits if a rank sent another number of elements than it should: to the previous rank,
    or to the next."""

    def of(problem):
        case = s.case_of(problem, CASES) if problem.kind == "mismatch" else None
        for rank, member in enumerate(case.members if case else ()):
            to = rank - 1 if back else rank + 1
            for e in failed(problem).book.of(member):
                if e.op == "send" and 0 <= to < case.world_size and e.peer == case.members[to]:
                    want = dict(sends(case)[rank])[to]
                    if e.numel != want and fits(e.numel, want, rank):
                        return True
        return False

    return of


def gives(got, want, rank):
    """Are they the elements of what the stage gives, where those of what it takes should be?"""
    return got * WIDTHS[rank] == want * WIDTHS[rank + 1]


def reused(problem):
    """Was it in the step that gets the x of the one before?"""
    return (case := s.case_of(problem, CASES)) is not None and case.step == REUSED


def _shares(fits):
    """Fits if the gradient is a sum of the steps' gradients with such coefficients, {step -
    1: coefficient}."""
    return lambda p: (
        p.kind == "gradient" and bool(p.fact("shares")) and fits(p.facts["shares"], p.facts["p"])
    )


HINTS = (
    s.BUILT_IN.saying(
        "build it from p2p.send and p2p.recv. Nothing is to be added over ranks: each has other "
        "parameters."),
    s.NARROW,
    Hint("x keeps its gradient", s.both(reused, s.either(s.kind("gradient"),
        s.refused("in place"))),
         "here the caller gives the x of the step before once more. What is marked with "
         "requires_grad_() stays marked, and its .grad adds up: receive into a tensor of your own, "
         "torch.empty_like(x)."),
    Hint("the group is not used", another_group,
         "every send and recv takes `group`, and so do dist.get_rank(group) and "
         "dist.get_world_size(group): the first stage is on the group's rank 0, whichever rank of "
         "the world that is."),
    Hint("no gradient of the input", s.both(s.kind("raised"), s.refused("None")),
         "x.grad is None: autograd keeps the gradient of a leaf only if it was told so before "
         "forward. What you received needs x.requires_grad_()."),
    Hint("tokens have no gradient", s.both(s.kind("raised"), s.refused("dtype")),
         "the first rank's x are tokens. Nobody waits for their gradient: only what was received "
         "requires grad."),
    Hint("a loss on every rank", s.raised("NoTarget"),
         "only the last rank has a target. The others begin their backward with the gradient that "
         "they receive: y.backward(grad_y)."),
    Hint("y is no number", lambda p: s.raised("RuntimeError")(p) and not failed(p).refusals,
         "y.backward() alone is for a loss. Where y has many elements, say what dL/dy is: "
         "y.backward(grad_y)."),
    Hint("no neighbour there", s.both(s.kind("raised"), s.refused("outside the group")),
         "the first rank has no previous one, the last has no next; a single rank is both, the "
         "first and the last. Ask for rank and world size of the group: dist.get_rank(group), "
         "dist.get_world_size(group)."),
    Hint("the loss sent back", wrong_size(True, lambda got, want, rank: got == 1),
         "what the previous rank needs is not the loss but dL/dx, the gradient of what it gave "
         "you: x.grad."),
    Hint("the gradient of y sent back", wrong_size(True, gives),
         "the previous rank gave you x, so it needs the gradient of x. That of y is what you "
         "received."),
    Hint("the input sent on", wrong_size(False),
         "the next rank needs what your stage gives: y = stage(x)."),
    Hint("a buffer of another form",
         s.either(lambda p: p.kind == "mismatch" and failed(p).mismatch in ("size", "dtype"),
                  s.refused("shape")),
         "who receives must make room for just what is sent: an activation is like x, "
         "torch.empty_like(x); its gradient like the activation, torch.empty_like(y)."),
    Hint("waits too early", left(lambda a: a.did == ("recv", a.rank + 1) and a.should == ("send",
        a.rank + 1)),
         "it waits for a gradient before it has sent the activation that this is the gradient of."),
    Hint("right on two ranks only", left(lambda a: 0 < a.rank < a.p - 1),
         "a rank in the middle does all four: it receives x and sends y on, then receives the "
         "gradient of y and sends back that of x."),
    Hint("no gradient received", left(lambda a: a.should == ("recv", a.rank + 1) and a.did is None),
         "the next rank sends back dL/dy, and nobody takes it. Every rank but the last receives it "
         "and begins its backward with it: y.backward(p2p.recv(torch.empty_like(y), rank + 1, "
         "group))."),
    Hint("no gradient sent back", left(lambda a: a.should == ("send",
        a.rank - 1) and a.did is None),
         "after its backward every rank but the first sends x.grad to the previous one, which "
         "waits for it."),
    Hint("the wrong neighbour", left(lambda a: a.did is not None),
         "activations go to rank + 1, gradients to rank - 1. A pipeline is no ring: the last rank "
         "is not the first one's neighbour."),
    Hint("no forward", s.kind("no forward"),
         "every rank computes y = stage(x), with the batch or with what it received."),
    Hint("two forwards", s.kind("forwards"),
         "one forward: what is sent on is also what backward begins with, y = stage(x) once."),
    Hint("computed on the empty room", s.kind("taken", nan=True),
         "on all ranks but the first, x says only which shape and dtype come. Use what p2p.recv "
         "has filled."),
    Hint("another input", s.kind("taken"),
         "what the previous rank sends is what its stage gave, and what you receive is what your "
         "stage takes, as it is."),
    Hint("backward with ones", s.kind("gradient", ones=True),
         "start the backward from the gradient that you received, y.backward(grad_y), not from "
         "y.sum() or ones."),
    Hint("no backward", s.kind("gradient", absent=True),
         "every rank must run its backward: that is what fills .grad."),
    Hint("overwritten", _shares(lambda shares, p: 0 not in shares),
         "backward adds to .grad, as it does in one process: p.grad is not to be set, and not to "
         "be cleared here."),
    Hint("scaled by p", _shares(lambda shares, p: round(shares.get(0, 0), 9) in (p, round(1 / p,
        9))),
         "the loss is one batch's, and p ranks share one backward: nothing is to be multiplied or "
         "divided by p."),
    Hint("added twice", _shares(lambda shares, p: round(shares.get(0, 0), 9) in (2, 4, 8, 16)),
         "one backward per rank: it adds the gradients by itself."),
    Hint("another gradient", s.kind("gradient"),
         "what you receive is dL/dy, for y.backward(grad_y) as it is; what you send is x.grad, "
         "after backward."),
    Hint("the loss is not returned", s.kind("loss", got=None), "the last rank returns the loss."),
    Hint("another loss function", s.kind("loss_fn"),
         "whoever calls relay_step chooses the loss: call loss_fn(y, target), not a loss of your "
         "own."),
    Hint("another loss", s.kind("loss"),
         "the loss is loss_fn(y, target), a tensor of shape (), unscaled."),
    Hint("something returned elsewhere", s.kind("elsewhere"),
         "ranks before the last have no loss: they return None."),
    Hint("the loss keeps its graph", s.kind("attached"),
         "return loss.detach(): whoever adds up losses would keep every step's graph."),
    Hint("more messages than two", s.kind("messages", more=True),
         "between two neighbours go one activation and one gradient. The shape need not be sent: "
         "it is x's, and y's."),
    *s.ANYWHERE,
)  # fmt: skip
