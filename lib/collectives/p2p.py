"""Send and receive: the two operations everything else in this course is made of.

    rank 0                      rank 1
    send(x, to=1)   --- x -->   recv(out, frm=0)

This is the only file of the package that calls torch's own sends and receives.

Here and in every collective, `to`, `frm`, `src` and `dst` are ranks *within* `group` (0 ..
world_size-1 of that group). In the group of the global ranks (2, 5, 7), rank 1 is global rank 5.
`group=None` is the whole world.

Both sides of a message must agree on dtype and number of elements; only the elements are sent.
Messages from one rank to another arrive in the order they were sent. Tensors may be empty (an empty
message is still a message), non-contiguous, or leaves that require grad; no gradient flows through
a message.

gloo's sends are rendezvous: a send ends only after its receive has been posted. Two ranks that both
send first and wait would therefore wait for each other for ever. So `send_recv` and `exchange` post
all their sends and receives before they wait for any of them.
"""

import contextlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, torch_private
from lib.collectives import background
from lib.collectives.uncompiled import uncompiled

_delay = None  # in `delayed`: called before messages are posted


def send(tensor: Tensor, to: int, group: Group = None) -> None:
    """Send `tensor` to rank `to` of `group`; returns when `tensor` may be changed again."""
    post([(tensor, to)], [], group).wait()


def recv(out: Tensor, frm: int, group: Group = None) -> Tensor:
    """Fill `out` with what rank `frm` of `group` sends (the same number of elements, of the same
    dtype); returns `out`."""
    post([], [(out, frm)], group).wait()
    return out


# exercise: lab0.send_recv
def send_recv(
    tensor: Tensor, to: int, frm: int, group: Group = None, out: Tensor | None = None
) -> Tensor:
    """Send `tensor` to rank `to` while receiving from rank `frm`; returns what was received.

    out: the tensor to receive into; pass one if its shape differs from `tensor`'s, or to reuse a
    buffer. None: a new tensor.
    """
    if out is None:
        out = torch.empty_like(tensor, requires_grad=False)
    post([(tensor, to)], [(out, frm)], group).wait()
    return out


def exchange(
    sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]], group: Group = None
) -> None:
    """Run several sends [(tensor, to), ...] and receives [(out, frm), ...] at once; returns when
    all are done."""
    post(sends, receives, group).wait()


@uncompiled
def post(
    sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]], group: Group = None
) -> "Pending":
    """Begin several sends and receives; returns a Pending whose `wait()` completes them all.

    Until then no sent tensor may be changed and no received one read. A send to oneself is a copy,
    made at once. Raises ValueError for a rank that `group` does not have, a tensor on a device that
    it does not reach, a receive from oneself without its send, or a `group` that this rank is not
    in. Raises RuntimeError if the communication thread is using `group` (background.py).
    """
    if not sends and not receives:
        return Pending([], [])
    group = dist.group.WORLD if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"global rank {dist.get_rank()} is not in this group: only its members may use it"
        )
    if background.in_use:
        background.check_may_use(group)
    if _delay is not None:
        _delay(sends, group)
    rank, world_size = group.rank(), group.size()
    # whether all messages can be started as one batch: NCCL can, gloo cannot
    coalesces = _backend(group, (sends or receives)[0][0].device).supports_coalescing

    outbound, inbound, to_self, staged = [], [], [], []
    for tensor, to in sends:
        check_rank("send to", to, world_size)
        if to == rank:
            to_self.append(tensor)
        else:
            outbound.append((_ready_to_send(tensor, coalesces), to))
    for out, frm in receives:
        check_rank("receive from", frm, world_size)
        if frm == rank:
            if not to_self:
                raise ValueError(
                    f"rank {rank} receives from itself, but sends itself nothing: "
                    f"it would wait for ever"
                )
            out.detach().copy_(to_self.pop(0))
            continue
        buffer = _ready_to_receive(out, coalesces)
        inbound.append((buffer, frm))
        if buffer is not out:
            staged.append((out.detach(), buffer))
    return Pending(
        _begin_batch(inbound, outbound, group) if coalesces else _begin(inbound, outbound, group),
        staged,
    )


@contextlib.contextmanager
def delayed(delay):
    """Inside the block `post` first calls delay(sends, group), which may block. `slow_link` uses
    this."""
    global _delay
    before, _delay = _delay, delay
    try:
        yield
    finally:
        _delay = before


def posting_takes_time():
    """Whether `post` returns only when a slow link has let the messages through."""
    return _delay is not None


class Pending:
    """Messages in flight. `wait()` returns when all have been sent and received (on NCCL: the
    current stream waits).

    staged: [(out, buffer), ...], for each `out` that the backend could not receive into directly.
    """

    def __init__(self, works, staged):
        self.works, self.staged = works, staged

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        for out, buffer in self.staged:
            out.copy_(buffer)


def _begin(inbound, outbound, group):
    """Receives are posted before sends, because a send whose receive has been posted can start at
    once.

    dist.irecv and dist.isend would call group.recv and group.send too, after checks that `post` has
    already made. We skip them, because a short message spends most of its time on being started.
    """
    works = []
    for buffer, frm in inbound:
        works.append(group.recv([buffer], frm, 0))
    for tensor, to in outbound:
        works.append(group.send([tensor], to, 0))
    return works


def _begin_batch(inbound, outbound, group):
    """On NCCL, separate sends and receives can deadlock. One batch cannot deadlock if the other
    ranks' batches mirror it.

    At the first message between two ranks NCCL connects them, and each needs the other to post the
    counterpart: a receive for its send, and a send for its receive (NVIDIA/nccl issues 1279 and
    2130). In lib the batches of every exchange mirror each other in this way.
    """
    receives = [dist.P2POp(dist.irecv, x, group=group, group_peer=frm) for x, frm in inbound]
    sends = [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x, to in outbound]
    return dist.batch_isend_irecv(sends + receives) if receives or sends else []


def _ready_to_send(tensor, coalesces):
    """`tensor` in a form that the backend can send: contiguous, and copied to the CPU if gloo has
    to send a CUDA tensor."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_cuda and not coalesces:
        tensor = tensor.cpu()
    return tensor.contiguous()


def _ready_to_receive(out, coalesces):
    """`out` itself if the backend can receive into it, otherwise a buffer that `Pending.wait`
    copies to `out`."""
    via_cpu = out.is_cuda and not coalesces
    if out.is_contiguous() and not via_cpu and not out.requires_grad:
        return out
    return torch.empty(out.shape, dtype=out.dtype, device="cpu" if via_cpu else out.device)


def _backend(group, device):
    try:
        return torch_private.backend_of(group, device)
    except RuntimeError:
        reached = ", ".join(torch_private.device_types(group))
        instead = "move it there"
        if device.type == "meta":
            instead = (
                "it has no memory. Before you wrap the module, call module.to_empty(device=...) "
                "and load it"
            )
        raise ValueError(
            f"the tensor is on {device}, but this group reaches only {reached}: {instead}"
        ) from None


def check_rank(what: str, rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(
            f"{what} rank {rank}: the group has {world_size} ranks, 0 to {world_size - 1} "
            f"(group ranks)"
        )
