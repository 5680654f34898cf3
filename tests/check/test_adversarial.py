"""Answers that are right in every ordinary case: what the adversarial cases of the
vocabulary find in Lab 0."""

import pytest
import torch
import torch.distributed as dist

from lib.check.exercises import EXERCISES
from lib.check.framework import evaluate
from lib.collectives import p2p


def _ring(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    return rank, world_size, (rank + 1) % world_size, (rank - 1) % world_size


def scatter(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
    return partial


def gather(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out = chunk.new_empty(world_size * len(chunk)) if out is None else out
    places = out.tensor_split(world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        p2p.send_recv(
            places[(rank - step) % world_size],
            right,
            left,
            group,
            out=places[(rank - step - 1) % world_size],
        )
    return out


def scatters_in_float32(tensor, group=None):
    return scatter(tensor.float(), group).to(tensor.dtype)


def gathers_in_float32(chunk, group=None, out=None):
    whole = gather(chunk.float(), group, None if out is None else out.float()).to(chunk.dtype)
    return whole if out is None else out.copy_(whole)


def reduces_in_float32(tensor, group=None):
    x = tensor.float()
    gather(scatter(x, group), group, x)
    return tensor.copy_(x)


def broadcasts_in_float32(tensor, src, group=None):
    x = tensor.double().float()
    v, world_size = (
        (dist.get_rank(group) - src) % dist.get_world_size(group),
        dist.get_world_size(group),
    )
    step = 1
    while step < world_size:
        if v < step and v + step < world_size:
            p2p.send(x, (v + step + src) % world_size, group)
        elif step <= v < 2 * step:
            p2p.recv(x, (v - step + src) % world_size, group)
        step *= 2
    return tensor.copy_(x)


def exchanged(tensor, to, frm, group, out):
    messages = [
        dist.P2POp(dist.isend, tensor, group=group, group_peer=to),
        dist.P2POp(dist.irecv, out, group=group, group_peer=frm),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return out


def sends_float32(tensor, to, frm, group=None, out=None):
    out = torch.empty_like(tensor) if out is None else out
    if to == dist.get_rank(group):
        return out.copy_(tensor)
    return out.copy_(exchanged(tensor.float(), to, frm, group, torch.empty(out.shape)))


KEPT = {}


def one_buffer_for_all_calls(tensor, group=None):
    out = scatter(tensor, group)
    kept = KEPT.setdefault((len(out), out.dtype), torch.empty_like(out))
    return kept.copy_(out)


def returns_its_own_to_itself(tensor, to, frm, group=None, out=None):
    if to == dist.get_rank(group):
        return tensor
    return exchanged(tensor, to, frm, group, torch.empty_like(tensor) if out is None else out)


def waits_for_something_to_send(chunk, group=None, out=None):
    if out is not None and len(out) == 0:
        raise ValueError("nothing to gather")
    return gather(chunk, group, out)


def alone_it_returns_the_chunk(chunk, group=None, out=None):
    return chunk if dist.get_world_size(group) == 1 and out is None else gather(chunk, group, out)


def returns_another_tensor_than_out(chunk, group=None, out=None):
    return gather(chunk, group, out).clone()


def exits(tensor, group=None):
    raise SystemExit(1)


ANSWERS = [
    ("ring_reduce_scatter", scatters_in_float32, "rounded on the way"),
    ("ring_all_gather", gathers_in_float32, "rounded on the way"),
    ("ring_all_reduce", reduces_in_float32, "rounded on the way"),
    ("broadcast", broadcasts_in_float32, "rounded on the way"),
    ("send_recv", sends_float32, "rounded on the way"),
    ("ring_reduce_scatter", one_buffer_for_all_calls, "still alive"),
    ("send_recv", returns_its_own_to_itself, "not a copy"),
    ("ring_all_gather", waits_for_something_to_send, "right only where there is something"),
    ("ring_all_gather", alone_it_returns_the_chunk, "one rank alone"),
    ("ring_all_gather", returns_another_tensor_than_out, "out not filled"),
    ("ring_reduce_scatter", exits, "exits"),
]


@pytest.mark.parametrize(
    ("name", "answer", "hint"), ANSWERS, ids=lambda x: getattr(x, "__name__", x)
)
def test_what_is_right_in_ordinary_cases_only_is_rejected(name, answer, hint):
    outcome = evaluate(EXERCISES[name], answer)
    assert (outcome.passed, outcome.hint) == (False, hint), "\n".join(outcome.lines)


@pytest.mark.slow
def test_what_these_answers_are_made_of_is_right():
    assert evaluate(EXERCISES["ring_reduce_scatter"], scatter).passed
    assert evaluate(EXERCISES["ring_all_gather"], gather).passed
