"""What each rank does about messages, from the schedule alone: room in the sender's order, nothing
kept too long."""

import pytest
from pipelines import any_valid_list

from lib.pipeline import (
    gpipe,
    interleaved,
    messages,
    one_f_one_b,
    parse,
    relay,
    source,
    target,
    zb_h1,
)
from lib.pipeline.actions import count_stages
from lib.pipeline.transfers import in_flight, pasts, transfers

SCHEDULES = {
    "relay": relay(3, 4),
    "gpipe": gpipe(4, 6),
    "1f1b": one_f_one_b(4, 6),
    "zb-h1": zb_h1(4, 6),
    "interleaved 2": interleaved(4, 8, 2),
    "interleaved 3 on 2 ranks": interleaved(2, 4, 3),
    "one rank": interleaved(1, 3, 2),
    **{
        f"any {seed}": any_valid_list(seed, 2 + seed % 3, 4, 1 + seed % 2, seed % 4 > 1)
        for seed in range(12)
    },
}


def test_any_valid_list_is_no_usual_list():
    lists = [SCHEDULES[f"any {seed}"] for seed in range(12)]
    rank_0 = [
        [a.microbatch for a in schedule[0] if a.kind == "F" and a.stage == 0] for schedule in lists
    ]
    assert any(order != sorted(order) for order in rank_0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_room_is_made_in_the_senders_order_and_in_time(name):
    schedule = SCHEDULES[name]
    p, n_stages, plan = len(schedule), count_stages(schedule), transfers(schedule)
    for rank, steps in enumerate(plan):
        assert [step.action for step in steps] == schedule[rank]
        for sender in range(p):
            sent = [
                a
                for a in schedule[sender]
                if (t := target(a, n_stages)) and t.stage % p == rank != sender
            ]
            assert [
                a for step in steps for a in step.recvs_to_post if a.stage % p == sender
            ] == sent
        room = set()
        for i, step in enumerate(steps):
            room.update(step.recvs_to_post)
            for soon in steps[i : i + 2]:  # this action's and the next one's
                assert soon.waits_on is None or soon.waits_on in room
            needed = source(step.action, n_stages)
            assert step.waits_on == (needed if needed and needed.stage % p != rank else None)
    assert sum(step.sends for steps in plan for step in steps) == len(messages(schedule))
    assert sum(step.waits_on is not None for steps in plan for step in steps) == len(
        messages(schedule)
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_sent_result_is_forgotten_as_soon_as_it_is_certain_that_it_was_used_and_not_before(name):
    """Certain: from its user to this action there is a way along lists and messages. By brute
    force, all the ways."""
    schedule = SCHEDULES[name]
    p, n_stages = len(schedule), count_stages(schedule)
    before = {}
    for actions in schedule:
        for i, action in enumerate(actions):
            before[action] = {
                a for a in (actions[i - 1] if i else None, source(action, n_stages)) if a
            }

    def ancestors(action):
        found, todo = set(), [action]
        while todo:
            new = before[todo.pop()] - found
            found |= new
            todo += new
        return found

    for rank, steps in enumerate(transfers(schedule)):
        sent = [step.action for step in steps if step.sends]
        expected = {}
        for a in sent:
            certain = (
                i for i, step in enumerate(steps) if target(a, n_stages) in ancestors(step.action)
            )
            expected[a] = next(certain, None)
        said = {a: i for i, step in enumerate(steps) for a in step.sends_completed}
        assert {a: i for a, i in expected.items() if i is not None} == said, rank
        assert sum(len(step.sends_completed) for step in steps) == len(said)
    for action, past in pasts(schedule).items():
        known = ancestors(action)
        assert past == [sum(a.stage % p == rank for a in known) for rank in range(p)]


def test_by_hand():
    first, second = transfers(gpipe(2, 2))
    words = lambda actions: " ".join(map(str, actions))
    say = lambda step: (
        words(step.recvs_to_post),
        str(step.waits_on),
        words(step.sends_completed),
        str(step.action),
    )
    assert [say(step) for step in first] == [
        ("", "None", "", "0F0"),
        ("1B0", "None", "", "0F1"),  # room for what comes next, before it is needed
        # rank 1 ran all forwards before 1B0: both activations have arrived
        ("1B1", "1B0", "0F0 0F1", "0B0"),
        ("", "1B1", "", "0B1"),
    ]
    assert [say(step) for step in second] == [
        ("0F0 0F1", "0F0", "", "1F0"),
        ("", "0F1", "", "1F1"),
        ("", "None", "", "1B0"),
        ("", "None", "", "1B1"),
    ]


def test_messages_overtaken_on_the_way_have_room():
    lists = [
        [parse(text) for text in row.split()]
        for row in ("0F0 0F1 0F2 0B2 0B1 0B0", "1F2 1B2 1F1 1B1 1F0 1B0")
    ]
    assert [list(map(str, step.recvs_to_post)) for step in transfers(lists)[1]][:2] == [
        ["0F0", "0F1", "0F2"],
        [],
    ]


@pytest.mark.parametrize("p", [2, 3, 4, 6])
def test_buffers_in_flight_do_not_grow_with_the_micro_batches(p):
    peaks = lambda schedule: [
        tuple(map(max, zip(*in_flight(steps), strict=True))) for steps in transfers(schedule)
    ]
    for make in (relay, one_f_one_b, zb_h1, lambda p, m: interleaved(p, m, 2)):
        assert peaks(make(p, 4 * p)) == peaks(make(p, 8 * p))
    for m in (p, 4 * p):
        assert all(
            inbound <= 2
            for inbound, _ in peaks(gpipe(p, m)) + peaks(one_f_one_b(p, m)) + peaks(zb_h1(p, m))
        )
    # GPipe hears nothing back until all forwards are done.
    assert peaks(gpipe(p, 4 * p))[0][1] == 4 * p - 1
