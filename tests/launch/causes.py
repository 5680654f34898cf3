"""Programs with a mistake that people make, in variations. test_causes.py says what
must be named."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def me():
    return dist.get_rank(), dist.get_world_size()


def total(group):
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return x.item()


# Groups that not every rank makes, or not in one order


def makes_only_its_own():
    rank, _ = me()
    group = dist.new_group([0, 3] if rank in (0, 3) else [1, 2])
    dist.barrier(group=group)
    return total(group)


def makes_them_in_another_order():
    rank, _ = me()
    groups = {}
    for first in (0, 2) if rank < 2 else (2, 0):
        groups[first] = dist.new_group([first, first + 1])
    return total(groups[rank // 2 * 2])


def makes_rows_and_columns_in_a_loop_of_its_own():
    """A 2 x 2 mesh: every rank makes its row's group and its column's, and no other."""
    rank, _ = me()
    row = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1])
    column = dist.new_group([rank % 2, rank % 2 + 2])
    return total(row) + total(column)


def makes_an_embedding_group_in_between():
    """Ranks at the ends of a pipeline make one more, before those that all of them make."""
    rank, _ = me()
    if rank in (0, 3):
        dist.new_group([0, 3])
    pairs = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
    return total(pairs[rank // 2])


def makes_one_without_the_last_rank_by_its_count():
    """The group of all ranks that have data, which each rank counts for itself."""
    rank, world_size = me()
    with_data = list(range(world_size if rank == 0 else world_size - 1))
    group = dist.new_group(with_data)
    return total(group) if rank in with_data else 0.0


def makes_those_with_its_neighbours_in_a_line():
    """A pipeline's links: the first rank has none on its left, the last none on its right."""
    rank, world_size = me()
    links = [[left, left + 1] for left in (rank - 1, rank) if 0 <= left < world_size - 1]
    return sum(total(dist.new_group(link)) for link in links)


def makes_its_own_first():
    rank, _ = me()
    pairs = sorted([[0, 1], [2, 3]], key=lambda pair: rank not in pair)
    groups = {tuple(pair): dist.new_group(pair) for pair in pairs}
    return sum(total(group) for pair, group in groups.items() if rank in pair)


def makes_it_among_the_members_only():
    """gloo lets that pass."""
    rank, _ = me()
    if rank < 2:
        return total(dist.new_group([0, 1]))
    return 0.0


# Messages whose tags differ


def receives_in_another_order():
    rank, _ = me()
    x = torch.ones(1)
    for tag in (1, 2) if rank == 0 else (2, 1):
        dist.send(x, 1, tag=tag) if rank == 0 else dist.recv(x, 0, tag=tag)


def counts_its_tags_from_another_number():
    rank, _ = me()
    x = torch.ones(4)
    for step in range(3):
        dist.send(x, 1, tag=step) if rank == 0 else dist.recv(x, 0, tag=step + 1)


def tags_by_its_own_rank():
    rank, world_size = me()
    x = torch.ones(4)
    if rank > 0:
        dist.recv(x, rank - 1, tag=rank)
    if rank < world_size - 1:
        dist.send(x, rank + 1, tag=rank)


def forgets_the_tag_of_the_receive():
    rank, _ = me()
    x = torch.ones(4)
    dist.send(x, 1, tag=7) if rank == 0 else dist.recv(x, 0)


def gives_gradients_another_tag_on_their_way_back():
    """Activations have tag 0 and gradients tag 1: the first stage's receive was
    written for activations."""
    rank, _ = me()
    x = torch.ones(4)
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(x, 0, tag=1)


def forgets_the_tag_of_the_send():
    rank, _ = me()
    x = torch.ones(4)
    dist.all_reduce(x)
    dist.send(x, 0) if rank == 1 else dist.recv(x, 1, tag=7)


# Collectives whose parts do not fit


def expects_more_rows_than_it_is_given():
    rank, _ = me()
    gives = [[1, 2], [3, 0]][rank]
    expects = [[1, 3], [3, 0]][rank]
    got = torch.empty(sum(expects), 2)
    dist.all_to_all_single(got, torch.ones(3, 2), expects, gives)


def expects_fewer_rows_than_it_is_given():
    """gloo ends the process."""
    rank, _ = me()
    gives, expects = [[[1, 2], [1, 3]], [[3, 0], [1, 0]]][rank]
    got = torch.empty(sum(expects), 4)
    dist.all_to_all_single(got, torch.ones(3, 4), expects, gives)


def takes_its_own_counts_for_those_of_others():
    """Tokens to experts: each rank expects as many from a rank as it sends there."""
    rank, _ = me()
    counts = [[2, 0, 3], [0, 1, 3], [1, 2, 0]][rank]
    got = torch.empty(sum(counts), 2)
    dist.all_to_all_single(got, torch.ones(sum(counts), 2), counts, counts)


def allocates_a_list_by_its_own_lengths():
    rank, world_size = me()
    given = [torch.ones(3 + rank + r) for r in range(world_size)]
    dist.all_to_all([torch.empty(4 + rank - r) for r in range(world_size)], given)


def gathers_lengths_as_long_as_its_own():
    """The last sentences of a data set: each rank's batch has another length."""
    rank, world_size = me()
    mine = torch.ones(5 if rank == 0 else 4)
    dist.all_gather([torch.empty_like(mine) for _ in range(world_size)], mine)


def gathers_to_one_rank_that_made_no_room():
    rank, world_size = me()
    mine = torch.ones(4 if rank == 2 else 3)
    dist.gather(mine, [torch.empty(3) for _ in range(world_size)] if rank == 0 else None)


def keeps_the_counts_of_the_first_step():
    """Tokens to experts: exchanged once, and the routing changes with every batch."""
    rank, _ = me()
    expects = torch.empty(2, dtype=torch.int64)
    for step in range(2):
        gives = [[[2, 2], [1, 1]], [[1, 3], [1, 1]]][step][rank]
        if step == 0:
            dist.all_to_all_single(expects, torch.tensor(gives))
        takes = expects.tolist()
        dist.all_to_all_single(torch.empty(sum(takes), 3), torch.ones(sum(gives), 3), takes, gives)


def gathers_a_last_batch_that_is_shorter_on_one_rank():
    rank, world_size = me()
    for step in range(3):
        mine = torch.ones(3 if (rank, step) == (1, 2) else 4, 2)
        dist.all_gather(
            [torch.empty(4, 2) for _ in range(world_size)] if rank == 0 else [mine.clone()] * 2,
            mine,
        )


def forgets_to_split_evenly_on_one_rank():
    """No split sizes: an equal share for each."""
    rank, _ = me()
    got = torch.empty(4)
    dist.all_to_all_single(got, torch.ones(4), None, [3, 1] if rank == 0 else None)


# Works that are never waited for


def receives_and_forgets():
    rank, _ = me()
    x = torch.zeros(1)
    dist.send(x + 1, 1) if rank == 0 else dist.irecv(x, 0)
    return x.item()


def receives_into_a_list():
    rank, _ = me()
    got = []
    for step in range(3):
        if rank == 0:
            dist.send(torch.ones(1) * step, 1)
        else:
            got.append(torch.empty(1))
            dist.irecv(got[-1], 0)
    return len(got)


def reduces_and_forgets():
    rank, _ = me()
    x = torch.ones(1000) * (1 + rank)
    dist.all_reduce(x, async_op=True)
    return x.sum().item()


def waits_for_the_last_of_its_buckets():
    buckets = [torch.ones(10) for _ in range(4)]
    for bucket in buckets:
        work = dist.all_reduce(bucket, async_op=True)
    work.wait()


def gathers_ahead_and_leaves_early():
    """Prefetching: the next layer's weights are asked for, and there is no next layer."""
    world_size = dist.get_world_size()
    full = [torch.empty(world_size) for _ in range(3)]
    work = dist.all_gather_into_tensor(full[0], torch.ones(1), async_op=True)
    for layer in range(2):
        work.wait()
        work = dist.all_gather_into_tensor(full[layer + 1], torch.ones(1), async_op=True)


def broadcasts_its_weights_and_trains_at_once():
    model = nn.Linear(4, 2)
    for p in model.parameters():
        dist.broadcast(p.data, 0, async_op=True)
    return model(torch.ones(1, 4)).sum().item()


def begins_a_batch_of_messages():
    other = 1 - dist.get_rank()
    x, y = torch.ones(4), torch.empty(4)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
    )
    return len(works), y.sum().item()


def sends_round_a_ring_and_waits_for_the_receives_alone():
    """The works of the sends are kept: of one that is dropped, gloo may drop the message."""
    rank, world_size = me()
    x, y = torch.ones(4), torch.empty(4)
    sends = [dist.isend(x, (rank + 1) % world_size)]
    dist.irecv(y, (rank - 1) % world_size).wait()
    dist.barrier()
    return len(sends)


# Mistakes inside of torch's own wrappers


class Experts(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.gate = nn.Linear(8, n)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(n))

    def forward(self, x, chosen):
        out = 0 * self.gate(x).sum()
        for i in chosen:
            out = out + self.experts[i](x)
        return out


def experts(sharded=True):
    torch.manual_seed(0)
    model = Experts()
    for expert in model.experts if sharded else ():
        fully_shard(expert)
    return fully_shard(model) if sharded else nn.parallel.DistributedDataParallel(model)


def an_expert_without_tokens_is_skipped_under_fsdp():
    experts()(torch.ones(4, 8), [0, 1, 2] if dist.get_rank() == 0 else [0, 2]).sum().backward()


def each_rank_calls_another_expert_under_fsdp():
    """As many of the same size: nothing hangs, and each rank computes with half of one and
    half of the other."""
    return experts()(torch.ones(4, 8), [0, 1] if dist.get_rank() == 0 else [0, 2]).sum().item()


def blocks_in_another_order_on_one_rank_under_fsdp():
    """As with stochastic depth, where each rank draws its own."""
    return experts()(torch.ones(4, 8), [0, 2] if dist.get_rank() == 0 else [2, 0]).sum().item()


def an_evaluation_on_one_rank_under_fsdp():
    model = experts()
    model(torch.ones(4, 8), [0, 1, 2]).sum().backward()
    if dist.get_rank() == 0:
        model(torch.ones(4, 8), [1])
    dist.barrier()


def an_expert_without_tokens_is_skipped_under_ddp():
    model = experts(sharded=False)
    for _ in range(2):
        model(torch.ones(4, 8), [0, 1, 2] if dist.get_rank() == 0 else [0, 2]).sum().backward()


def a_head_is_never_used_under_ddp():
    model = experts(sharded=False)
    for _ in range(2):
        model(torch.ones(4, 8), [0]).sum().backward()


def another_shape_on_one_rank_under_ddp():
    nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4 + dist.get_rank()))
    )


def a_batch_more_on_one_rank_under_ddp():
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    for _ in range(1 + (dist.get_rank() == 0)):
        model(torch.ones(2, 4)).sum().backward()


def tensor_parallel_block():
    mesh = init_device_mesh("cpu", (2,))
    block = nn.ModuleDict({"up": nn.Linear(4, 8), "down": nn.Linear(8, 4)})
    return parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def a_layer_skipped_on_one_rank_with_dtensor():
    block = tensor_parallel_block()
    model = nn.Sequential(*block.values())
    for _ in range(1 + (dist.get_rank() == 0)):
        model(torch.ones(2, 4))
    dist.barrier()
