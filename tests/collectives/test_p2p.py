"""Messages: any layout, any size, to oneself too; no deadlock where both sides send; errors that
name the rank."""

import ast
import pathlib

import pytest
import torch
import torch.distributed as dist

import lib
from lib import backend, launch
from lib.collectives import p2p


def numbers(*shape, start=0.0):
    return (
        torch.arange(torch.Size(shape).numel(), dtype=torch.float32, device=backend.device()).view(
            shape
        )
        + start
    )


def messages():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = {}
    got["ring"] = p2p.send_recv(numbers(3, start=10 * rank), to=right, frm=left)
    got["another shape"] = p2p.send_recv(
        numbers(rank + 1), to=right, frm=left, out=torch.empty(left + 1, device=backend.device())
    )
    got["empty"] = p2p.send_recv(numbers(0), to=right, frm=left)
    got["from columns"] = p2p.send_recv(numbers(4, 3, start=100 * rank)[:, 1], to=right, frm=left)
    board = torch.zeros(4, 3, device=backend.device())
    p2p.send_recv(numbers(4, start=100 * rank), to=right, frm=left, out=board[:, 2])
    got["into a column"] = board
    got["to myself"] = p2p.send_recv(numbers(2, start=rank), to=rank, frm=rank)
    got["from a parameter"] = p2p.send_recv(
        torch.nn.Parameter(numbers(2, start=rank)), to=right, frm=left
    )
    parameter = torch.nn.Parameter(numbers(2))
    p2p.send_recv(numbers(2, start=rank), to=right, frm=left, out=parameter)
    got["into a parameter"] = parameter.detach()

    everyones = [torch.empty(r + 1, device=backend.device()) for r in range(world_size)]
    everyone = range(world_size)
    p2p.exchange(
        [(numbers(rank + 1), to) for to in everyone], [(everyones[frm], frm) for frm in everyone]
    )
    got["all at once"] = torch.cat(everyones)

    landing = torch.zeros(2, device=backend.device())
    pending = p2p.post([(numbers(2, start=rank), right)], [(landing, left)])
    overlapped = numbers(4).sum()
    pending.wait()
    got["posted"] = landing + 0 * overlapped
    if rank == 0:
        p2p.send(numbers(3), to=1)
        p2p.send(numbers(3, start=50), to=1)
    if rank == 1:
        got["in order"] = torch.stack(
            [p2p.recv(numbers(3), frm=0).clone(), p2p.recv(numbers(3), frm=0).clone()]
        )
    return {name: tensor.cpu() for name, tensor in got.items()}


@pytest.mark.parametrize("nproc", [2, 3])
def test_every_kind_of_message_arrives(on_ranks, nproc):
    for rank, got in enumerate(on_ranks(messages, nproc=nproc)):
        left = (rank - 1) % nproc
        assert got["ring"].tolist() == [10 * left, 10 * left + 1, 10 * left + 2]
        assert got["another shape"].tolist() == list(range(left + 1))
        assert got["empty"].shape == (0,)
        assert got["from columns"].tolist() == [100 * left + i for i in (1, 4, 7, 10)]
        assert got["into a column"].tolist() == [[0, 0, 100 * left + i] for i in range(4)]
        assert got["to myself"].tolist() == [rank, rank + 1]
        assert (
            got["from a parameter"].tolist() == got["into a parameter"].tolist() == [left, left + 1]
        )
        assert got["all at once"].tolist() == [i for r in range(nproc) for i in range(r + 1)]
        assert got["posted"].tolist() == [left, left + 1]
        if rank == 1:
            assert got["in order"].tolist() == [[0, 1, 2], [50, 51, 52]]


def in_a_group():
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        try:
            p2p.send(numbers(1), to=0, group=group)
        except ValueError as error:
            return str(error)
    rank = dist.get_rank(group)
    return p2p.send_recv(numbers(1, start=7 + rank), to=1 - rank, frm=1 - rank, group=group).item()


def test_ranks_are_ranks_within_the_group(on_ranks):
    assert on_ranks(in_a_group, nproc=3) == [
        8,
        "global rank 1 is not in this group: only its members may use it",
        7,
    ]


def wrong_ranks():
    said = []
    for wrong in [lambda: p2p.send(numbers(1), to=2), lambda: p2p.recv(numbers(1), frm=-1)]:
        try:
            wrong()
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_rank_that_the_group_does_not_have_is_named(on_ranks):
    for said in on_ranks(wrong_ranks, nproc=2):
        assert said == [
            "send to rank 2: the group has 2 ranks, 0 to 1 (group ranks)",
            "receive from rank -1: the group has 2 ranks, 0 to 1 (group ranks)",
        ]


def from_oneself_alone():
    try:
        p2p.recv(numbers(1), frm=dist.get_rank())
    except ValueError as error:
        return str(error)


def test_a_receive_from_oneself_needs_its_send(on_ranks):
    for rank, said in enumerate(on_ranks(from_oneself_alone, nproc=2)):
        assert (
            said
            == f"rank {rank} receives from itself, but sends itself nothing: it would wait for ever"
        )


def without_a_partner():
    if dist.get_rank() == 0:
        p2p.recv(numbers(1), frm=1)


def test_a_receive_that_nobody_answers_is_told_by_the_launcher(on_ranks):
    with pytest.raises(launch.RankError, match="rank 0"):
        on_ranks(without_a_partner, nproc=2, timeout=20)


def calls_torchs_messages(path):
    """Does the file call dist.isend, dist.irecv, dist.send, dist.recv, batch_isend_irecv, or a
    group's send or recv?"""
    called = [
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    names = {ast.unparse(function) for function in called}
    return any(
        name.split(".")[-1] in ("isend", "irecv", "batch_isend_irecv", "P2POp")
        or name in ("dist.send", "dist.recv", "group.send", "group.recv")
        for name in names
    )


def test_p2p_is_the_only_file_of_the_package_that_calls_torchs_send_and_receive():
    room = pathlib.Path(lib.__file__).parent
    callers = [
        path.relative_to(room).as_posix()
        for path in room.rglob("*.py")
        if calls_torchs_messages(path)
    ]
    assert callers == ["collectives/p2p.py"]
