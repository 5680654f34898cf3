"""Answers to Lab 0's send_recv: wrong ones, each with the hint that it must get, and right ones,
unlike each other."""

import torch
import torch.distributed as dist


def sends_first(tensor, to, frm):
    out = torch.empty_like(tensor)
    if to == dist.get_rank():
        return tensor.clone()
    dist.send(tensor, to)
    dist.recv(out, frm)
    return out


def receives_first(tensor, to, frm):
    out = torch.empty_like(tensor)
    if to == dist.get_rank():
        return tensor.clone()
    dist.recv(out, frm)
    dist.send(tensor, to)
    return out


def even_ranks_send_first(tensor, to, frm):
    out, rank = torch.empty_like(tensor), dist.get_rank()
    if to == rank:
        return tensor.clone()
    if rank % 2 == 0:
        dist.send(tensor, to)
        dist.recv(out, frm)
    else:
        dist.recv(out, frm)
        dist.send(tensor, to)
    return out


def only_rank_0_sends_first(tensor, to, frm):
    out, rank = torch.empty_like(tensor), dist.get_rank()
    if to == rank:
        return tensor.clone()
    if rank == 0:
        dist.send(tensor, to)
        dist.recv(out, frm)
    else:
        dist.recv(out, frm)
        dist.send(tensor, to)
    return out


def swaps_to_and_frm(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty_like(tensor)
    work = dist.isend(tensor, frm)
    dist.recv(out, to)
    work.wait()
    return out


def returns_its_own(tensor, to, frm):
    return tensor


def leaves_its_send(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty_like(tensor)
    dist.isend(tensor, to)
    dist.recv(out, frm)
    return out


def leaves_its_receive(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty_like(tensor)
    coming = dist.irecv(out, frm)
    dist.isend(tensor, to).wait()
    return out if coming else None


def receives_into_the_input(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    work = dist.isend(tensor.clone(), to)
    dist.recv(tensor, frm)
    work.wait()
    return tensor


def receives_into_float32(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty(tensor.shape)
    work = dist.isend(tensor, to)
    dist.recv(out, frm)
    work.wait()
    return out


def calls_all_gather(tensor, to, frm):
    everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, tensor)
    return everything[frm]


def calls_lib(tensor, to, frm):
    from lib.collectives import p2p

    return p2p.send_recv(tensor, to, frm)


def sends_to_everyone(tensor, to, frm):
    rank, out = dist.get_rank(), torch.empty_like(tensor)
    others = [r for r in range(dist.get_world_size()) if r != rank]
    works = [dist.isend(tensor, r) for r in others]
    boxes = {r: torch.empty_like(tensor) for r in others}
    for r in others:
        dist.recv(boxes[r], r)
    for work in works:
        work.wait()
    out.copy_(boxes.get(frm, tensor))
    return out


def forgets_to_return(tensor, to, frm):
    if to != dist.get_rank():
        work = dist.isend(tensor, to)
        dist.recv(torch.empty_like(tensor), frm)
        work.wait()


def forgets_to_receive(tensor, to, frm):
    return torch.zeros_like(tensor)


def sends_to_itself(tensor, to, frm):
    out = torch.empty_like(tensor)
    work = dist.isend(tensor, to)
    dist.recv(out, frm)
    work.wait()
    return out


def batches_to_itself(tensor, to, frm):
    out = torch.empty_like(tensor)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, to), dist.P2POp(dist.irecv, out, frm)]
    ):
        work.wait()
    return out


def hears_from_whom_it_sends_to(tensor, to, frm):
    return with_a_batch(tensor, to, to)


def not_written(tensor, to, frm):
    raise NotImplementedError


WRONG = {
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
    leaves_its_send: "a send that nobody waits for",
    leaves_its_receive: "a message that nobody waits for",
    not_written: "not written",
}


def with_isend(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty_like(tensor)
    work = dist.isend(tensor, to)
    dist.recv(out, frm)
    work.wait()
    return out


def with_an_order(tensor, to, frm):
    """Along any closed chain of ranks somebody sends upward and somebody downward: those
    two break the cycle."""
    rank, out = dist.get_rank(), torch.empty_like(tensor)
    if to == rank:
        return tensor.clone()
    if rank < to:
        dist.send(tensor, to)
        dist.recv(out, frm)
    else:
        dist.recv(out, frm)
        dist.send(tensor, to)
    return out


def with_a_batch(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty_like(tensor)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, out, frm), dist.P2POp(dist.isend, tensor, to)]
    ):
        work.wait()
    return out


def with_isend_and_irecv(tensor, to, frm):
    if to == dist.get_rank():
        return tensor.clone()
    out = torch.empty_like(tensor)
    for work in (dist.irecv(out, frm), dist.isend(tensor, to)):
        work.wait()
    return out


RIGHT = [with_isend, with_an_order, with_a_batch, with_isend_and_irecv]
