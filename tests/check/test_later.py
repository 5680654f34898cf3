"""The clock that hide_exchange is judged by: what an order of start, compute and wait would hide;
works done late."""

import pytest
import torch

from lib.check.lab5.later import Starter, Takes


def send(rows):
    return rows + 1


def test_a_message_beside_computing_is_hidden_and_one_that_is_waited_for_is_not():
    starter = Starter()
    first = starter.start(send, torch.zeros(4))
    starter.clock.computes(3.0)
    first.wait()  # from 3 to 4 nothing computes
    starter.start(send, torch.zeros(4)).wait()
    assert starter.clock.now == 8.0 and starter.clock.hidden("") == pytest.approx(3 / 8)


def test_one_wire_takes_messages_in_the_order_of_their_start():
    starter = Starter()
    works = [starter.start(send, torch.zeros(2)) for _ in range(3)]
    assert [work.arrives for work in works] == [2.0, 4.0, 6.0] and starter.under_way == 3
    works[1].wait()
    assert starter.clock.now == 4.0 and starter.under_way == 2 and starter.done == 2
    assert starter.clock.hidden("") == 0.0 and starter.clock.hidden("another phase") == 1.0


def test_a_work_is_done_when_it_is_waited_for_so_a_changed_buffer_is_seen():
    starter, buffer = Starter(), torch.zeros(2)
    work = starter.start(send, buffer)
    buffer.fill_(5.0)
    assert not work.is_completed() and work.wait().tolist() == [6.0, 6.0] and work.is_completed()


def test_what_takes_time_takes_it_in_both_directions():
    starter, rows = Starter(), torch.ones(3, 2, requires_grad=True)
    y = Takes.apply(rows, starter.clock)
    assert starter.clock.now == 3.0
    y.sum().backward()
    assert starter.clock.now == 6.0 and torch.equal(rows.grad, torch.ones(3, 2))
