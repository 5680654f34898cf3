"""Lab 0, section 4: send_recv(tensor, to, frm), an exchange that does not deadlock."""

import torch
import torch.distributed as dist

from lib import backend, ledger
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.collectives import p2p

# name -> for a rank of N, whom it sends to and whom it hears from. Every rank does both.
PATTERNS = {
    "to the right neighbour": lambda r, n: ((r + 1) % n, (r - 1) % n),
    "to the left neighbour": lambda r, n: ((r - 1) % n, (r + 1) % n),
    "two to the right": lambda r, n: ((r + 2) % n, (r - 2) % n),
    "reversed, 0 with N-1": lambda r, n: (n - 1 - r, n - 1 - r),
}
KINDS = [((3,), torch.float32), ((2, 3), torch.float64), ((5,), torch.int64)]


def _payload(rank, shape, dtype):
    """Values that tell whose they are: 100 * (rank + 1) + 0, 1, 2, ..."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, device=backend.device()) + 100 * (rank + 1)).reshape(shape).to(dtype)


def _measure(fn):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    seen = []
    for pattern, peers in PATTERNS.items():
        to, frm = peers(rank, world_size)
        for shape, dtype in KINDS:
            tensor = _payload(rank, shape, dtype)
            before = tensor.clone()
            ledger.mark(f"{pattern}, {shape}")
            out = fn(tensor, to, frm)
            ledger.mark("")
            if type(out) is not torch.Tensor:
                raise TypeError(f"send_recv returned {'None' if out is None else type(out).__name__}, not a tensor")
            seen.append(
                {
                    "pattern": pattern, "to": to, "frm": frm, "shape": tuple(out.shape), "dtype": out.dtype,
                    "out": out.detach().cpu(), "expected": _payload(frm, shape, dtype).cpu(),
                    "own": before.cpu(), "unchanged": torch.equal(tensor, before), "section": f"{pattern}, {shape}",
                }
            )  # fmt: skip
    return seen


def _what_arrives(runs):
    for run in runs:
        for rank, seen in enumerate(run.results):
            for case in seen:
                case_name = f"{run.world_size} ranks, {case['pattern']}: rank {rank}"
                expected, out = case["expected"], case["out"]
                if out.shape != expected.shape or out.dtype != expected.dtype:
                    return Problem(
                        "form",
                        f"{case_name} got {out.dtype} {tuple(out.shape)}, "
                        f"expected {expected.dtype} {tuple(expected.shape)}",
                    )
                if not torch.equal(out, expected):
                    source = next(
                        (s for s in range(run.world_size) if torch.equal(_payload(s, out.shape, out.dtype).cpu(), out)),
                        None,
                    )
                    got = f"the tensor of rank {source}" if source is not None else str(out.flatten().tolist()[:5])
                    return Problem(
                        "value",
                        f"{case_name} got {got}, expected the tensor of rank {case['frm']}",
                        {"source": source, "rank": rank, "to": case["to"], "frm": case["frm"]},
                    )
    return None


def _what_is_sent(runs):
    for run in runs:
        for rank, seen in enumerate(run.results):
            for case in seen:
                sends = [e for e in run.ledger.section(case["section"]).of(rank) if e.op == "send"]
                expected = [] if case["to"] == rank else [(case["to"], case["own"].numel())]
                sent = [(e.peer, e.numel) for e in sends]
                if sent != expected:
                    words = ", ".join(f"{n} elements to rank {peer}" for peer, n in sent) or "nothing"
                    wanted = ", ".join(f"{n} elements to rank {peer}" for peer, n in expected) or "nothing, to itself"
                    return Problem(
                        "wire",
                        f"{run.world_size} ranks, {case['pattern']}: rank {rank} sent {words}, expected {wanted}",
                        {"sent": sum(n for _, n in sent), "expected": sum(n for _, n in expected)},
                    )
    return None


def _what_is_left_alone(runs):
    for run in runs:
        for rank, seen in enumerate(run.results):
            for case in seen:
                if not case["unchanged"]:
                    return Problem(
                        "input", f"{run.world_size} ranks, {case['pattern']}: rank {rank}'s own tensor was overwritten"
                    )
    return None


def _all_wait_in(op, problem):
    return problem.kind == "deadlock" and problem.text.count(f"waits in {op} ") == problem.facts["world_size"]


EXERCISE = Exercise(
    name="send_recv",
    reference=p2p.send_recv,
    measure=_measure,
    worlds=(2, 3, 4, 5),
    may_call=("send", "recv"),
    claims=(
        Claim("what arrives is what was sent", 6, "2, 3, 4, 5 ranks; neighbours, two away, reversed", _what_arrives),
        Claim("one message per rank", 2, "as many elements as the tensor has; none to itself", _what_is_sent),
        Claim("your own tensor is left alone", 2, "the result is a new tensor", _what_is_left_alone),
    ),
    hints=(
        Hint(
            "everyone sends first",
            lambda p: _all_wait_in("send", p),
            "here dist.send returns only when its receiver has posted a receive, and every rank is still in its send. "
            "Post both at once with dist.batch_isend_irecv, and wait for them afterwards.",
        ),
        Hint(
            "everyone receives first",
            lambda p: _all_wait_in("recv", p),
            "dist.recv returns only when its message is there, and every rank is still in its receive. "
            "Post both at once with dist.batch_isend_irecv, and wait for them afterwards.",
        ),
        Hint(
            "an order that only some patterns allow",
            lambda p: p.kind in ("deadlock", "no progress"),
            "your order of send and receive works for neighbours, but here two ranks that wait for each other chose "
            "the same order. Compare the rank with `to`, or use dist.batch_isend_irecv, which needs no order.",
        ),
        Hint(
            "a message to itself",
            lambda p: p.kind == "raised" and "itself" in p.text,
            "when `to` is the rank itself there is nobody to send to: return a copy.",
        ),
        Hint(
            "the wrong direction",
            lambda p: p.kind == "value" and p.facts["source"] == p.facts["to"],
            "`to` is who gets your tensor, `frm` is whose tensor you get; they are swapped.",
        ),
        Hint(
            "nothing was received",
            lambda p: p.kind == "value" and p.facts["source"] == p.facts["rank"],
            "you return your own tensor. Receive into a new one, torch.empty_like(tensor), and return that.",
        ),
        Hint(
            "nothing was written",
            lambda p: p.kind == "value" and p.facts["source"] is None,
            "the tensor you return was not filled by the receive. With dist.irecv or a batch, wait for every work "
            "before you return.",
        ),
        Hint(
            "a buffer of the wrong form",
            lambda p: p.kind in ("form", "mismatch"),
            "the buffer you receive into has another shape or dtype than what is sent: torch.empty_like(tensor).",
        ),
        Hint(
            "received into the input",
            lambda p: p.kind == "input",
            "you receive into the tensor you were given; the caller still needs it. Use torch.empty_like(tensor).",
        ),
        Hint(
            "called what it builds",
            lambda p: p.kind == "built-in",
            "here you may use only dist.batch_isend_irecv, dist.isend, dist.irecv, dist.send and dist.recv.",
        ),
        Hint(
            "sent more than needed",
            lambda p: p.kind == "wire" and p.facts["sent"] > p.facts["expected"],
            "one message to `to` is enough; a copy to itself needs none.",
        ),
        Hint("nothing returned", lambda p: "returned None" in p.text, "the function must end with `return out`."),
    ),
)
