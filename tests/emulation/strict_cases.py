"""For each of NCCL's rules: code on two ranks that keeps it, code that breaks it, and what must be
said of that.

RIGHT    passes     WRONG    (code, what the error says)    HANGS    (code, threshold, what is told)
"""

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from lib import ledger
from tests.emulation.strict_stream import SPINS


def other():
    return 1 - dist.get_rank()


def messages():
    """This rank's tensor, the works of a batch that swaps it, and where the other's arrives."""
    mine, came = torch.ones(4), torch.zeros(4)
    batch = [dist.P2POp(dist.irecv, came, other()), dist.P2POp(dist.isend, mine, other())]
    return mine, dist.batch_isend_irecv(batch), came


def a_batch_is_waited_for():
    mine, works, came = messages()
    assert len(works) == 1  # of the batch, none of its members
    works[0].wait()
    mine += 1
    assert (came + 1).tolist() == [2.0] * 4


def a_batch_is_read_early():
    _, works, came = messages()
    torch.equal(came, torch.ones(4))
    works[0].wait()


def a_batch_is_listed_early():
    _, works, came = messages()
    came.tolist()
    works[0].wait()


def a_sent_tensor_is_read():
    mine, works, _ = messages()
    assert mine.sum().item() == 4
    works[0].wait()


def a_sent_tensor_is_written():
    mine, works, _ = messages()
    mine.add_(1)
    works[0].wait()


def a_sent_tensor_is_freed():
    mine, works, _ = messages()
    mine.untyped_storage().resize_(0)
    works[0].wait()


def a_tensor_is_freed_after_wait():
    mine, works, came = messages()
    works[0].wait()
    mine.untyped_storage().resize_(0)
    assert came.tolist() == [1.0] * 4


def a_part_of_it_is_written():
    whole = torch.ones(4, 4)
    work = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend if dist.get_rank() else dist.irecv, whole[1], other())]
    )[0]
    whole[2].zero_()  # beside it: allowed
    whole[:, 0] = 5
    work.wait()


def beside_it_is_written():
    whole = torch.ones(4, 4)
    work = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend if dist.get_rank() else dist.irecv, whole[1], other())]
    )[0]
    whole[::2, 0] = 5  # passes row 1 by
    work.wait()


def a_work_is_dropped():
    dist.all_reduce(torch.ones(3), async_op=True)


def a_synchronous_collective_has_no_work():
    x = torch.ones(3)
    work = dist.group.WORLD.allreduce([x], _options())
    assert work is None
    assert x.tolist() == [2.0] * 3


def _options():
    options = dist.AllreduceOptions()
    options.asyncOp = False
    return options


def a_collective_is_read_early():
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    y = x * 2
    work.wait()
    return y


def the_wrong_work_is_waited_for():
    x, y = torch.ones(3), torch.ones(3)
    first, second = dist.all_reduce(x, async_op=True), dist.all_reduce(y, async_op=True)
    first.wait()
    y.sum()
    second.wait()


def what_is_under_way_holds_poison():
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    # read past every op
    assert str(list((ctypes.c_float * 3).from_address(x.data_ptr()))) == "[nan, nan, nan]"
    work.wait()
    assert x.tolist() == [2.0] * 3


def wait_does_not_block_the_host():
    connect()
    if dist.get_rank() == 0:
        x = torch.zeros(2)
        began = time.monotonic()
        work = dist.irecv(x, 1)
        work.wait()
        assert time.monotonic() - began < 0.5 and not work.is_completed()
        assert x.tolist() == [1.0, 1.0] and time.monotonic() - began > 0.5
    else:
        time.sleep(1)
        dist.send(torch.ones(2), 0)


def an_event_ends_with_what_is_before_it():
    connect()
    if dist.get_rank() == 0:
        x = torch.zeros(2)
        dist.irecv(x, 1).wait()
        event = torch.cuda.current_stream(x.device).record_event()
        assert not event.query()
        event.synchronize()
        assert event.query()
    else:
        time.sleep(0.5)
        dist.send(torch.ones(2), 0)


def a_barrier_blocks_the_host():
    time.sleep(0.5 * dist.get_rank())
    came = torch.tensor(time.monotonic(), dtype=torch.float64)
    dist.barrier()
    left = time.monotonic()
    dist.broadcast(came, 1)
    assert came.item() <= left


def connect():
    """Have this rank and the other exchange a first message, each way."""
    _, works, came = messages()
    works[0].wait()
    came.tolist()


def both_send_at_first_contact():
    dist.send(torch.ones(3), other())


def both_receive_at_first_contact():
    dist.recv(torch.ones(3), other())


def the_first_message_blocks_the_host_until_the_other_posts_its_own():
    dist.barrier()
    time.sleep(0.5 * dist.get_rank())
    came = torch.tensor(time.monotonic(), dtype=torch.float64)
    _, works, _ = messages()
    left = time.monotonic()
    works[0].wait()
    dist.broadcast(came, 1)
    assert came.item() <= left


def later_messages_do_not():
    connect()
    if dist.get_rank() == 0:
        _, works, came = messages()
        dist.distributed_c10d._get_default_store().set("posted", "")
    else:
        # waits for it: nothing is posted here until then
        dist.distributed_c10d._get_default_store().get("posted")
        _, works, came = messages()
    works[0].wait()
    assert came.tolist() == [1.0] * 4


def all_reduce_against_a_first_receive():
    if dist.get_rank():
        dist.all_reduce(torch.ones(3))
    else:
        dist.irecv(torch.ones(3), 1)  # nobody waits: it is the call that blocks


def barrier_against_a_receive():
    if dist.get_rank():
        dist.recv(torch.zeros(3), 0)
    else:
        dist.barrier()


def ddp_then_item_against_a_receive():
    """The reducer waits below Python, which orders streams; then `.item()` waits on the host."""
    connect()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    if dist.get_rank():
        dist.recv(torch.zeros(3), 0)
    else:
        net(torch.ones(1, 4)).sum().backward()
        net.module.weight.grad.sum().item()


def the_same_with_a_host_that_spins():
    os.environ[SPINS] = "1"
    ddp_then_item_against_a_receive()


def backward_is_on_a_thread_without_frames():
    x, seen = torch.ones(3, requires_grad=True), []
    x.register_hook(lambda grad: seen.append((sys._getframe().f_back, threading.get_ident())))
    x.sum().backward()
    assert (
        seen[0][0] is None and seen[0][1] != threading.get_ident() and threading.active_count() < 4
    )


def what_is_never_waited_for_stays_owed():
    """Though the host was in the call of a first message, and though the ledger itself waits for
    all that is left."""
    message = (
        dist.irecv(torch.zeros(2), 1) if dist.get_rank() == 0 else dist.isend(torch.ones(2), 0)
    )
    total = dist.all_reduce(torch.ones(3), async_op=True)
    assert [e.op for e in ledger.not_waited_for()] == [
        "send" if dist.get_rank() else "recv",
        "all_reduce",
    ]
    ledger.finish()
    left = ledger.not_waited_for()
    assert len(left) == 2 and not any(e.open for e in left)
    message.wait()
    assert [e.op for e in ledger.not_waited_for()] == ["all_reduce"]
    while not total.is_completed():
        time.sleep(0.001)
    assert ledger.not_waited_for() == [], "the program has asked whether it has ended"
    total.wait()


def both_send_first():
    connect()
    x = torch.ones(3)
    dist.send(x, other())
    dist.recv(x, other())


def isend_and_irecv_apart():
    connect()
    x, y = torch.ones(3), torch.empty(3)
    works = [dist.irecv(y, other()), dist.isend(x, other())]
    for work in works:
        work.wait()
    y.tolist()


def a_larger_receive():
    if dist.get_rank():
        dist.recv(x := torch.zeros(8), 0)
        x.tolist()
    else:
        dist.send(torch.ones(3), 1)


def one_misses_a_collective():
    if dist.get_rank():
        dist.all_reduce(x := torch.ones(3))
        x.tolist()


def a_collective_in_another_order_than_a_message():
    x, message = torch.ones(3), torch.ones(2)
    if dist.get_rank():
        dist.recv(message, 0)
        dist.all_reduce(x)
    else:
        work = dist.all_reduce(x, async_op=True)
        dist.send(message, 1)
        work.wait()
    x.tolist()


def columns_are_sent():
    x = torch.ones(4, 4)
    dist.all_reduce(x[:, :2])


def short_integers():
    dist.all_reduce(torch.ones(2, dtype=torch.int16))


def from_anyone():
    if dist.get_rank():
        dist.recv(torch.ones(2))


def in_the_background_and_read_early():
    from lib.collectives import ring_all_reduce, start

    x = torch.ones(4)
    work = start(ring_all_reduce, x)
    x.sum()
    work.wait()


def in_the_background_and_waited_for():
    from lib.collectives import ring_all_reduce, start

    x = torch.ones(4)
    start(ring_all_reduce, x).wait()
    assert x.tolist() == [2.0] * 4


def torchs_ddp_and_fsdp2():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    ddp(torch.ones(1, 4) * dist.get_rank()).sum().backward()
    assert ddp.module.weight.grad.tolist() == [[0.5] * 4] * 2
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    net(torch.ones(2, 4)).sum().backward()
    assert net[1].bias.grad.full_tensor().tolist() == [2.0, 2.0]


RIGHT = [
    a_batch_is_waited_for, a_sent_tensor_is_read, a_tensor_is_freed_after_wait,
    beside_it_is_written, a_synchronous_collective_has_no_work, what_is_under_way_holds_poison,
    wait_does_not_block_the_host, an_event_ends_with_what_is_before_it, a_barrier_blocks_the_host,
    the_first_message_blocks_the_host_until_the_other_posts_its_own, later_messages_do_not,
    backward_is_on_a_thread_without_frames, in_the_background_and_waited_for, torchs_ddp_and_fsdp2,
]  # fmt: skip
WRONG = [
    (
        a_batch_is_read_early,
        "read before wait: aten::equal reads float32 (4,), which recv from rank",
    ),
    (a_batch_is_listed_early, "read before wait: tolist reads"),
    (
        a_sent_tensor_is_written,
        "written while its send is under way: aten::add_ writes float32 (4,), which send to",
    ),
    (a_part_of_it_is_written, "no wait() has been called"),
    (a_sent_tensor_is_freed, "written while its send is under way: resize_ of its storage"),
    (a_work_is_dropped, "never waited for: all_reduce (strict_cases.py:"),
    (
        a_collective_is_read_early,
        "read before wait: aten::mul reads float32 (3,), which all_reduce",
    ),
    (the_wrong_work_is_waited_for, "read before wait: aten::sum"),
    (columns_are_sent, "not contiguous: all_reduce"),
    (short_integers, "no such dtype in NCCL"),
    (both_send_at_first_contact, "first contact: send to rank"),
    (both_receive_at_first_contact, "needs a send of that rank, which posts a recv"),
    (from_anyone, "NCCL has no recv_any_source"),
    (
        in_the_background_and_read_early,
        "read before wait: aten::sum reads float32 (4,), which ring_all_reduce in the",
    ),
]
HANGS = [  # threshold, what the launcher must say
    (both_send_first, "0", "deadlock: deadlock"),
    (isend_and_irecv_apart, "0", "deadlock: deadlock"),
    (isend_and_irecv_apart, "inf", "deadlock: deadlock"),
    (a_larger_receive, "0", "mismatch"),
    (one_misses_a_collective, "0", "deadlock: deadlock"),
    (a_collective_in_another_order_than_a_message, "0", "deadlock: deadlock"),
    (all_reduce_against_a_first_receive, "0", "deadlock: deadlock"),
    (barrier_against_a_receive, "0", "deadlock: deadlock"),
    (ddp_then_item_against_a_receive, "0", "no progress: no progress"),
]
