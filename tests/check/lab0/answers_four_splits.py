"""Answers to Lab 0's four_splits, function by function: wrong ones, each with the hint that it must
get, right ones."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def ranks():
    return dist.get_rank(), dist.get_world_size()


def gathered(mine):
    pieces = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, mine)
    return pieces


# rows: wrong


def all_rows(x, w):
    return x @ w


def all_rows_then_cuts(x, w):
    rank, world_size = ranks()
    return (x @ w).tensor_split(world_size)[rank]


def gathers_and_drops(x, w):
    rank, world_size = ranks()
    mine = x.tensor_split(world_size)[rank] @ w
    return gathered(mine)[rank]


def rows_without_a_product(x, w):
    rank, world_size = ranks()
    mine = x.tensor_split(world_size)[rank]
    return (mine[:, :, None] * w[None]).sum(1)


def prints_rows(x, w):
    rank, world_size = ranks()
    print(x.tensor_split(world_size)[rank] @ w)


def not_written(x, w):
    raise NotImplementedError


# rows: right


def rows_by_chunk(x, w):
    return x.chunk(dist.get_world_size())[dist.get_rank()].matmul(w)


def rows_by_index(x, w):
    rank, world_size = ranks()
    rows = len(x) // world_size
    return F.linear(x[rank * rows : (rank + 1) * rows], w.T)


def row_after_row(x, w):
    rank, world_size = ranks()
    return torch.stack([row @ w for row in x.tensor_split(world_size)[rank]])


# columns: wrong


def own_columns(x, w):
    rank, world_size = ranks()
    return x @ w.tensor_split(world_size, dim=1)[rank]


def adds_zeros(x, w):
    rank, world_size = ranks()
    y = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
    y.tensor_split(world_size, dim=1)[rank].copy_(own_columns(x, w))
    dist.all_reduce(y)
    return y


def one_broadcast_per_rank(x, w):
    mine, (rank, world_size) = own_columns(x, w), ranks()
    pieces = [mine if r == rank else torch.empty_like(mine) for r in range(world_size)]
    for r in range(world_size):
        dist.broadcast(pieces[r], r)
    return torch.cat(pieces, dim=1)


def all_columns_then_gathers(x, w):
    rank, world_size = ranks()
    mine = (x @ w).tensor_split(world_size, dim=1)[rank].contiguous()
    return torch.cat(gathered(mine), dim=1)


def gathers_into_float32(x, w):
    mine = own_columns(x, w)
    pieces = [torch.empty(mine.shape) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, mine)
    return torch.cat(pieces, dim=1)


def columns_from_lib(x, w):
    from lib.tensor_parallel import splits

    return splits.split_columns(x, w)


def prints_columns(x, w):
    print(torch.cat(gathered(own_columns(x, w)), dim=1))


# columns: right


def columns_into_one_tensor(x, w):
    """The transpose is gathered row by row, in one tensor."""
    mine = own_columns(x, w).T.contiguous()  # (M/N, B)
    whole = mine.new_empty(w.shape[1], len(x))  # (M, B)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    gather(whole, mine)
    return whole.T


def columns_in_place(x, w):
    """The pieces are views of one tensor, and the gather does not wait."""
    rank, world_size = ranks()
    width = w.shape[1] // world_size
    mine = torch.einsum("bk,km->bm", x, w[:, rank * width : (rank + 1) * width])
    stack = mine.new_empty(world_size, *mine.shape)  # (N, B, M/N)
    work = dist.all_gather(list(stack), mine.contiguous(), async_op=True)
    work.wait()
    return stack.permute(1, 0, 2).reshape(len(x), -1)


# inner: wrong


def partial_sum(x, w):
    rank, world_size = ranks()
    return x.tensor_split(world_size, dim=1)[rank] @ w.tensor_split(world_size)[rank]


def gathers_and_adds(x, w):
    return sum(gathered(partial_sum(x, w)))


def reduces_and_broadcasts(x, w):
    y = partial_sum(x, w)
    dist.reduce(y, 0)
    dist.broadcast(y, 0)
    return y


def averages_whole_products(x, w):
    y = x @ w
    dist.all_reduce(y)
    return y / dist.get_world_size()


def by_chunk(x, w):
    rank, world_size = ranks()
    y = x.chunk(world_size, dim=1)[rank] @ w.chunk(world_size)[rank]
    dist.all_reduce(y)
    return y


def inner_from_lib(x, w):
    from lib.tensor_parallel import splits

    return splits.split_inner(x, w)


def adds_and_returns_nothing(x, w):
    dist.all_reduce(partial_sum(x, w))


# inner: right


def every_nth_term(x, w):
    rank, world_size = ranks()
    y = x[:, rank::world_size] @ w[rank::world_size]
    dist.all_reduce(y)
    return y


def term_after_term(x, w):
    rank, world_size = ranks()
    y = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
    for k in torch.arange(len(w)).tensor_split(world_size)[rank].tolist():
        y = torch.addmm(y, x[:, k : k + 1], w[k : k + 1])
    dist.all_reduce(y, async_op=True).wait()
    return y


# pipeline: wrong


def my_layers(layers):
    rank, world_size = ranks()
    count = len(layers) // world_size
    return layers[rank * count : (rank + 1) * count]


def relay(x, layers):
    """Right, and used by the wrong ones below."""
    rank, world_size = ranks()
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, rank - 1)
    for layer in layers:
        x = x @ layer
    if rank < world_size - 1:
        dist.send(x, rank + 1)
    return x


def rank_0_receives(x, layers):
    rank, world_size = ranks()
    h = torch.empty_like(x)
    dist.recv(h, (rank - 1) % world_size)
    for layer in my_layers(layers):
        h = h @ layer
    dist.send(h, (rank + 1) % world_size)
    return h


def rank_0_receives_from_minus_1(x, layers):
    rank, world_size = ranks()
    h = torch.empty_like(x)
    dist.recv(h, rank - 1)
    for layer in my_layers(layers):
        h = h @ layer
    if rank < world_size - 1:
        dist.send(h, rank + 1)
    return h


def sends_nothing(x, layers):
    rank = dist.get_rank()
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, rank - 1)
    for layer in my_layers(layers):
        x = x @ layer
    return x


def last_rank_sends_too(x, layers):
    rank, world_size = ranks()
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, rank - 1)
    for layer in my_layers(layers):
        x = x @ layer
    dist.send(x, (rank + 1) % world_size)
    return x


def last_rank_sends_to_nobody(x, layers):
    rank = dist.get_rank()
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, rank - 1)
    for layer in my_layers(layers):
        x = x @ layer
    dist.send(x, rank + 1)
    return x


def broadcasts(x, layers):
    for stage in range(dist.get_world_size()):
        if dist.get_rank() == stage:
            for layer in my_layers(layers):
                x = x @ layer
            left = x
        x = x.clone()
        dist.broadcast(x, stage)
    return left


def whole_work_then_relay(x, layers):
    rank, world_size = ranks()
    h = x
    for layer in layers[: len(layers) // world_size * (rank + 1)]:
        h = h @ layer
    if rank > 0:
        dist.recv(torch.empty_like(x), rank - 1)
    if rank < world_size - 1:
        dist.send(h, rank + 1)
    return h


def pipeline_from_lib(x, layers):
    from lib.tensor_parallel import splits

    return splits.pipeline(x, layers)


def only_the_last_returns(x, layers):
    out = relay(x, my_layers(layers))
    return out if dist.get_rank() == dist.get_world_size() - 1 else None


# pipeline: right


def relay_of_my_layers(x, layers):
    return relay(x, my_layers(layers))


def relay_without_waiting(x, layers):
    rank, world_size = ranks()
    works, h = [], x
    if rank > 0:
        h = torch.empty_like(x)
        dist.irecv(h, rank - 1).wait()
    for layer in my_layers(layers):
        h = torch.mm(h, layer)
    if rank + 1 < world_size:
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, h, rank + 1)])
    for work in works:
        work.wait()
    return h


def relay_by_lib_p2p(x, layers):
    from lib.collectives import p2p

    rank, world_size = ranks()
    h = x if rank == 0 else p2p.recv(torch.empty_like(x), rank - 1)
    for layer in my_layers(layers):
        h = h @ layer
    if rank < world_size - 1:
        p2p.send(h, rank + 1)
    return h


WRONG = {
    "split_rows": {
        all_rows_then_cuts: "everyone computes everything",
        gathers_and_drops: "sent what nobody needs",
        rows_without_a_product: "a product that cannot be counted",
        prints_rows: "nothing returned",
        not_written: "not written",
    },
    "split_columns": {
        adds_zeros: "all-reduced with zeros",
        one_broadcast_per_rank: "more than one all-gather",
        all_rows: "everyone computes everything",
        all_columns_then_gathers: "everyone computes everything",
        gathers_into_float32: "a buffer of the wrong dtype",
        columns_from_lib: "called lib's",
        prints_columns: "nothing returned",
        not_written: "not written",
    },
    "split_inner": {
        gathers_and_adds: "gathered and added",
        reduces_and_broadcasts: "more than one collective",
        averages_whole_products: "everyone computes everything",
        by_chunk: "chunk gave too few pieces",
        inner_from_lib: "called lib's",
        adds_and_returns_nothing: "nothing returned",
        not_written: "not written",
    },
    "pipeline": {
        rank_0_receives: "rank 0 waits for somebody",
        rank_0_receives_from_minus_1: "no such rank",
        sends_nothing: "nothing was sent on",
        last_rank_sends_too: "the last rank sends",
        last_rank_sends_to_nobody: "no such rank",
        broadcasts: "told everybody",
        whole_work_then_relay: "everyone computes everything",
        pipeline_from_lib: "called lib's",
        only_the_last_returns: "nothing returned",
        not_written: "not written",
    },
}

RIGHT = {
    "split_rows": [rows_by_chunk, rows_by_index, row_after_row],
    "split_columns": [columns_into_one_tensor, columns_in_place],
    "split_inner": [every_nth_term, term_after_term],
    "pipeline": [relay_of_my_layers, relay_without_waiting, relay_by_lib_p2p],
}
