"""The logs: every op of whatever kind is in them, they are bounded, and the audit
reads them right."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import own_processes
import pytest
import torch
import torch.distributed as dist

from lib import launch, ledger
from lib.ledger.log import RAISED, RETURNED, LogWriter, signature_of
from lib.ledger.match import audit
from lib.ledger.read import Logs


def every_way_to_communicate():
    """Ops through dist, objects, autograd, DDP's C++ reducer, functional collectives, threads."""
    import threading

    import torch.distributed._functional_collectives as functional

    rank, world_size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4)
    ledger.mark("blocking")
    dist.all_reduce(x)
    ledger.mark("async")
    dist.all_reduce(x, async_op=True).wait()
    ledger.mark("messages")
    if rank == 0:
        dist.send(torch.ones(6), 1, tag=3)
    if rank == 1:
        dist.recv(torch.ones(6), 0, tag=3)
    ledger.mark("objects")
    dist.broadcast_object_list([rank], src=0)
    ledger.mark("group")
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, op=dist.ReduceOp.MAX, group=pair)
    ledger.mark("ddp")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    ledger.mark("backward")
    model(torch.ones(2, 4)).sum().backward()
    ledger.mark("functional")
    functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
    ledger.mark("thread")
    thread = threading.Thread(target=dist.all_reduce, args=(x,))
    thread.start()
    thread.join()
    ledger.mark("lists")
    dist.all_gather([torch.empty(4) for _ in range(world_size)], x)
    dist.reduce_scatter(torch.empty(2), [torch.ones(2) for _ in range(world_size)])
    dist.all_to_all_single(torch.empty(world_size), torch.ones(world_size))
    dist.barrier()


@pytest.fixture(scope="module")
def logs():
    return launch.capture(every_way_to_communicate, nproc=3).ledger


def ops(part, rank=0):
    return [e.op for e in part.of(rank)]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("blocking", ["all_reduce"]),
        ("async", ["all_reduce"]),
        ("messages", ["send"]),
        ("objects", ["broadcast", "broadcast"]),
        ("group", ["all_reduce"]),
        ("backward", ["all_reduce"]),
        ("functional", ["all_reduce"]),
        ("thread", ["all_reduce"]),
        ("lists", ["all_gather", "reduce_scatter", "all_to_all_single", "barrier"]),
    ],
)
def test_every_way_to_communicate_is_in_the_log(logs, label, expected):
    assert ops(logs.section(label)) == expected


def test_an_entry_holds_what_when_where(logs):
    entry = logs.section("messages").of(0)[0]
    assert (entry.op, entry.peer, entry.tag, entry.dtype, entry.shape, entry.nbytes) == (
        "send",
        1,
        3,
        "float32",
        (6,),
        24,
    )
    assert (
        entry.function == "every_way_to_communicate"
        and entry.file.endswith("test_ledger.py")
        and entry.line > 0
    )
    assert entry.posted <= entry.wait_from <= entry.wait_to
    assert (
        logs.section("group").of(1)[0].members == (0, 1)
        and logs.section("group").of(1)[0].reduce_op == "max"
    )
    assert logs.section("backward").of(2)[0].nbytes == 4 * (4 * 4 + 4)
    assert logs.section("async").of(0)[0].done is not None


def test_the_matrix_counts_sends_only(logs):
    expected = np.zeros((3, 3), dtype=np.int64)
    expected[0, 1] = 24
    assert (logs.matrix("bytes") == expected).all()
    assert (logs.section("messages").matrix("bytes") == expected).all()
    assert logs.sent("elements") == 6 and logs.sent("messages", rank=1) == 0


def test_a_section_nobody_marked_is_an_error(logs):
    with pytest.raises(KeyError, match="no rank called"):
        logs.section("nonsense")


def test_ops_of_lib_are_found_at_the_users_line():
    from lib.collectives import ring

    def fn():
        x = torch.ones(6)
        ring.ring_all_reduce(x)  # this line

    entries = launch.capture(fn, nproc=2).ledger.of(0)
    assert {e.function for e in entries} == {"fn"} and {e.via for e in entries} == {
        "ring.ring_all_reduce"
    }


def keep(folder, rank, world_size, calls, capacity=8, state=RETURNED):
    """A log as a rank would have kept it: `calls` are (op, reduce op) on the world."""
    log = LogWriter(str(folder), rank, world_size, capacity)
    n = log.name
    for op, reduce_op in calls:
        place = log.record(
            n(op), n(reduce_op), n("float32"), n(("0", tuple(range(world_size)))),
            n(("f.py", 1, "f")), n(""),
            -1, 0, (4,), 4, 16, ("0",), signature_of(op, reduce_op),
        )  # fmt: skip
        log.timestamp(place, "done")
    log.close(state)


def test_a_log_is_bounded_and_its_hash_remembers_what_it_has_overwritten(tmp_path):
    long = [("all_reduce", "sum")] * 1000
    keep(tmp_path, 0, 2, long)
    # differs in the first, long overwritten
    keep(tmp_path, 1, 2, [("all_reduce", "max"), *long[1:]])
    read = Logs(tmp_path).read()
    assert [len(read.of(r)) for r in range(2)] == [8, 8] and read.lost == [992, 992]
    findings = [f for f in audit(read) if f.certain]
    assert [f.kind for f in findings] == ["history"] and "rolling hashes differ" in findings[0].text
    with pytest.raises(RuntimeError, match="overwritten"):
        read.section("x")


def test_logs_that_agree_for_long_are_not_accused(tmp_path):
    for rank in range(2):
        keep(tmp_path, rank, 2, [("all_reduce", "sum")] * 1000)
    assert audit(Logs(tmp_path).read()) == []


def test_a_bounded_log_keeps_exact_totals(tmp_path):
    log = LogWriter(str(tmp_path), 0, 1, capacity=4)
    for _ in range(1000):
        log.count_sent(0, 3, 12)
    log.close(RETURNED)
    assert Logs(tmp_path).read().matrix("bytes").tolist() == [[12_000]]


def test_a_missing_log_is_named(tmp_path):
    keep(tmp_path, 0, 3, [])
    with pytest.raises(FileNotFoundError, match=r"copy those of ranks \[1, 2\]"):
        Logs(tmp_path)


def judge(folder):
    return subprocess.run(
        [sys.executable, "-m", "lib.ledger", folder], capture_output=True, text=True
    )


def test_the_command_judges_logs(tmp_path):
    assert judge(tmp_path).returncode == 2
    keep(tmp_path, 0, 2, [("all_reduce", "sum")])
    keep(tmp_path, 1, 2, [("all_reduce", "max")])
    ran = judge(tmp_path)
    assert ran.returncode == 1 and "differ in the reduce op" in ran.stdout


def test_the_command_names_who_waits_for_a_rank_that_failed(tmp_path):
    keep(tmp_path, 0, 2, [("all_reduce", "sum")], state=RAISED)
    keep(tmp_path, 1, 2, [("all_reduce", "sum"), ("all_reduce", "sum")], state=RAISED)
    ran = judge(tmp_path)
    assert ran.returncode == 1 and "rank 0 has left with an error" in ran.stdout


@pytest.mark.slow
def test_two_nodes_keep_logs_that_one_command_judges(tmp_path):
    """torchrun with two agents, as on two nodes: world ranks 0-1 and 2-3, one folder of logs."""
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
        import torch, torch.distributed as dist
        from lib import backend, ledger
        backend.join()
        with ledger.record_to_dir():
            x = torch.ones(4)
            for _ in range(3):
                dist.all_reduce(x)
            if dist.get_rank() == 3:
                dist.all_reduce(x, op=dist.ReduceOp.MAX)
            else:
                dist.all_reduce(x)
        dist.destroy_process_group()
    """)
    )
    env = {
        **os.environ,
        "LEDGER_DIR": str(tmp_path / "logs"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with own_processes.own_port() as port:
        nodes = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank",
                 str(node),
                 "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port),
                 script],
                env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for node in range(2)
        ]  # fmt: skip
        try:
            outputs = [node.communicate(timeout=120)[0] for node in nodes]
        finally:
            for node in nodes:
                node.kill()
    assert [node.returncode for node in nodes] == [0, 0], outputs
    ran = judge(tmp_path / "logs")
    assert ran.returncode == 1, ran.stdout
    assert (
        "ranks 0, 1 and 2: all_reduce #3 SUM" in ran.stdout
        and "rank 3: all_reduce #3 MAX" in ran.stdout
    )
