"""Answers to Lab 0's send_recv: wrong ones, each with the hint that it must get, and right ones,
unlike each other."""

import torch
import torch.distributed as dist


def at(group, rank):
    """The global rank of a rank of the group."""
    return rank if group is None else dist.get_global_rank(group, rank)


def room(tensor, out):
    return torch.empty_like(tensor) if out is None else out


def copied(tensor, out):
    return tensor.clone() if out is None else out.copy_(tensor)


def sends_first(tensor, to, frm, group=None, out=None):
    out = room(tensor, out)
    if to == dist.get_rank(group):
        return copied(tensor, out)
    dist.send(tensor, at(group, to), group)
    dist.recv(out, at(group, frm), group)
    return out


def buffer_like_its_own(tensor, to, frm, group=None, out=None):
    """It receives into a buffer like `tensor`, though `out` may have another length."""
    mine = torch.empty_like(tensor)
    if to == dist.get_rank(group):
        mine.copy_(tensor)
    else:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, at(group, to), group),
                dist.P2POp(dist.irecv, mine, at(group, frm), group),
            ]
        )
        for work in works:
            work.wait()
    return mine if out is None else out.copy_(mine)


def copies_to_itself_past_out(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return tensor.clone()
    out = room(tensor, out)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, at(group, to), group),
            dist.P2POp(dist.irecv, out, at(group, frm), group),
        ]
    )
    for work in works:
        work.wait()
    return out


def receives_first(tensor, to, frm, group=None, out=None):
    out = room(tensor, out)
    if to == dist.get_rank(group):
        return copied(tensor, out)
    dist.recv(out, at(group, frm), group)
    dist.send(tensor, at(group, to), group)
    return out


def even_ranks_send_first(tensor, to, frm, group=None, out=None):
    out, rank = room(tensor, out), dist.get_rank(group)
    if to == rank:
        return copied(tensor, out)
    if rank % 2 == 0:
        dist.send(tensor, at(group, to), group)
        dist.recv(out, at(group, frm), group)
    else:
        dist.recv(out, at(group, frm), group)
        dist.send(tensor, at(group, to), group)
    return out


def only_rank_0_sends_first(tensor, to, frm, group=None, out=None):
    out, rank = room(tensor, out), dist.get_rank(group)
    if to == rank:
        return copied(tensor, out)
    if rank == 0:
        dist.send(tensor, at(group, to), group)
        dist.recv(out, at(group, frm), group)
    else:
        dist.recv(out, at(group, frm), group)
        dist.send(tensor, at(group, to), group)
    return out


def swaps_to_and_frm(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    out = room(tensor, out)
    work = dist.isend(tensor, at(group, frm), group)
    dist.recv(out, at(group, to), group)
    work.wait()
    return out


def returns_its_own(tensor, to, frm, group=None, out=None):
    return tensor


def leaves_its_send(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    out = room(tensor, out)
    dist.isend(tensor, at(group, to), group)
    dist.recv(out, at(group, frm), group)
    return out


def leaves_its_receive(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    out = room(tensor, out)
    coming = dist.irecv(out, at(group, frm), group)
    dist.isend(tensor, at(group, to), group).wait()
    return out if coming else None


def receives_into_the_input(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    into = tensor if out is None else out
    work = dist.isend(tensor.clone(), at(group, to), group)
    dist.recv(into, at(group, frm), group)
    work.wait()
    return into


def receives_into_float32(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    out = torch.empty(tensor.shape)
    work = dist.isend(tensor, at(group, to), group)
    dist.recv(out, at(group, frm), group)
    work.wait()
    return out


def calls_all_gather(tensor, to, frm, group=None, out=None):
    everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everything, tensor, group)
    return everything[frm]


def calls_lib(tensor, to, frm, group=None, out=None):
    from lib.collectives import p2p

    return p2p.send_recv(tensor, to, frm, group, out)


def sends_to_everyone(tensor, to, frm, group=None, out=None):
    if out is not None:
        return with_a_batch(tensor, to, frm, group, out)
    rank, out = dist.get_rank(group), room(tensor, out)
    others = [r for r in range(dist.get_world_size(group)) if r != rank]
    works = [dist.isend(tensor, at(group, r), group) for r in others]
    boxes = {r: torch.empty_like(tensor) for r in others}
    for r in others:
        dist.recv(boxes[r], at(group, r), group)
    for work in works:
        work.wait()
    out.copy_(boxes.get(frm, tensor))
    return out


def forgets_to_return(tensor, to, frm, group=None, out=None):
    if to != dist.get_rank(group):
        work = dist.isend(tensor, at(group, to), group)
        dist.recv(torch.empty_like(tensor), at(group, frm), group)
        work.wait()


def forgets_to_receive(tensor, to, frm, group=None, out=None):
    return torch.zeros_like(tensor)


def sends_to_itself(tensor, to, frm, group=None, out=None):
    out = room(tensor, out)
    work = dist.isend(tensor, at(group, to), group)
    dist.recv(out, at(group, frm), group)
    work.wait()
    return out


def batches_to_itself(tensor, to, frm, group=None, out=None):
    out = room(tensor, out)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, group=group, group_peer=to),
            dist.P2POp(dist.irecv, out, group=group, group_peer=frm),
        ]
    ):
        work.wait()
    return out


def hears_from_whom_it_sends_to(tensor, to, frm, group=None, out=None):
    return with_a_batch(tensor, to, to, group, out)


def not_written(tensor, to, frm, group=None, out=None):
    raise NotImplementedError


def ignores_the_group(tensor, to, frm, group=None, out=None):
    return with_a_batch(tensor, to, frm, None, out)


def takes_global_ranks(tensor, to, frm, group=None, out=None):
    out = room(tensor, out)
    if to == dist.get_rank():
        return copied(tensor, out)
    work = dist.isend(tensor, to, group=group)
    dist.recv(out, frm, group=group)
    work.wait()
    return out


def ignores_out(tensor, to, frm, group=None, out=None):
    return with_a_batch(tensor, to, frm, group, None if out is None else torch.empty_like(out))


def receives_as_many_as_it_sends(tensor, to, frm, group=None, out=None):
    got = with_a_batch(tensor, to, frm, group)
    return got if out is None else out.copy_(got)


WRONG = {
    ignores_the_group: "ranks of the group",
    takes_global_ranks: "ranks of the group",
    ignores_out: "out not filled",
    copies_to_itself_past_out: "out not filled",
    buffer_like_its_own: "a buffer like the tensor",
    receives_as_many_as_it_sends: "a buffer like the tensor",
    sends_first: "everyone sends first",
    receives_first: "everyone receives first",
    hears_from_whom_it_sends_to: "received from another rank",
    even_ranks_send_first: "an order that only some patterns allow",
    only_rank_0_sends_first: "an order that only some patterns allow",
    swaps_to_and_frm: "the wrong direction",
    returns_its_own: "nothing was received",
    receives_into_the_input: "received into the input",
    receives_into_float32: "a buffer of the wrong form",
    calls_all_gather: "called what it builds",
    calls_lib: "called what it builds",
    sends_to_everyone: "sent more than needed",
    forgets_to_return: "nothing returned",
    forgets_to_receive: "nothing was written",
    sends_to_itself: "a message to itself",
    batches_to_itself: "a message to itself",
    leaves_its_send: "a message that nobody waits for",
    leaves_its_receive: "a message that nobody waits for",
    not_written: "not written",
}


def with_isend(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    out = room(tensor, out)
    work = dist.isend(tensor, at(group, to), group)
    dist.recv(out, at(group, frm), group)
    work.wait()
    return out


def with_an_order(tensor, to, frm, group=None, out=None):
    """Along any closed chain of ranks somebody sends upward and somebody downward: those
    two break the cycle."""
    rank, out = dist.get_rank(group), room(tensor, out)
    if to == rank:
        return copied(tensor, out)
    if rank < to:
        dist.send(tensor, at(group, to), group)
        dist.recv(out, at(group, frm), group)
    else:
        dist.recv(out, at(group, frm), group)
        dist.send(tensor, at(group, to), group)
    return out


def with_a_batch(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    out = room(tensor, out)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, out, group=group, group_peer=frm),
            dist.P2POp(dist.isend, tensor, group=group, group_peer=to),
        ]
    ):
        work.wait()
    return out


def with_isend_and_irecv(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return copied(tensor, out)
    out = room(tensor, out)
    for work in (dist.irecv(out, at(group, frm), group), dist.isend(tensor, at(group, to), group)):
        work.wait()
    return out


RIGHT = [with_isend, with_an_order, with_a_batch, with_isend_and_irecv]
